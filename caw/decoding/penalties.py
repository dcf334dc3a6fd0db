"""Bias and penalties of each row: applied to logits before anything else, for greedy texts too.

With l the model's logits, n(t) how often token t was generated so far, and b, r, f, p the row's own numbers:

    l(t) + b(t)                                             logit_bias
    l(t) / r if l(t) >= 0 else l(t) * r                     repetition_penalty, where t is in the prompt or n(t) > 0
    l(t) - f * n(t)                                         frequency_penalty
    l(t) - p                                                presence_penalty, where n(t) > 0

The first two are transformers' `SequenceBiasLogitsProcessor` (of single tokens) and `RepetitionPenaltyLogitsProcessor`,
in its order; the others are vLLM's. How often a token was generated is counted anew at every step, from the tokens of
the text alone, so that drafts, attempts and rows that move need nothing of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from caw import ops
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.record import Rows
from caw.triton_kernels.penalise_logits_ref import penalise_logits_ref

COLUMNS = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass
class Penalties(Rows):
    """Numbers of B rows, written in place.

    wanted: bool [B], rows with anything to do. numbers: float32 [B, 3], as in `COLUMNS`.
    prompts: bool [B, V], tokens of the prompt; [B, 0] where no row may have a repetition penalty.
    bias: float32 [B, V]; [B, 0] where no row may have one.
    """

    wanted: torch.Tensor
    numbers: torch.Tensor
    prompts: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def empty(cls, batch: int, vocab_size: int, limits: RowLimits, device: torch.device) -> "Penalties | None":
        """Make rows without a text; None if no row may have bias or penalties."""
        if not limits.penalised:
            return None
        seen, biased = (vocab_size * int(may) for may in (limits.repetition_penalty, limits.logit_bias))
        return cls(
            wanted=torch.zeros(batch, dtype=torch.bool, device=device),
            numbers=torch.zeros(batch, len(COLUMNS), device=device),
            prompts=torch.zeros(batch, seen, dtype=torch.bool, device=device),
            bias=torch.zeros(batch, biased, device=device),
        )

    def widen(self, vocab_size: int, limits: RowLimits) -> None:
        """Allocate what rows may need within these limits; existing values stay."""
        new = Penalties.empty(self.wanted.shape[0], vocab_size, limits, self.wanted.device)
        for name in ("prompts", "bias"):
            if new is not None and getattr(self, name).shape[1] < getattr(new, name).shape[1]:
                setattr(self, name, getattr(new, name))

    def start(self, rows: torch.Tensor, prompts: Sequence[Sequence[int]], settings: Sequence[RowSettings]) -> None:
        """Begin new texts in `rows` (int64 [R])."""
        device, numbers = self.numbers.device, [[getattr(row, name) for name in COLUMNS] for row in settings]
        self.numbers[rows] = torch.tensor(numbers, dtype=torch.float32, device=device)
        self.wanted[rows] = torch.tensor([row.penalised for row in settings], device=device)
        self.prompts[rows], self.bias[rows] = False, 0.0
        for row, prompt, setting in zip(rows, prompts, settings, strict=True):
            if setting.repetition_penalty != 1:
                self.prompts[row, torch.tensor(list(set(prompt)), device=device)] = True
            if setting.logit_bias:
                ids, biases = zip(*setting.logit_bias, strict=True)
                self.bias[row, torch.tensor(ids, device=device)] = torch.tensor(biases, device=device)

    def apply(
        self, logits: torch.Tensor, tokens: torch.Tensor, active: torch.Tensor, *, sparse: bool, native: bool
    ) -> torch.Tensor:
        """Apply bias and penalties to logits float32 [B, V]; returns the same tensor if there is nothing to do.

        tokens: int64 [B, T], those generated, -1 beyond. active: bool [B]. sparse: first ask whether any row wants it,
        which reads back from the device. native: use the op, else its reference.
        """
        wanted = self.wanted & active
        if sparse and not wanted.any():
            return logits
        op = ops.penalise_logits if native else penalise_logits_ref
        return op(logits, tokens, wanted, self.numbers, self.prompts, self.bias)
