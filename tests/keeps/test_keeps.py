"""What a guarded text must keep: readers of numbers, results, JSON and code."""

import time
from typing import Any

import pytest

import caw
from caw import keeps

pytestmark = pytest.mark.every_case

SUM = "2 + 3 = 5 apples.\n5 * 4 = $20.\nThe answer is 20."


@pytest.mark.parametrize(
    "marked, kept, results", [
        (SUM, True, True), ("So 2 + 3 = 5.0, and 5 * 4 = 20.\nThe answer is $20.", True, True),
        ("2 + 3 = 6 apples.\nThe answer is 20.", True, False),
        ("2 + 3 = 5 apples, that is all.\nThe answer is 20.", True, False),
        ("5 * 4 = 20, and 2 + 3 = 5.\nThe answer is 20.", True, False),
        ("2 + 3 = 5 apples.\n5 * 4 = $20.\nThe answer is 21.", False, False),
        ("2 + 3 = 5 apples, 5 * 4 = 20, so 20 is it, not 7", False, False), ("none", False, False),
    ],
)  # fmt: skip
def test_numbers_and_results(marked: str, kept: bool, results: bool) -> None:
    assert keeps.number()(SUM, marked) is kept
    assert keeps.results()(SUM, marked) is results


def test_texts_without_a_number_keep_its_absence() -> None:
    assert keeps.number()("none", "nothing") and not keeps.number()("none", "1")


NOTE = '{"name": "Ann", "age": 7, "note": "she likes to read", "tags": ["a", "b"]}'


@pytest.mark.parametrize(
    "fields, marked, kept", [
        (None, NOTE, True), (None, NOTE.replace("likes to", "loves to"), True),
        (None, NOTE.replace("Ann", "Eve"), False), (None, NOTE.replace("7", "8"), False),
        (None, NOTE.replace("she likes to read", "reads"), False), (None, NOTE.replace(', "b"', ""), False),
        (None, NOTE.replace('"age": 7, ', ""), False), (None, NOTE.replace("7", '"7"'), False),
        (None, NOTE[:-1], False), (["name"], NOTE.replace("she likes to read", "reads").replace('"a"', '"c"'), True),
        (["name"], NOTE.replace("Ann", "Eve"), False), (["tags"], NOTE.replace('"a"', '"c"'), False),
        (["note"], NOTE.replace("Ann", " "), False), (None, f"Here it is:\n```json\n{NOTE}\n```", False),
        (None, f"Here it is: {NOTE} Done.", False),
    ],
)  # fmt: skip
def test_json(fields: Any, marked: str, kept: bool) -> None:
    assert keeps.json(fields)(NOTE, marked) is kept


def test_what_does_not_parse_has_nothing_to_keep() -> None:
    assert keeps.json()("no json", "neither") and keeps.parses()("def f(:", "x x")
    assert not keeps.json()(NOTE, "no json") and not keeps.parses()("x = 1", "x = = 1")


def test_code_parses_in_each_block() -> None:
    text = "First\n```python\nx = 1\n```\nthen\n```python\ny = 2\n```\n"
    assert keeps.parses("python")(text, text.replace("First", "At first"))
    assert not keeps.parses("python")(text, text.replace("y = 2", "y = "))
    assert not keeps.parses("python")(text, "```python\nx = 1\n```")


def test_what_a_named_field_holds_is_kept() -> None:
    old = '{"name": {"first": "Ann", "all": ["Ann B"]}, "note": {"first": "Ann"}}'
    kept = keeps.json(["name"])
    assert kept(old, old.replace('"note": {"first": "Ann"}', '"note": {"first": "Eve"}'))
    assert not kept(old, old.replace('"name": {"first": "Ann"', '"name": {"first": "Eve"'))
    assert not kept(old, old.replace("Ann B", "Eve B"))


def test_json_within_a_string_is_compared_as_json() -> None:
    """The arguments of a tool's call are a string."""
    call = r'{"name": "Ann", "arguments": "{\"city\": \"Rome\", \"why\": \"she likes it a lot\", \"days\": 3}"}'
    kept = keeps.json(["name", "city"])
    assert kept(call, call.replace("likes it a lot", "likes it"))
    assert not keeps.json()(call, call.replace("likes it a lot", "likes it")), "free from four words on"
    for wrong in (call.replace("city", "town"), call.replace("Rome", "Bonn"), call.replace(r"3}", r"3, 4]")):
        assert not kept(call, wrong) and not keeps.json()(call, wrong)
    assert not keeps.json(["name"])('{"a": "[1, 2]"}', '{"a": "1, 2"}')


def test_without_names_all_strings_are_free_and_the_shape_is_kept() -> None:
    nothing = keeps.json([])
    assert keeps.reads(nothing, NOTE) and nothing(NOTE, NOTE.replace("Ann", "Eve"))
    assert not nothing(NOTE, NOTE.replace('"name"', '"who"'))


def test_fields_that_are_not_there_keep_nothing() -> None:
    """A misspelt name must not look as if it were kept."""
    assert not keeps.reads(keeps.json(["nam"]), NOTE) and keeps.reads(keeps.json(["tags"]), f"[{NOTE}]")
    assert not keeps.json(["nam"])(NOTE, NOTE.replace("7", "8"))  # shape and numbers count all the same


@pytest.mark.parametrize("one, other, kept", [
    ("```bash\nls -l |\n```\n```python\nx = 1\n```", "```bash\nls -l |\n```\n```python\nx =\n```", False),
    ("```bash\nls -l |\n```\n```python\nx = 1\n```", "```bash\nls -l |\n```\n```python\ny = 1\n```", True),
    ("```bash\nls -l |\n```\n```python\nx = 1\n```", "```bash\nls -a |\n```\n```python\nx = 1\n```", False),
    ("- a\n  ```python\n  x = 1\n  ```\n", "- a\n  ```python\n  x =\n  ```\n", False),
    ("- a\n  ```python\n  x = 1\n  ```\n", "- so\n  ```python\n  x = 1\n  ```\n", True),
    ("```python\nx = 1\n```", "```python\nx = 1\n```\n```python\ny = 1\n```", False), ("x = '\\d'", "y = '\\d'", True),
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_other_blocks_stay_and_python_parses(one: str, other: str, kept: bool) -> None:
    assert keeps.reads(keeps.parses(), one)
    assert keeps.parses()(one, one) and keeps.parses()(one, other) is kept


def test_the_code_of_a_text() -> None:
    assert keeps.code_of("x = 1") == ["x = 1"] and keeps.code_of("```sh\nls\n```") == []
    text = "Do:\n  ```python\n  x = 1\n  if x:\n      y = 2\n  ```\nor\n```\nz = 3\n```\n"
    assert keeps.code_of(text) == ["x = 1\nif x:\n    y = 2\n", "z = 3\n"]


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="fields must be a list of names, got 'name'"):
        keeps.json("name")
    with pytest.raises(ValueError, match="language must be one of python, got 'rust'; use 'python'"):
        keeps.parses("rust")


@pytest.mark.parametrize(
    "one, other",
    [
        ("3/4", "3/7"), ("−5", "−6"), ("−5", "5"), ("$-5", "$-6"), ("\\$12", "\\$13"), ("**12**", "**13**"),
        ("€12", "€13"), ("(12)", "(13)"), ("\\boxed{12}", "\\boxed{13}"), ("3 * 4", "3 * 9"), ("1e5", "1e6"),
        ("1,23", "12,3"), ("1.200,50", "1.2"), ("50%", "50"), ("\\frac{3}{4}", "\\frac{3}{5}"), ("٣", "٤"),
        ("(3 + 4) * 2", "3 + 4 * 2"), ("3 \\times 4", "3 \\times 5"), ("<<5*2=10>>10", "<<5*2=10>>11"),
        ("1{,}000", "1{,}500"), ("1\\,000", "1\\,500"), ("1 000", "1 500"), ("1_000", "1_500"), ("sqrt(2)", "sqrt(3)"),
        ("\\sqrt{2}", "\\sqrt{3}"), ("\\text{5}", "\\text{6}"), ("2y + 3", "2y + 4"), ("2x", "2y"), ("5 x 3", "5 x 4"),
        ("3 // 2", "3 // 5"), ("3 // 2", "3 / 2"), ("3 % 2", "3 % 5"), ("10²", "10³"), ("½", "¼"), ("10^{2}", "10^{3}"),
        ("12 hours 30 minutes", "12 hours 45 minutes"), ("USD 5", "USD 6"), ("Rs. 5", "Rs. 6"), ('"5"', '"6"'),
        ("+5", "+6"), ("[5, 6]", "[5, 8]"), ("about 3", "about 4"), ("£3", "€3"), ("1.5.2", "1.5.3"), ("\\$5", "\\$6"),
        ("5 mod 3", "5 mod 4"), ("minus 5", "5"), ("twelve", "thirteen"), ("3 ** 2", "3 * 2"),
    ],
)  # fmt: skip
def test_results_in_every_notation(one: str, other: str) -> None:
    results, (old, new) = keeps.results(), (f"x = {each}, so it is 7" for each in (one, other))
    assert results(old, old) and results(new, new) and not results(old, new) and not results(new, old)


@pytest.mark.parametrize(
    "one, other",
    [("1,200", "$1200.00"), ("1{,}200", "1200"), ("3 × 4", "3 \\cdot 4"), ("**12**", "12"), ("5%", "5 per cent"),
     ("-5", "minus 5"), ("1e3", "1000")],
)  # fmt: skip
def test_notations_of_the_same_result(one: str, other: str) -> None:
    assert keeps.results()(f"x = {one} and so 7", f"hence x = {other} and thus 7")


@pytest.mark.parametrize(
    "one, other",
    [
        ("5 + 6 = 11", "5 + 9 = 11"), ("3 + 4 = 7", "4 + 3 = 7"), ("6 \\times 3 = 18", "6P = 18"),
        ("15 pages/day × 4 days = 60", "4 days = 60 pages"), ("5 = 5", "5 ≠ 5"), ("x = 5", "x != 5"),
        ("x <= 5", "x >= 5"), ("x ≈ 3", "x ≈ 4"), ("x := 3", "x := 4"), ("a = 5, b = 6", "b = 5, a = 6"),
        ("x =\n5", "x =\n6"), ("x = 5 km", "x = 5 miles"),
        ("```\nx = 1\n```", "```\ny = 1\n```"), ("x = 1", "x = 1, y = 2"),
    ],
)  # fmt: skip
def test_results_keep_both_sides_and_code(one: str, other: str) -> None:
    results, (old, new) = keeps.results(), (f"So\n{each}\nThe answer is 7" for each in (one, other))
    assert results(old, old) and results(new, new) and not results(old, new) and not results(new, old)


@pytest.mark.parametrize(
    "one, other",
    [
        ("= **12** apples", "= 12 apples (in all)"), ("= 12 - so", "= 12, so"),
        ("= 5 well-known ones", "= 5 known ones"),
        ("He pays 5 + 2 = $7", "So now he has to pay 5 + 2 = 7 dollars"), ("= 12; and", "= 12. And"),
    ],
)  # fmt: skip
def test_words_around_results_are_free(one: str, other: str) -> None:
    assert keeps.results()(f"It {one} here.\nThe answer is 7", f"It {other} there.\nThe answer is 7")


@pytest.mark.parametrize(
    "one, other, kept",
    [
        ("#### 12\nQuestion 2", "#### 13\nQuestion 2", False),
        ("So \\boxed{12}. That took 3 steps", "So \\boxed{13}. That took 3 steps", False),
        ("So \\boxed{12}. That took 3 steps", "Hence \\boxed{12}. That took 4 steps", True),
        ("Answer: 12. Checked on page 3", "Answer: 13. Checked on page 3", False),
        ("**Answer:** 12 on page 3", "**Answer:** 13 on page 3", False),
        ("It is 50%", "It is 50", False),
        ("It is \\frac{1}{2}", "It is \\frac{3}{2}", False),
        ("It is \\frac{1}{2}", "It is \\frac{1}{3}", False),
        ("at 3:45", "at 7:45", False),
        ("It is minus 5", "It is 5", False),
        ("The answer is 5", "The answer is not 5", False),
        ("The answer is (B).", "The answer is (C).", False),
        ("The answer is twelve", "The answer is thirteen", False),
        ("The answer is B because 3 is odd", "The answer is C because 3 is odd", False),
        ("The correct option is B, as 3 is odd", "The correct option is C, as 3 is odd", False),
        ("Yes. It costs 5 dollars.", "No. It costs 5 dollars.", False),
        ("Yes. It costs 5 dollars.", "Yes! That is 5 dollars.", True),
        ("Nobody has 5", "Somebody has 5", True),  # the answer alone is kept
        ("The answer is 5 km.", "The answer is 5 miles.", False),
        ("The answer is 5 Miles", "The answer is 5 miles", True),
        ("It weighs 1.5kg.", "It weighs 1.5lb.", False),
        ("It is a 3-hour walk.", "It is a 3-day walk.", False),
        ("The answer is 7 apples.", "The answer is 7 of them.", True),
        ("It is 12 now.", "Now it is 12.", True),
        ("It took 3 steps. It is 12", "It took 4 steps. It is 12", True),
    ],
)
def test_answers_in_every_form(one: str, other: str, kept: bool) -> None:
    assert keeps.number()(one, one) and keeps.number()(one, other) is kept


def test_every_stated_answer_is_kept() -> None:
    assert not keeps.number()("the answer is 5? No, the answer is 6", "the answer is 5? No, the answer is 7")
    assert not keeps.number()("The answer is −5", "The answer is 5")
    assert not keeps.number()("It is −5", "It is 5") and keeps.number()("It is €5", "So it is €5")


@pytest.mark.parametrize(
    "unmarked, marked, kept",
    [
        ('{"a": 1}\n{"a": 2}', '{"a": 1}\n{"a": 9}', False),
        ('[1] has it:\n```json\n{"a": 1}\n```\n', '[1] has it:\n```json\n{"a": 2}\n```\n', False),
        ('[1] has it:\n```json\n{"a": 1}\n```\n', '[1] holds it:\n```json\n{"a": 1}\n```\n', True),
        ('```json\n{"a": 1}\n```\nor\n```\n{"b": 2}\n```', '```json\n{"a": 1}\n```\nor\n```\n{"b": 3}\n```', False),
        ('As [asked] here: {"a": 1}', 'As [asked] here: {"a": 2}', False),
        ('So: {"a": 1, "b": 2', 'So: {"a": 7, "b": 2', False),
        ('So: {"a": 1, "b": 2', 'Thus: {"a": 1, "b": 2', True),
        ('{"a": 1, "a": 2}', '{"a": 5, "a": 2}', False),
        ('{"a": NaN}', '{"a": NaN}', True),
        ('{"a": NaN}', '{"a": Infinity}', False),
        ('{"a": 1.50}', '{"a": 1.5}', True),
        ('{"a": 1e3}', '{"a": 1000}', True),
        ('{"a": 1000.0}', '{"a": 1000}', True),
        ('{"a": true}', '{"a": 1}', False),
        (
            '{"a": 1e99999999999999999999, "d": "a note of words"}',
            '{"a": 1e99999999999999999999, "d": "words in a note"}',
            True,
        ),
        ('{"a": 1e99999999999999999999}', '{"a": 1e99999999999999999998}', False),
        ('{"d": "-5 degrees in here"}', '{"d": "5 degrees in here"}', False),
        ('{"d": "10³ apples in here"}', '{"d": "10² apples in here"}', False),
        ('{"d": "1.5 litres in here"}', '{"d": "1,5 litres in here"}', False),
        ('{"a": 1}', '{"a": 1}}} x', False),
        ('{"d": "on 5 May at noon"}', '{"d": "on 6 May at noon"}', False),
        ('{"d": "on 5 May at noon"}', '{"d": "at noon on 5 May"}', True),
        ("[" * 5000 + "]" * 5000, "[]", False),
    ],
)
def test_all_json_of_a_text(unmarked: str, marked: str, kept: bool) -> None:
    assert keeps.json()(unmarked, unmarked) and keeps.json()(unmarked, marked) is kept


def test_long_texts_take_no_long_time() -> None:
    """Of the order of milliseconds; a reader that went back over each space would take minutes."""
    begun = time.perf_counter()
    for text in ("= 1" + " " * 50000 + "x", "=" * 20000, "= " + "(" * 20000, "= " + "1," * 10000, "{" * 5000):
        assert keeps.results()(text, text + " ")
        assert keeps.json()(text, " " + text)
    assert time.perf_counter() - begun < 20


def test_brackets_that_stay_open_are_read_once() -> None:
    """Each of them fails where the outermost does: reading all of them to there took its square."""
    begun = time.process_time()
    for depth in (100, 900):
        text = '[1,{"a":"]"},' * depth + "1," * 20000 + "x [2]"
        assert keeps.values_of(text).values == [*[keeps.Pairs([("a", "]")])] * depth, [2]]
    assert time.process_time() - begun < 5


def test_readers_tell_whether_there_is_something_to_keep() -> None:
    for reader, nothing, some in (
        (keeps.number(), "none", "1"), (keeps.results(), "none", "1"), (keeps.json(), "none", "[1]"),
        (keeps.json(), "none", "{"), (keeps.parses(), "a loop is it", "x = 1"),
    ):  # fmt: skip
        assert not keeps.reads(reader, nothing) and keeps.reads(reader, some)
    assert keeps.reads(lambda unmarked, marked: True, "") and keeps.reads(keeps.content(), "")


@pytest.mark.parametrize(("unmarked", "marked", "kept"), [
    ("He met Ann in 1904.", "In 1904 he saw Ann.", True),  # of each kind, the order counts
    ("He met Ann in 1904.", "He met Ann in 1905.", False),
    ("He met Ann in 1904.", "He met her in 1904.", False),
    ("It rained.", "It poured.", True),
    ("It rained.", "It poured on Ann.", False),  # nothing is added to a text without content
    ("Then Ann came. Ann saw.", "Then Ann came. She saw.", False),  # a name is one where it begins a sentence, too
    ("Run `make`.", "Do run `make`.", True), ("Run `make`.", "Run `make all`.", False),
    ("The answer is (b).", "So the answer is (b).", True), ("The answer is (b).", "The answer is (c).", False),
    ("so it is $780 - $90 = $690.", "which makes $780 - $90 = $690.", True),
    ("so it is $780 - $90 = $690.", "so it is $780 + $90 = $690.", False),  # what stands between numbers of an equation
])  # fmt: skip
def test_content(unmarked: str, marked: str, kept: bool) -> None:
    assert keeps.content()(unmarked, unmarked) and keeps.content()(unmarked, marked) is kept
    assert caw.Guard("content").reader == keeps.content()


@pytest.mark.parametrize("keeps", [keeps.number(), keeps.results()], ids=["number", "results"])
@pytest.mark.parametrize(("one", "other"), [
    ("There are 3 cities. The answer is Paris.", "There are 3 cities. The answer is London."),
    ("2 + 3 = 5. So the answer is yes.", "2 + 3 = 5. So the answer is no."),
    ("Of 4, answer: **red**", "Of 4, answer: **blue**"), ("It is \\boxed{\\text{even}}", "It is \\boxed{\\text{odd}}"),
    ("The answer is yes. That makes 7 apples.", "The answer is yes. That makes 8 apples."),
])  # fmt: skip
def test_a_stated_answer_without_a_number_is_kept_with_the_last_number(keeps, one, other):
    assert not keeps(one, other) and keeps(one, one) and keeps.reads(one)
    assert keeps(one, one.replace("So the", "Thus the").replace("Of 4", "From 4").replace("That makes", "So it is"))


@pytest.mark.parametrize("keeps", [keeps.number(), keeps.results()], ids=["number", "results"])
@pytest.mark.parametrize(("one", "other"), [
    ("The answer is Paris, France.", "The answer is Paris, Texas."), ("The answer is yes", "The answer is yes, mostly"),
    ("The answer is Dr. Smith.", "The answer is Dr. Jones."), ("The answer is St. Louis.", "The answer is St. Paul."),
    ("The answer is: yes; no doubt.", "The answer is: yes; no."), ("Answer: A dog", "Answer: A cat"),
    ("The answer is A and B.", "The answer is A and C."), ("The answer is C++.", "The answer is C#."),
    ("The answer is (3, 4).", "The answer is (3, 5)."), ("The answer is 3, 4 and 5.", "The answer is 3, 4 and 6."),
    ("The answer is A lot more than 5.", "The answer is A lot more than 6."),
    ("The answer is –5.", "The answer is 5."), ("The answer is -€5.", "The answer is €5."),
    ("The answer is -√2.", "The answer is √2."), ("The answer is -x.", "The answer is x."),
    ("The answer is x^2.", "The answer is y^2."), ("The answer is x = y.", "The answer is x = z."),
    ("There are 3. The answer is x = y.", "There are 4. The answer is x = y."),
    ("The answer is ✓.", "The answer is ✗."), ("Of 3, the answer is >.", "Of 3, the answer is <."),
    # nothing but words: no number says what they rest on, so the content is kept too
    ("Ann was in Rome. The answer is yes.", "Ann was in Oslo. The answer is yes."),
    ("Twenty came. The answer is yes.", "Thirty came. The answer is yes."),
])  # fmt: skip
def test_another_answer_is_not_the_same(keeps, one, other):
    assert not keeps(one, other) and not keeps(other, one) and keeps(one, one) and keeps(other, other)


@pytest.mark.parametrize(("one", "other"), [
    ("The answer is 5, because 2 + 3 = 5.", "The answer is 5, as 2 + 3 = 5."),
    ("So the answer is (B) by rule 3.", "So the answer is (B) as by rule 3."),
    ("The answer is **B**.", "Its answer is B."), ("The answer is 5 apples.", "The answer is 5 fruits."),
    ("The answer is \\(5\\).", "The answer is $5$."),
    ("It rained. The answer is yes. Good.", "It poured. The answer is yes. Fine."), ("The answer is", "An answer is"),
])  # fmt: skip
def test_other_words_have_the_same_answer(one, other):
    assert keeps.number()(one, other) and keeps.number()(other, one)


def test_a_heading_is_no_answer():
    assert keeps.number()("#### Steps\nSo 7 apples.", "#### How\nSo 7 apples.")
    assert not keeps.number()("#### Steps\nSo 7 apples.", "#### Steps\nSo 8 apples.")


def test_an_escaped_quote_ends_no_string():
    """The bracket behind it is part of the string."""
    found = keeps.STRING_OR_BRACKET.findall('{"a": "x \\" [", "b": [1]}')
    assert [each for each in found if len(each) == 1] == ["{", "[", "]", "}"]
