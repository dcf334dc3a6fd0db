"""Repetition of texts, against counts by hand."""

import pytest

from caw_lab.evaluation.metrics.style import style_of


def test_counts_by_hand() -> None:
    found = style_of("The cat, the dog; THE cat!")  # the cat the dog the cat
    assert found.words == 6
    # 3 of 6 words; of 5 pairs "the cat" twice; of 4 triples none twice; of 3 quadruples none before
    assert found.distinct == (0.5, 0.8, 1.0) and found.repeated == 0.0
    loop = style_of("a b a b a b a b")
    assert loop.distinct == (0.25, round(2 / 7, 6), round(2 / 6, 6))
    assert loop.repeated == 0.6, "of five quadruples three stood there before"
    assert style_of("It's one's own").words == 3


@pytest.mark.parametrize("text", ["", "...", "one", "one two three"])
def test_short_texts_repeat_nothing(text: str) -> None:
    found = style_of(text)
    assert found.distinct == (1.0, 1.0, 1.0) and found.repeated == 0.0


def test_distinct_is_of_each_hundred_words() -> None:
    """So a text and the same text with other words behind it have the same share, which falls with length otherwise."""
    first, second = " ".join(f"x{i % 60}" for i in range(100)), " ".join(f"y{i % 40}" for i in range(100))
    assert style_of(first).distinct[0] == 0.6
    assert style_of(f"{first} {second}").distinct[0] == 0.5
    assert style_of(f"{first} {second} and the rest").distinct[0] == 0.5, "a last part that is no whole hundred"
    assert style_of(f"{first} {first}").distinct[0] == 0.6
    # of the whole text: 60 different quadruples, and 3 where the second begins behind x39
    assert style_of(f"{first} {first}").repeated == round(1 - 63 / 197, 6)
