"""The reader of WordNet's files, on a small database of the same format."""

from pathlib import Path

import pytest
from lab.evaluation.small_wordnet import write_wordnet

from caw_lab.evaluation.attacks.wordnet import WordNet, inflect


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet.open(write_wordnet(tmp_path_factory.mktemp("wordnet")))


def test_synonyms(words: WordNet) -> None:
    for word, expected in (
        ("apple", ("pome",)),  # no phrases
        ("apples", ("pomes",)),
        ("Apple", ("pome",)),  # case does not matter here
        ("dog", ("hound",)),  # no names
        ("total", ("sum", "add")),  # nouns first
        ("buy", ("purchase", "bribe")),  # commonest sense first
        ("bought", ("purchased", "bribed")),
        ("purchased", ("bought",)),  # irregular forms of what is put in
        ("buying", ("purchasing", "bribing")),
        ("ate", ("consumed",)),
        ("consumes", ("eats",)),
        ("halted", ("stopped",)),
        ("stopping", ("halting",)),
        ("stopped", ("halted",)),
        ("big", ("large",)),  # "large(p)" is written with its place
        ("boxes", ("crates",)),
        ("children", ("kids",)),
        ("quickly", ("fast",)),
        ("lone", ()),
        ("42", ()),
        ("", ()),
    ):
        assert words.synonyms(word) == expected


def test_inflect() -> None:
    for lemma, s, ed, ing in (
        ("buy", "buys", "buyed", "buying"),
        ("carry", "carries", "carried", "carrying"),
        ("chop", "chops", "chopped", "chopping"),
        ("watch", "watches", "watched", "watching"),
        ("pass", "passes", "passed", "passing"),
        ("agree", "agrees", "agreed", "agreeing"),
        ("earnings", "earnings", "earningsed", "earningsing"),
        ("bus", "buses", "bussed", "bussing"),
    ):
        assert [inflect(lemma, form) for form in ("s", "ed", "ing")] == [s, ed, ing]


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    folder = write_wordnet(tmp_path)
    (folder / "data.noun").write_text("x" + (folder / "data.noun").read_text())
    with pytest.raises(ValueError, match="expected a synset at byte"):
        WordNet.open(folder).synonyms("apple")
