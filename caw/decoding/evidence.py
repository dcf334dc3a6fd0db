"""Evidence of the texts so far, as a detector would count it, kept on the device.

After every step it equals `Detector.detect_ids` of the ids generated so far, in mode "exact", without weights or with a
table per token id: the same scores by the same code, each piece of evidence counted once, level 0 left out after that.
It is about the ids. A reader may tokenise the text differently, so only a test of the text decides.
"""

from dataclasses import dataclass

import torch

from caw import ops
from caw.ops_ref.evidence_ref import known_ref
from caw.record import Rows

LEVELS = 16  # of weights, see `caw.detection.weights`


@dataclass
class Evidence(Rows):
    """Evidence of B texts, updated in place.

    seen: int64 [B, N + 1, E], evidence that has occurred, the first `distinct` (int64 [B]) rows of each.
    trials: int64 [B, 16], counted tokens of each weight level. score: float64 [B], the weighted sum of their scores.
    standing: float64 [B, 2], z, and the skewness of the null; 0 before anything counted.
    factors: float32 [B], factors of the next token's strength.
    """

    seen: torch.Tensor
    distinct: torch.Tensor
    trials: torch.Tensor
    score: torch.Tensor
    standing: torch.Tensor
    factors: torch.Tensor

    @classmethod
    def empty(cls, batch: int, tokens: int, columns: int, device: torch.device) -> "Evidence":
        """Make evidence of no tokens; tokens: N, maximum of a text. columns: E, numbers in a piece of evidence."""
        return cls(
            seen=torch.zeros(batch, tokens + 1, columns, dtype=torch.int64, device=device),
            distinct=torch.zeros(batch, dtype=torch.int64, device=device),
            trials=torch.zeros(batch, LEVELS, dtype=torch.int64, device=device),
            score=torch.zeros(batch, dtype=torch.float64, device=device),
            standing=torch.zeros(batch, 2, dtype=torch.float64, device=device),
            factors=torch.ones(batch, device=device),
        )

    def start(self, rows: torch.Tensor) -> None:
        """Begin new texts in `rows` (int64 [R])."""
        self.distinct[rows], self.trials[rows], self.score[rows], self.standing[rows] = 0, 0, 0.0, 0.0

    def knows(self, evidence: torch.Tensor) -> torch.Tensor:
        """Tell which pieces of evidence int64 [B, n, E] have occurred in their row's text, bool [B, n]."""
        return known_ref(self.seen, self.distinct, evidence)

    def add(
        self, evidence: torch.Tensor, first: torch.Tensor, level: torch.Tensor | None, values: torch.Tensor,
        moments: tuple[float, float, float],
    ) -> None:  # fmt: skip
        """Add one token of each text: its evidence int64 [B, E], and whether it occurs for the first time, bool [B].

        level: int64 [B], its weight, None = 1. values: float64 [B], its score. moments: of an unmarked token's score.
        """
        ops.count_evidence(
            self.seen, self.distinct, self.trials, self.score, self.standing, evidence, first, level, values, *moments
        )
