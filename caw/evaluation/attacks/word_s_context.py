"""Word-S-Context: random words are replaced by the WordNet synonym that fits the context best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw.evaluation.attacks.rankers import Ranker, Slot
from caw.evaluation.attacks.word_s import WordS
from caw.evaluation.attacks.words import Word, keep_case

CONTEXT = 80  # characters on each side, cut at white space: what a ranker reads


@dataclass(frozen=True)
class WordSContext(WordS):
    """Replaces this share of the words, each by the synonym that the ranker scores highest in its place.

    Every substitute is a synonym; a masked model alone might write the word itself, a part of a word, or its opposite.
    All words are ranked in the unchanged text. Each has at most `limit` candidates, of its commonest senses.
    """

    kind: ClassVar[str] = "word-s-context"
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
