"""Attacks on texts: what they change, what they leave, and that the draw depends on seed and id alone."""

import re

import numpy as np
import pytest
from lab.evaluation.small_wordnet import write_wordnet

from caw_lab.evaluation.attacks import AttackSetup, parse_attack
from caw_lab.evaluation.attacks.copy_paste import CopyPaste
from caw_lab.evaluation.attacks.rankers import Ranker, Slot
from caw_lab.evaluation.attacks.wordnet import WordNet
from caw_lab.evaluation.attacks.words import WordD, WordS, WordSContext, draw_count

LONG = "First he buys 3 apples, then 12 dogs.\nThe total is 15.\n\n" * 20
HUMAN = ("A human wrote this answer,\nwith two lines.", "Another human wrote 7 words here, surely.", "Third one.")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> AttackSetup:
    return AttackSetup(wordnet=write_wordnet(tmp_path_factory.mktemp("wordnet")), human=HUMAN)


@pytest.fixture(scope="module")
def words(setup: AttackSetup) -> WordNet:
    return setup.words


@pytest.mark.parametrize("spec", ["word-d:0.2", "word-s:0.2", "copy-paste:0.5x2"])
def test_draw_is_of_seed_and_id(setup: AttackSetup, spec: str) -> None:
    attack = parse_attack(spec, setup)
    one = attack(LONG, "q/1")
    assert attack(LONG, "q/1") == one
    assert attack(LONG, "q/2").text != one.text
    other = AttackSetup(seed=1, wordnet=setup.wordnet, human=HUMAN)
    assert parse_attack(spec, other)(LONG, "q/1").text != one.text
    assert attack("", "q/1").text == "" and attack(" \n", "q/1").edit_rate == 0.0


def test_deletion_rate_and_nesting() -> None:
    total = len(LONG.split())
    low, high = WordD(0.1)(LONG, "q/1"), WordD(0.4)(LONG, "q/1")
    assert low.words == high.words == total == 240
    assert low.edited == 24 and high.edited == 96
    assert len(low.text.split()) == total - 24
    kept_low, kept_high = low.text.split(), high.text.split()
    bare = [w.rstrip(".,;:!?") for w in kept_low]
    at = iter(bare)  # what survives the high rate survives the low one, in order
    assert all(w.rstrip(".,;:!?") in at for w in kept_high)


def test_deletion_keeps_marks_and_lines() -> None:
    for number in range(60):
        out = WordD(0.3)("He has 5 apples, and eats 2.\n\nThe answer is 3.\n", f"q/{number}").text
        assert out.count("\n") >= 1 and out.endswith("\n")
        assert not re.search(r"[ \n]{3,}|\n |^ | [.,]", out), out
        assert ",," not in out and "..\n" not in out
    text = "word, " * 50
    out = WordD(1.0)(text, "q")
    assert out.text == "" and out.edit_rate == 1.0


def test_count_is_right_on_average() -> None:
    rng = np.random.default_rng(0)
    counts = [draw_count(0.1, 7, rng) for _ in range(20_000)]
    assert set(counts) == {0, 1}
    assert abs(np.mean(counts) - 0.7) < 4.4 * (0.7 * 0.3 / 20_000) ** 0.5  # false alarm 1e-5
    assert all(draw_count(0.1, 30, rng) == 3 for _ in range(50))


def test_synonyms_keep_case_and_punctuation(words: WordNet) -> None:
    text = '"Apples," he said: Buy APPLES/dogs (total)! 3rd x2 dog\'s he'
    out = WordS(1.0, words)(text, "q")
    assert re.fullmatch(r'"Pomes," he said: (Purchase|Bribe) POMES/hounds \((sum|add)\)! 3rd x2 dog\'s he', out.text), (
        out.text
    )
    assert (out.edited, out.words) == (5, 10)  # words are counted as for deletion: between white space


def test_synonyms_up_to_what_can_be_replaced(words: WordNet) -> None:
    out = WordS(0.9, words)(LONG, "q")
    assert out.edited == 80 and out.edit_rate == 80 / 240  # buys, apples, dogs, total
    assert not re.search(r"\b(buys|apples|dogs|total)\b", out.text)
    low = WordS(0.1, words)(LONG, "q")
    assert low.edited == 24
    changed = [(a, b, c) for a, b, c in zip(LONG.split(), low.text.split(), out.text.split(), strict=True) if a != b]
    assert len(changed) == 24
    assert all(b == c for _, b, c in changed)  # and by the same words at any rate


class Longest(Ranker):
    name = "longest"

    def __init__(self) -> None:
        self.slots: list[Slot] = []

    def rank(self, slots: list[Slot]) -> list[np.ndarray]:
        self.slots += slots
        return [np.array([len(c) for c in s.candidates], dtype=float) for s in slots]


def test_context_takes_what_the_ranker_likes(words: WordNet) -> None:
    ranker = Longest()
    out = WordSContext(1.0, words, ranker)("Buy the total today.", "q")
    assert out.text == "Purchase the sum today."  # of sum and add, as long, the first
    assert [s.texts() for s in ranker.slots] == [
        ["Purchase the total today.", "Bribe the total today."], ["Buy the sum today.", "Buy the add today."],
    ]  # fmt: skip
    assert WordSContext(1.0, words, ranker, 1)("Buy it", "q").text == "Purchase it"
    picked = WordSContext(0.3, words, Longest())(LONG, "q").text.split()
    plain = WordS(0.3, words)(LONG, "q").text.split()
    assert [a == b for a, b in zip(picked, LONG.split(), strict=True)] == [
        a == b for a, b in zip(plain, LONG.split(), strict=True)
    ]  # the same words, replaced by others


def test_context_is_cut_between_words(words: WordNet) -> None:
    ranker = Longest()
    WordSContext(1.0, words, ranker)("abcdefghi " * 60 + "total" + " jklmnopqr" * 60, "q")
    (slot,) = ranker.slots
    assert set(slot.before.split()) == {"abcdefghi"} and set(slot.after.split()) == {"jklmnopqr"}
    assert 60 < len(slot.before) <= 80 and slot.before.endswith(" ") and slot.after.startswith(" ")


@pytest.mark.parametrize(("rate", "parts"), [(0.25, 1), (0.25, 3), (0.6, 2), (1.0, 4)])
def test_copy_paste(rate: float, parts: int) -> None:
    text = "one deux three\nfour five, six sept eight\nnine ten eleven twelve"
    out = CopyPaste(rate, HUMAN, parts)(text, "q/4")
    assert out.words == len(out.text.split()) == round(12 / rate)
    assert out.edited == out.words - 12
    own = [w for w in out.text.split() if w in text.split()]
    assert own == text.split()  # all of it, in order
    human = {w for t in HUMAN for w in t.split()}
    assert all(w in human for w in out.text.split() if w not in own)
    if parts == 1:
        assert text in out.text  # white space kept


def test_copy_paste_does_not_hide_a_text_in_itself() -> None:
    out = CopyPaste(0.5, HUMAN)(HUMAN[2], "q")
    assert out.text.split().count("Third") == 1
    with pytest.raises(ValueError, match="other than the text itself"):
        CopyPaste(0.5, HUMAN[2:])(HUMAN[2], "q")


def test_bad_specs() -> None:
    for spec, says in (
        ("word-x:0.1", "must be one of word-d, word-s, word-s-context, copy-paste, paraphrase, got 'word-x'"),
        ("word-d", "word-d requires a rate"),
        ("word-d:0", "above 0 and at most 1"),
        ("word-d:nan", "above 0 and at most 1"),
        ("copy-paste:0.25", "requires human texts"),
        ("copy-paste:0.25xthree", "number of parts"),
        ("paraphrase", "requires a model and a key"),
        ("paraphrase:0.3", "takes no strength"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            parse_attack(spec)
