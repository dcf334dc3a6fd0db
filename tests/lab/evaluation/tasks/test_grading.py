"""Answers out of texts."""

from caw_lab.evaluation.tasks.grading import grade_contains, grade_exact, grade_letter, grade_number


def test_numbers() -> None:
    for text, answer, how in (
        ("6 + 2 = 8.\nThe answer is 8.", "8", "stated"),
        ("The answer is 8.\n\nThen the answer is 9.", "8", "stated"),  # the first, as lm-evaluation-harness
        ("The answer is **-3**.", "-3", "stated"),
        ("The answer is \\( 18 \\).", "18", "stated"),
        ("The answer is 5 apples. Or 6.", "5", "stated"),
        ("He has 3 apples and 4 pears", "4", "last"),
        ("The answer is unclear: 7 or 12,000", "12000", "last"),
        ("It costs $.50", ".50", "last"),
        ("", None, None),
    ):
        graded = grade_number(text, "8")
        assert (graded.answer, graded.extraction) == (answer, how)
        assert graded.correct == (answer == "8")


def test_numbers_are_compared_as_numbers() -> None:
    for answer, gold, correct in (
        ("18.00", "18", True),
        ("1,800", "1800", True),
        ("$18", "18", True),
        ("18.5", "18", False),
        ("-18", "18", False),
    ):
        assert grade_number(f"The answer is {answer}.", gold).correct == correct


def test_the_text_ends_with_the_sentence_of_its_answer() -> None:
    text = "5 + 4 = 9.\nThe answer is 9.50 dollars. Good.\n\nAnother 10"
    assert grade_number(text, "9").text == "5 + 4 = 9.\nThe answer is 9.50 dollars."
    assert grade_number("The answer is 9\nand 10.", "9").text == "The answer is 9"
    assert grade_number("The answer is 9 of 10.5 apples", "9").text == "The answer is 9 of 10.5 apples"
    assert grade_letter("The answer is (A). Thus, (A). q 4 q 5", "A").text == "The answer is (A)."
    assert grade_letter("The answer is (A)? Yes!", "A").text == "The answer is (A)?"


def test_what_closes_a_sentence_belongs_to_it() -> None:
    for said in ("**The answer is 9.**", "The answer is 9。", "The answer is $9.", "'The answer is 9 (nine).'"):
        assert grade_number(f"5 + 4.\n{said} More words. And 10.", "9").text == f"5 + 4.\n{said}"
        assert grade_number(said, "9").text == said


def test_without_a_stated_answer_the_whole_text_counts() -> None:
    text = "It is 9. More words. Then 9 again"
    assert grade_number(text, "9").text == text
    assert grade_number("so 9\n\nand 10 \n", "9").text == "so 9\n\nand 10"
    assert grade_letter(" So (B).\n\nThe answer is (A).\n\nQ", "A").text == " So (B).\n\nThe answer is (A)."


def test_letters() -> None:
    for text, answer, how in (
        ("Thus, (A) is not a problem. The answer is (B).", "B", "stated"),
        ("The answer is: **(C)**", "C", "stated"),
        ("The answer is Bourdieu", None, None),
        ("The answer is a kinship system, (D).", "D", "last"),
        ("Either (A) or (D)", "D", "last"),
        ("A or D", None, None),
    ):
        graded = grade_letter(text, "B")
        assert (graded.answer, graded.extraction, graded.correct) == (answer, how, answer == "B")


def test_whole_texts_and_parts_of_texts() -> None:
    assert grade_exact(" blue \n", "blue").correct and not grade_exact("Blue", "blue").correct
    assert grade_exact(" \n", "blue").answer is None
    assert grade_contains("It is BLUE.", "blue").correct and not grade_contains("It is red.", "blue").correct
    assert grade_contains("It is red.", "blue").answer == "" and grade_contains(" ", "blue").answer is None
