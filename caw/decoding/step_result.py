"""What one step did, in tensors on the model's device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from caw.decoding.state import DecodeState
from caw.decoding.trace import TokenLogProbs, TokenTrace

ALTERNATIVES = 20  # likeliest tokens of which log-probabilities are kept; the most that OpenAI's interface gives


@dataclass
class LogProbs:
    """What the unmarked model says of the tokens of a step, at temperature 1.

    ids: int64 [B, N], the likeliest tokens, ties to the smaller id; -1 where there are fewer.
    values: float32 [B, 1 + N], nats: of the token emitted, then of those.
    """

    ids: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, state: DecodeState, tokens: torch.Tensor) -> LogProbs:
        """Of tokens int64 [B], chosen from the state's logits; N = ALTERNATIVES."""
        record = state.current
        chosen = state.logits.gather(1, tokens[:, None])
        values = torch.cat([chosen, record.values[:, :ALTERNATIVES]], dim=1) - record.logsumexp[:, None]
        return cls(record.ids[:, :ALTERNATIVES].clone(), values)

    def of_row(self, row: int) -> TokenLogProbs:
        """Those of a row, by its number; reads them from the device."""
        own, *others = self.values[row].tolist()
        ids = self.ids[row].tolist()
        return TokenLogProbs(own, tuple((token, value) for token, value in zip(ids, others, strict=True) if token >= 0))


@dataclass
class StepResult:
    """What one step did; B sequences, int64/float32/bool [B] on the model's device.

    emitted: which sequences got a token. tokens: the token. choice: its index in candidates [B, M] (counts valid), also
    where the step before chose it.
    strength, capacity: float32; capacity is NaN where it was not evaluated.
    broken: bool [B], whether the logits the choice was made from were NaN or infinite, so that its token means nothing.
    forwarded: candidates the forward carried per sequence; packed, the most that one could have. Of tokens decided
        behind drafts those of the forward that carried the drafts.
    log_probs: None where no text may ask for them.
    """

    emitted: torch.Tensor
    tokens: torch.Tensor
    choice: torch.Tensor
    candidates: torch.Tensor
    counts: torch.Tensor
    strength: torch.Tensor
    capacity: torch.Tensor
    broken: torch.Tensor
    forwarded: int
    log_probs: LogProbs | None = None

    def token_trace(self) -> Callable[[int], TokenTrace]:
        """What the step did in a row, by its number; reads everything from the device at once."""
        tokens, capacity, strength = self.tokens.tolist(), self.capacity.tolist(), self.strength.tolist()
        counts, choice, candidates = self.counts.tolist(), self.choice.tolist(), self.candidates.tolist()

        def of_row(row: int) -> TokenTrace:
            reachable = tuple(candidates[row][: counts[row]])
            return TokenTrace(tokens[row], capacity[row], strength[row], reachable, choice[row])

        return of_row
