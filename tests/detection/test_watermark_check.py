"""The check passes every watermark of the library, and catches deliberately broken ones."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from docs.test_examples import WATERMARK

import caw
from caw import prf
from caw.testing import check_watermark
from caw.watermarks import TokenScores
from caw.watermarks.green_list import GreenList


@dataclass(frozen=True)
class Sound(GreenList):
    """Lists seeded by the last two tokens, in either order."""

    window = 2

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.green(prf.context_words(self.secret, context.sort(dim=1).values, tokens), self.gamma)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        found = super().score_tokens(ids)
        return replace(found, evidence=torch.cat([found.evidence[:, :2].sort(dim=1).values, ids[:, None]], dim=1))


@pytest.mark.parametrize(
    "mark",
    [caw.KGW(key=1), caw.KGW(key=2, seeding="selfhash"), caw.Unigram(key=3), caw.EXP(key=4),
     caw.SynthID(key=5, depth=5, ngram_len=3, reading="mean"),
     Sound(key=6), WATERMARK.DiPmark(key=6), caw.KGW(key=7, gamma=0.5, format="lm-watermarking", vocab_size=1000)],
    ids=repr,
)  # fmt: skip
def test_sound_ones_pass(mark: Any) -> None:
    report = check_watermark(mark, keys=12, contexts=16)
    assert report.scores and report.marked < 1e-3 < report.other_key


class Parity(Sound):
    """gamma by the parity of the last token: right on average alone."""

    off = 0.15

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        word = prf.context_words(self.secret, context, tokens)
        odd = context[:, -1:] % 2 == 1
        return torch.where(odd, prf.green(word, self.gamma + self.off), prf.green(word, self.gamma - self.off))

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        return GreenList.score_tokens(self, ids)


class Milder(Parity):
    off = 0.03


class Keyless(Sound):
    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.green(prf.context_words(1, context.sort(dim=1).values, tokens), self.gamma)


class CountsTwice(Sound):
    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        return replace(super().score_tokens(ids), evidence=torch.arange(len(ids))[:, None])


class WrongLadder(Sound):
    def ladder(self, position: Any, max_strength: float) -> Any:
        ladder = super().ladder(position, max_strength)
        return replace(ladder, full=ladder.full / 2)


class OtherLists(Sound):
    """Marks by one list and scores by another."""

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        return Sound(self.secret ^ 1, self.gamma).score_tokens(ids)


class ReadsFurther(Sound):
    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        found = super().score_tokens(ids)
        return replace(found, values=(found.values + ids.cumsum(0) % 2) % 2)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Parity, "in every context"), (Milder, "in every context"), (Keyless, "in every context|a share|by another"),
     (CountsTwice, "at most a share"), (WrongLadder, "argmax of biased logits"), (OtherLists, "found by their key"),
     (ReadsFurther, "must depend on the 2 ids")],
)  # fmt: skip
def test_broken_ones_are_caught(kind: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_watermark(dataclass(frozen=True)(kind)(key=8))
