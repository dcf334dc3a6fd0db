"""What copying does to a text is undone, and what looks like it is left alone."""

import textwrap
import time

import pytest

from caw.detection.normalize import STEPS, normalize_text
from caw.detection.readings import readings_of
from caw.detection.repair import plain, repaired

PROSE = (
    "Cities plant trees because shade keeps streets cool, because roots hold the soil, and because people who walk "
    "under leaves walk further. A street without trees is ten degrees hotter on a summer afternoon, which is why the "
    "oldest quarters, whose squares were planted long ago, are where people go when the heat comes.\n\nNobody knows "
    "how many there are, but a count that was made last year by volunteers found more than anybody had expected."
)
CODE = "def f(x):\n    total = 0\n    for each in x:\n        total += each * 2  # a remark\n    return total\n" * 3
LIST = "\n".join(f"{i}. {line}" for i, line in enumerate(textwrap.wrap(" ".join(PROSE.split()), 60), 1))
POEM = "\n".join(
    f"Where {word} the river goes along the silent sea," for word in ("never", "always", "slowly", "often") * 3
)


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        (PROSE.replace(" ", " \u200b"), "invisible characters (zero width space)"),
        (PROSE.replace("ee", "e\u00ade"), "invisible characters (soft hyphen)"),
        ("\ufeff" + PROSE, "1 invisible character (zero width no-break space)"),
        ("\u202a" + PROSE.replace("a", "a\u2066"), "invisible characters (left-to-right isolate, left-to-right embedd"),
        (PROSE.replace("t", "t\ufe0f"), "invisible characters (variation selector-16)"),
        (PROSE.replace("a", "a\u200d\u200c"), "invisible characters (zero width joiner, zero width non-joiner)"),
        (PROSE.replace(" ", "\u00a0"), "special spaces and hyphens (no-break space)"),
        (PROSE.replace(" ", "\u3000"), "special spaces and hyphens (ideographic space)"),
        (PROSE.replace(" ", "&nbsp;"), "HTML entities"),
        (PROSE.replace("e", "&#101;"), "HTML entities"),
        (PROSE.replace("\n", "\r\n"), "line ends of another system"),
        (PROSE.replace("\n", "\u2028"), "line ends of another system"),
        (PROSE.replace("ff", "\ufb00").replace("fi", "\ufb01").replace("A", "\U0001d400"), "styled letter"),
        ("".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in PROSE), "ligatures and styled letters (fullwidth"),
        (PROSE.replace("o", "\u043e").replace("a", "\u0430"), "letters of other alphabets inside Latin words"),
        (PROSE.replace("a street", "\u0430 street").replace("A s", "\u0391 s"), "another alphabet inside a Latin word"),
        ("\n".join("> " + line for line in PROSE.split("\n")), "3 quoted lines"),
        ("\n".join(textwrap.fill(p, 72) for p in PROSE.split("\n")), "wrapped lines"),
        ("\n".join(textwrap.fill(p, 100) for p in PROSE.split("\n")), "wrapped lines"),
        ("\n".join("> " + line for p in PROSE.split("\n") for line in textwrap.wrap(p, 60) or [""]), "quoted lines"),
        (
            PROSE.replace("afternoon", "after-\nnoon").replace("expected", "expec\u00ad\nted"),
            "words parted at line ends",
        ),
        (PROSE.replace(", ", ",  "), "doubled spaces"),
    ],
)
def test_damage_is_undone_and_named(damaged: str, said: str) -> None:
    assert damaged != PROSE
    text, undone = repaired(damaged)
    assert text == PROSE
    assert any(said in each for each in undone), undone


def test_decomposed_letters() -> None:
    assert repaired("cafe\u0301 nai\u0308ve") == ("caf\u00e9 na\u00efve", ("2 decomposed letters",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        PROSE,
        CODE,
        LIST,
        POEM,
        "| a   | b |\n| --- | --- |\n| 1   | 2 |\n| one | two |",
        "> a quotation of one line\n\nand what is said of it",
        "\u2764\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 1\ufe0f\u20e3",  # a heart, a family, a key
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian, with the joiner that it is written with
        "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u3000ABC",  # Chinese, with its own commas and spaces
        "Привет, мир. Это кот.",
        "R&D; AT&T, x &lambda y; a && b",
        "no line end \n",
        " a leading space",
    ],
)
def test_what_was_written_so_stays(text: str) -> None:
    assert repaired(text) == (text, ())


def test_typographic_signs() -> None:
    named = "7 typographic signs (left double quotation mark, right single quotation mark, right double quotation mark"
    assert plain("“It’s” – a—b…½") == ('"It\'s" - a--b...1/2', f"{named}, others)")
    assert plain("as ASCII") == ("as ASCII", "") == plain(plain("as ASCII")[0])


J, TAG, MANIFEST = "\u200d", "\U000e0067", "\ufeff" + "\ufe01\U000e0123" * 40
HOSTILE = {
    "joiners behind a letter": "\u0628" + J * 99_999, "short runs of joiners": ("\u0628" + J * 7) * 12_500,
    "tags": ("\U0001f3f4" + TAG * 999) * 100, "variation selectors": "a" + "\ufe01\U000e0123" * 50_000,
    "marks": "a" + "\u0301\u0327" * 50_000, "short runs of marks": ("a" + "\u0301\u0327" * 14) * 3_500,
    "marks that fall into marks": "\u0f40" + "\u0f73\u0f71\u0327\u0301" * 25_000, "wide spaces": "\u3000" * 100_000,
    "entities": "&#" * 50_000, "quotes": "> a\n>b\nc\n" * 11_000, "hyphens": "a-  " * 25_000, "blanks": " " * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_time_grows_with_the_text_and_not_with_its_square(text: str) -> None:
    def seconds(read: str) -> float:
        begun = time.process_time()
        readings_of(read)
        normalize_text(read, tuple(STEPS))
        return time.process_time() - begun

    half, whole = (min(seconds(part) for _ in range(2)) for part in (text[: len(text) // 2], text))
    assert whole < 3 * half + 0.1


def test_a_hidden_message_is_taken_off_and_a_long_run_of_marks_stays() -> None:
    assert repaired(f"\u2764\ufe0f{MANIFEST} and more") == (
        "\u2764\ufe0f and more",
        ("81 characters of a hidden message",),
    )
    marks = "\u0301\u0327" * 16
    assert repaired(f"e\u0301 a{marks}")[0] == f"\u00e9 a{marks}" == normalize_text(f"e\u0301 a{marks}", ("nfkc",))
