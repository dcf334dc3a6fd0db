"""A custom watermark: DiPmark, drawn text at no cost in quality (Wu et al. 2024, arXiv 2310.07710)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import caw
from caw import prf
from caw.checks import require_int, require_number
from caw.ladder import Ladder, first_of
from caw.watermarks import Position, TokenScores, Watermark
from caw.watermarks.keys import derive_key


def shift(logits: torch.Tensor, order: torch.Tensor, alpha: float) -> torch.Tensor:
    """What to add to logits [B, V] to move probability to the end of a shuffle int64 [B, V], float64 [B, V].

    Of the probability F up to a place, max(F - alpha, 0) + max(F - 1 + alpha, 0) is left there. A shuffle is as likely
    as its reverse, so over shuffles every token keeps its probability.
    """
    probs = logits.double().softmax(dim=1).gather(1, order)
    upto = probs.cumsum(dim=1)
    left = [(upto - at).clamp(min=0) - (upto - probs - at).clamp(min=0) for at in (alpha, 1 - alpha)]
    ratio = torch.log((left[0] + left[1]) / probs).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    return torch.empty_like(ratio).scatter_(1, order, ratio)


@dataclass(frozen=True)
class DiPmark(Watermark):
    """Each context shuffles the vocabulary and moves probability to the second half of the shuffle.

    alpha: in [0, 1/2], how much. context_width: number of generated tokens in a context. A strength is the share of the
    positions that are marked.
    """

    alpha: float = 0.45
    context_width: int = 4

    name = "dipmark"
    rule, full = "scale", 1.0  # a strength above a candidate's `needs` chooses it
    null, null_moments, null_third = "binomial", (0.5, 0.25), 0.0  # a token is in the second half or not
    deduplicates = True  # a shuffle that came twice would favour the same tokens twice
    marks_ends = True  # over keys a text ends where the model ends it

    def validate(self) -> None:
        """Refuse what is out of range, by name."""
        require_number("alpha", self.alpha, 0, 0.5, closed=True)
        require_int("context_width", self.context_width, 1, 64)

    @property
    def window(self) -> int:
        """Tokens of context that decoder and detector pass in."""
        return self.context_width

    def ladder(self, position: Position, max_strength: float) -> Ladder:
        """The token that the sampler draws from the model's probabilities, and the one it draws from the moved ones."""
        words = prf.vocabulary_words(self._key, position.context, position.scores.shape[1])
        logits = position.scores if position.warped is None else position.warped  # without the sampler's noise
        scores = position.scores.double() + shift(logits, words.argsort(dim=1, stable=True), self.alpha)
        marked = first_of(scores, torch.arange(scores.shape[1], device=scores.device).expand_as(scores))
        two = torch.stack([position.record.ids[:, 0], marked], dim=1)
        share = prf.uniform(prf.context_words(self._key, position.context, torch.full_like(two[:, :1], -1)))
        needs = torch.cat([torch.full_like(share, -torch.inf), share], dim=1).float()
        other = (two[:, 1] != two[:, 0]) & (needs[:, 1] < max_strength)
        candidates = torch.where(other[:, None], two, two[:, :1])
        return Ladder(candidates, needs, 1 + other.long(), self.rule, self.full)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Every token of one text, int64 [n], from the text alone: 1 in the second half of its context's shuffle."""
        contexts, tokens = self.contexts(ids), ids[:, None]
        words = prf.context_words(self._key, contexts, tokens)[:, 0]
        # the same token behind the same context again is the same evidence: it counts once
        evidence = torch.cat([contexts, tokens], dim=1)
        return TokenScores((words >= 1 << 31).double(), evidence, torch.ones_like(ids, dtype=torch.bool))

    def placed(self, device: torch.device) -> DiPmark:
        """A CUDA graph can capture the ladder: it runs on tensors of the device alone, and reads nothing back."""
        return self

    @property
    def _key(self) -> int:
        """A key of its own: other watermarks under the user's key say nothing about these shuffles."""
        return derive_key(self.secret, b"example/dipmark")


def main() -> None:
    """Mark a text and detect the mark."""
    model, tokenizer = caw.load_model("smollm2-135m")
    watermark = DiPmark(key=42)
    prompt = "Why do we sleep?"
    out = caw.generate(model, tokenizer, prompt, watermark=watermark, do_sample=True, chat=True)
    print(out.texts[0])
    print("with the key:   ", caw.detect(out.texts[0], tokenizer, watermark).message)
    other = DiPmark(key=43)
    print("with another:   ", caw.detect(out.texts[0], tokenizer, other).message)


if __name__ == "__main__":
    main()
