"""Words deleted (Word-D) or replaced; punctuation around them stays.

Word-S takes any synonym, Word-S-Context the one that fits its surroundings best, as a ranker tells.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw_lab.evaluation.attacks.base import Attacked, RateAttack
from caw_lab.evaluation.attacks.rankers import Ranker, Slot
from caw_lab.evaluation.attacks.wordnet import WordNet

# letters only, not part of a number, a name with digits or a contraction
PLAIN_WORD = re.compile(r"(?<![\w'’])[^\W\d_]+(?![\w'’])")
# never replaced: WordNet knows "he" as helium, "in" as an inch and "a" as a vitamin
_FUNCTION_WORDS = """
a about above after again against all am an and any are as at be because been before being below between both
but by can cannot could did do does doing down during each either every few for from further had has have having he
her here hers herself him himself his how i if in into is it its itself just may me might more most must my myself
neither no nor not of off on once only or other our ours ourselves out over own per same shall she should so some
such than that the their theirs them themselves then there these they this those though through thus to too under
until unless up upon us very was we were what when where whether which while who whom whose why will with within
without would yet you your yours yourself yourselves
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def draw_count(rate: float, words: int, rng: np.random.Generator) -> int:
    """Return how many words to change: rate * words, randomly rounded so that short texts get it on average."""
    wanted = rate * words
    whole = math.floor(wanted + 1e-9)
    return whole + int(rng.random() < wanted - whole - 1e-9)


GAP_AND_WORD = re.compile(r"(\s*)(\S+)")
SENTENCE_MARKS = ".,;:!?"


@dataclass(frozen=True)
class WordD(RateAttack):
    """Deletes this share of the words (parts between white space); .,;:!? behind them and line breaks stay."""

    kind: ClassVar[str] = "word-d"

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        parts = GAP_AND_WORD.findall(text)
        order = rng.permutation(len(parts))
        gone = set(order[: draw_count(self.rate, len(parts), rng)].tolist())
        out, pending = "", ""
        for i, (gap, word) in enumerate(parts):
            if "\n" not in pending:  # of two gaps that meet, the one with a line break stays
                pending = gap
            if i in gone:
                marks = word[len(word.rstrip(SENTENCE_MARKS)) :]
                if marks != word and out and out[-1] not in SENTENCE_MARKS:
                    out += marks
            else:
                out += (pending if out else parts[0][0]) + word
                pending = ""
        return Attacked(out + text[len(text.rstrip()) :] if out else "", len(gone), len(parts))


@dataclass(frozen=True)
class Word:
    """text[start:end], a plain word of letters."""

    start: int
    end: int
    text: str


def plain_words(text: str) -> list[Word]:
    """Return words of letters that are no function words: "apples" in '"apples,"', two in "apples/pears"."""
    found = (Word(m.start(), m.end(), m.group()) for m in PLAIN_WORD.finditer(text))
    return [word for word in found if word.text.lower() not in FUNCTION_WORDS]


def keep_case(original: str, substitute: str) -> str:
    """Return the substitute in the original's case: unchanged, Capitalised or ALL CAPITALS."""
    if len(original) > 1 and original.isupper():
        return substitute.upper()
    return substitute[:1].upper() + substitute[1:] if original[:1].isupper() else substitute


def replace_words(text: str, substitutes: dict[Word, str]) -> str:
    """Return the text with these words replaced and everything else unchanged."""
    parts, done = [], 0
    for word in sorted(substitutes, key=lambda w: w.start):
        parts += [text[done : word.start], keep_case(word.text, substitutes[word])]
        done = word.end
    return "".join([*parts, text[done:]])


@dataclass(frozen=True)
class WordS(RateAttack):
    """Replaces this share of the words by random synonyms of any sense; numbers, names and some others stay."""

    kind: ClassVar[str] = "word-s"
    wordnet: WordNet = field(repr=False)

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        candidates = {w: s for w in plain_words(text) if (s := self.wordnet.synonyms(w.text))}
        words, total = list(candidates), len(text.split())
        order = rng.permutation(len(words))
        # one draw for each word, used or not, so that the rate does not change what replaces a word
        picks = rng.random(len(words))
        chosen = sorted(order[: draw_count(self.rate, total, rng)].tolist())
        substitutes = self._choose(text, [words[i] for i in chosen], candidates, picks[chosen])
        return Attacked(replace_words(text, substitutes), len(substitutes), total)

    def _choose(
        self, text: str, words: Sequence[Word], candidates: dict[Word, tuple[str, ...]], picks: np.ndarray
    ) -> dict[Word, str]:
        """A substitute for each word; `picks` are uniform draws in [0, 1)."""
        return {w: candidates[w][int(p * len(candidates[w]))] for w, p in zip(words, picks.tolist(), strict=True)}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "wordnet_sha256": self.wordnet.sha256}


CONTEXT = 80  # characters on each side, cut at white space: what a ranker reads


@dataclass(frozen=True)
class WordSContext(WordS):
    """Replaces this share of the words by the synonym, of at most `limit`, that ranks best in the unchanged text."""

    kind: ClassVar[str] = "word-s-context"
    stream: ClassVar[str] = "word-s"
    ranker: Ranker = field(repr=False)
    limit: int = 6

    def _choose(
        self, text: str, words: Sequence[Word], candidates: dict[Word, tuple[str, ...]], picks: np.ndarray
    ) -> dict[Word, str]:
        slots = [self._slot(text, w, candidates[w][: self.limit]) for w in words]
        scores = self.ranker.rank(slots)
        return {w: s.candidates[int(np.argmax(v))] for w, s, v in zip(words, slots, scores, strict=True)}

    @staticmethod
    def _slot(text: str, word: Word, candidates: tuple[str, ...]) -> Slot:
        begin, end = max(0, word.start - CONTEXT), min(len(text), word.end + CONTEXT)
        before, after = text[begin : word.start], text[word.end : end]
        if begin:
            before = re.sub(r"^\S*\s+", "", before)
        if end < len(text):
            after = re.sub(r"\s+\S*$", "", after)
        return Slot(before, word.text, after, tuple(keep_case(word.text, c) for c in candidates))

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "ranker": self.ranker.name}
