"""What a splice must not break."""

import pytest

from caw.detectable.damage import broken, damaged, disordered
from caw.detectable.splicing import Patch

pytestmark = pytest.mark.every_case


@pytest.mark.parametrize("old, new, what", [
    ("a (b) c", "a (b c", "bracket of ()"), ("a (b) c", "a b) c", "bracket of ()"),
    ("a (b) c", "a [b) c", "bracket of"), ("f[0]", "f[0", "bracket of []"), ("a (b c", "d (b c", ""),
    ("say “a” now", "say “a now", "bracket of “”"), ("a **b** c", "a **b c", "** without"),
    ('say "a"', 'say "a', '" without'), ("run `a` now", "run `a now", "` without"),
    ("so $x$ is", "so $x is", "$ without"), ("it costs $5", "it costs 5 dollars", ""),
    ("a 'b' c, don't", "a 'b c, don't", "' without"), ("it is Ann's", "it's Ann's", ""),
    ("<b>a</b> c", "<b>a c", "<b> without"), ("a<br>b", "a<br>b<br>c", ""),
    ("\\begin{a} b \\end{a}", "\\begin{a} b", "<a> without"), ("to the end", "to the the end", "a word written twice"),
    ("to the end", "to the, the end", "a word written twice"),
    ("I don't know", "I don't don't know", "a word written twice"), ("to The the end", "of the the end", ""),
    ("the the end", "the end of of it", "a word written twice"), ("it is like it. I", "it is like it. It", ""),
    ("1 1 1", "1 1 1 1", ""), ("one of the men", "one of the of the men", "words written twice"),
    ("so, then", "so,, then", "punctuation written twice"), ("4.\n5. b", "4..\n5. b", "punctuation written twice"),
    ("and ... so", "and so ... on", ""), ("a word, then", "a word , then", "a space before punctuation"),
    ("in (1881)", "in  (1881)", "two spaces"), ("(1943)\n2", "(1943),\n2", "a comma at the end of a line"),
    ("(1943)\n2", "(1943) \n2", "two spaces"), ("a.\nShe has", "a.\n She has", "a line that begins with a space"),
    ("She has", " She has", "a line that begins with a space"),
    ("8 cups.\nThen", "8 cups\nThen", "a line without its stop"),
    ("is 8.\nShe goes", "is 8.\nand goes", "begins small"), ("so 48 * 2 is", "so 48 *2 is", "a sign with a space"),
    ("so 48*2 is", "so 48 * 2 is", ""), ("5 pairs of shorts", "5 pairs of_shorts", "words joined"),
    ("is $35 now", "is \\$35 now", "a sign behind a backslash"), ("ein Haus", "ein H\ufffdus", "half a character"),
    ("loss of life and property", "loss of life\u548c property", "letters of another script"),
    ("left in her budget", "left in \u5979 budget", "letters of another script"),
    ("He left. The man", "He left. the man", "begins small"), ("1. apples\n2. pears", "1. apples\n2. plums", ""),
    ("fruit, e.g. pears", "fruits, e.g. pears", ""), ("| a | b |\n| c | d |", "| a | b |\n| c d |", "a table row"),
])  # fmt: skip
def test_what_splicing_breaks(old: str, new: str, what: str) -> None:
    assert what in damaged(old, new) and bool(damaged(old, new)) == bool(what)
    assert not damaged(old, old) and not damaged(new, new)


def test_numbers_of_a_list_follow_each_other() -> None:
    old = "1. a\n2. b\n3. c\n\n1. d\n"
    assert not disordered(old, old.replace("b", "e"))
    assert disordered(old, old.replace("2.", "4.")) and disordered(old, old.replace("2. b\n", ""))
    assert not disordered("3. a\n1. b", "2. a\n1. b")


WORDS = ["He", " read", " from", " the", "books", " books", ".", ",", " Then", " it", " under", "stand", "stood", "5"]


def text_of(tokens: list[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


@pytest.mark.parametrize(
    "old, patch, what",
    [
        ([0, 1, 2, 3, 5, 6], Patch(3, 5, (4,)), "glued"),  # frombooks
        ([0, 1, 2, 3, 5, 6], Patch(3, 5, (5,)), ""),
        ([0, 1, 10, 11, 6], Patch(3, 4, (12,)), ""),  # understand, understood
        ([0, 1, 5, 6, 8], Patch(4, 5, (4,)), "glued"),  # ".books"
        ([0, 1, 5, 6, 8], Patch(3, 4, (7,)), ""),
        ([0, 1, 2, 3, 5, 6], Patch(4, 5, (13,)), "glued"),  # the5
    ],
)
def test_words_are_not_glued_to_those_before(old: list[int], patch: Patch, what: str) -> None:
    found = broken(old, [patch], text_of)
    assert what in found and bool(found) == bool(what)


def test_each_patch_is_read_with_its_neighbours() -> None:
    """Two patches that are fine alone double a word together, and a fault elsewhere makes no room for it."""
    old = [0, 1, 2, 3, 5, *[1, 2] * 10, 3, 3, 5]
    ours, theirs, mended = Patch(1, 2, (3,)), Patch(2, 3, (3, 9)), Patch(26, 27, (9,))
    assert text_of(old[25:27]) == " the the"
    for patches in ([ours], [theirs], [mended], [ours, mended]):
        assert not broken(old, patches, text_of)
    assert (
        broken(old, [theirs, ours], text_of) == broken(old, [ours, theirs, mended], text_of) == "a word written twice"
    )


def test_scripts_without_spaces_are_never_glued() -> None:
    assert not broken([0, 1], [Patch(1, 2, (2,))], lambda tokens: "".join("中，文"[token] for token in tokens))
