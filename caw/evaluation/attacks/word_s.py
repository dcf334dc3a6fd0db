"""Word-S: random words are replaced by WordNet synonyms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw.evaluation.attacks.base import Attacked, RateAttack, draw_count
from caw.evaluation.attacks.wordnet import WordNet
from caw.evaluation.attacks.words import Word, count_words, plain_words, replace_words


@dataclass(frozen=True)
class WordS(RateAttack):
    """Replaces this share of the words, each by a random synonym of any sense.

    Numbers, names, function words and words without a one-word synonym cannot be replaced. Where the rate asks for more
    words than can be, all that can be are replaced; the edit rate says how many.
    """

    kind: ClassVar[str] = "word-s"
    stream: ClassVar[str] = "word-s"
    wordnet: WordNet = field(repr=False)

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        candidates = {w: s for w in plain_words(text) if (s := self.wordnet.synonyms(w.text))}
        words, total = list(candidates), count_words(text)
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
