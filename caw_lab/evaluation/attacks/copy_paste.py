"""Copy-paste: insert the text in parts into human text."""

import itertools
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw_lab.evaluation.attacks.base import Attacked, AttackError, NeedsError, RateAttack


@dataclass(frozen=True)
class CopyPaste(RateAttack):
    """Inserts the text into human text, so that it makes up this share of the words of the result.

    The text is cut at white space into `parts` of about as many words each; they are put, in order, between lines of
    human texts. edited: human words. A human text that holds the attacked text, or lies in it, is not used.
    Raises ValueError for a rate outside (0, 1], fewer than one part, and no human texts.
    """

    kind: ClassVar[str] = "copy-paste"
    human: tuple[str, ...] = field(repr=False)
    parts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parts < 1:
            raise ValueError(f"copy-paste requires at least 1 part, got {self.parts}; leave it out for one")
        if not any(text.strip() for text in self.human):
            raise NeedsError("copy-paste requires human texts, got none; give reference answers or --human")

    @property
    def name(self) -> str:
        return super().name + (f"x{self.parts}" if self.parts > 1 else "")

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        words = len(text.split())
        wanted = round(words * (1 - self.rate) / self.rate)
        host = self._human(text.strip(), wanted, rng)
        pieces = _cut(text.strip(), [round(i * words / self.parts) for i in range(self.parts + 1)])
        places = np.sort(rng.integers(0, len(host) + 1, size=len(pieces)))
        out, done = [], 0
        for place, piece in zip(places.tolist(), pieces, strict=True):
            out += [*host[done:place], piece]
            done = place
        return Attacked("\n".join([*out, *host[done:]]), wanted, words + wanted)

    def _human(self, text: str, wanted: int, rng: np.random.Generator) -> list[str]:
        """Return lines of human text, `wanted` words in all, from texts in random order, again if they run out."""
        usable = [t for t in self.human if t.strip() and t.strip() not in text and text not in t]
        if wanted and not usable:
            raise AttackError("copy-paste requires human texts other than the text itself, got none; give more")
        lines: list[str] = []
        while wanted > 0:
            for i in rng.permutation(len(usable)).tolist():
                for line in usable[i].splitlines():
                    taken = line.split()[:wanted]
                    wanted -= len(taken)
                    lines += [" ".join(taken)] if taken else []
                if wanted <= 0:
                    break
        return lines

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "human_texts": len(self.human)}


def _cut(text: str, ends: list[int]) -> list[str]:
    """Split the text before the words with these numbers; white space is dropped at the cuts and kept elsewhere."""
    starts, at = [], 0
    for word in text.split():
        starts.append(text.index(word, at))
        at = starts[-1] + len(word)
    starts.append(len(text))
    pieces = [text[starts[a] : starts[b]].rstrip() for a, b in itertools.pairwise(ends)]
    return [piece for piece in pieces if piece]
