"""What would turn a statement round is kept, and no text takes the square of its length to read."""

import time

import pytest

from caw import keeps

pytestmark = pytest.mark.every_case

READERS = {
    "number": keeps.number(), "results": keeps.results(), "content": keeps.content(), "json": keeps.json(),
    "python": keeps.parses("python"),
}  # fmt: skip
ANSWER = "The answer is {}."
TURNED = [  # n: number, r: results, c: content; a text, what stands in it, and what must not stand there instead
    ("nr", ANSWER, ["3 p.m", "3 a.m", "3"]), ("nr", ANSWER, ["3pm", "3am"]),
    ("nrc", "Come at {}.", ["9:30 PM", "9:30 AM"]),
    ("nr", ANSWER, ["12 noon", "12 midnight"]), ("nr", ANSWER, ["44 BC", "44 AD"]), ("nr", ANSWER, ["$5", "€5"]),
    ("nr", ANSWER, ["5 dollars", "5 euros"]), ("nrc", "It came {} 5.", ["before", "after"]),
    ("nrc", "It is {}5 now.", ["±", ""]), ("nrc", "It is {}5 now.", ["-", "", "+"]), ("nrc", ANSWER, ["x≥5", "x≤5"]),
    ("nr", ANSWER, [r"x \lt 5", r"x \gt 5", "x = 5"]), ("nrc", ANSWER, ["x < 5", "x > 5", "x"]),
    ("nrc", ANSWER, ["at least 5", "at most 5", "more than 5", "5"]), ("nr", ANSWER, ["5 or more", "5 or less"]),
    ("nr", ANSWER, ["5 °C", "5 °F"]), ("nr", ANSWER, ["5 miles north", "5 miles south"]),
    ("nrc", ANSWER, ["not 5", "5"]),
    ("nrc", "It {} by 5.", ["increased", "decreased"]), ("nrc", ANSWER, ["zero", "none", "high"]),
    ("nrc", ANSWER, ["5 more", "5 fewer", "5"]), ("nrc", ANSWER, ["/etc/hosts", "/etc/passwd"]),
    ("nrc", ANSWER, ["https://a.org/1", "https://b.org/1"]), ("nrc", ANSWER, ["a1.txt", "b1.txt"]),
    ("r", "{}, so it is 6. 2 = 2.", ["x < 5", "x > 5"]), ("r", "t = {}, so it is 6.", ["3 pm", "3 am"]),
    ("r", "n = {}, so it is 6.", ["at least 5", "at most 5"]), ("c", "{} than five people", ["more", "fewer"]),
    ("c", "write to {}, please", ["a.b+c@d.org", "a.b+d@d.org", "c@d.org"]), ("c", "open C:\\a\\{} now", ["b", "c"]),
    ("c", "run it {} now", ["--dry-run", "--force", ""]),
    ("c", "look in {} now", ["~/a/b.txt", "~/a/c.txt", "/a/b.txt"]),
    ("c", "edit {}.py now", ["main", "test"]), ("c", "as @{} says", ["ann", "bob"]),
    ("c", "tag it #{}", ["sad", "happy"]),
    ("c", "ssh to {}.example.org", ["one", "two"]), ("c", "It is {} to eat.", ["unsafe", "safe"]),
    ("c", "there is {} risk", ["zero", "no", "some"]), ("c", "{} of them", ["half", "all", "both"]),
    ("c", "at 5 in the {}", ["morning", "evening"]), ("c", "{}, she", ["Today", "Tomorrow"]),
    ("c", "It was {}5 there", ["–", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("readers", "text", "words"), TURNED)
def test_what_turns_a_statement_round_is_kept(readers: str, text: str, words: list[str]) -> None:
    first, *others = [text.format(word) for word in words]
    for reader in [each for name, each in READERS.items() if name[0] in readers]:
        assert reader(first, first) and not any(reader(first, other) for other in others)


HOSTILE = (
    "so the answer is ", "[", '{"a": [', "[[],", '["', "(", "((1+2)", "1,", "=", "x = y + ", "+\n", "x < y ", "``` ",
    "```\n", "`a", "answer is ", " ", "\n", "Aa ", "a.b", "a@", "/a", "www.", "####", "\\boxed{", "at least ", "5 pm ",
    "½", "Dr. ", "a-", "-1",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_text_and_not_with_its_square(piece: str) -> None:
    text = piece * (8_000 // len(piece))

    def seconds(reader: keeps.Keeps, read: str) -> float:
        begun = time.process_time()
        reader(read, read + "x")
        return time.process_time() - begun

    for reader in READERS.values():
        half, whole = seconds(reader, text[: len(text) // 2]), seconds(reader, text)
        assert whole < 3 * half + 0.2
