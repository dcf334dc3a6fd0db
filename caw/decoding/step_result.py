"""What one step did, in tensors on the model's device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from caw.decoding.trace import TokenTrace


@dataclass
class StepResult:
    """What one step did; B sequences, int64/float32/bool [B] on the model's device.

    emitted: which sequences got a token. tokens: the token. choice: its index in candidates [B, M] (counts valid), also
    where the step before chose it.
    strength, capacity: float32; capacity is NaN where it was not evaluated.
    broken: bool [B], whether the logits the choice was made from were NaN or infinite, so that its token means nothing.
    forwarded: candidates the forward carried per sequence, or, packed, of the sequence with most of them.
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

    def token_trace(self) -> Callable[[int], TokenTrace]:
        """What the step did in a row, by its number; reads everything from the device at once."""
        tokens, capacity, strength = self.tokens.tolist(), self.capacity.tolist(), self.strength.tolist()
        counts, choice, candidates = self.counts.tolist(), self.choice.tolist(), self.candidates.tolist()

        def of_row(row: int) -> TokenTrace:
            reachable = tuple(candidates[row][: counts[row]])
            return TokenTrace(tokens[row], capacity[row], strength[row], reachable, choice[row])

        return of_row
