"""What the evaluator sees: the records of positions i-N-..i+N+, sorted, padded and transformed.

One code path for training and decoding. Paper, equation (1) and "Preliminary Experiments" (100 values a position).
Beyond the paper: how much probability each position gives to digits, operators, names, … (`token_classes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from caw.evaluator.token_classes import CLASSES
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.evaluator_step_ref import features_ref, masses_ref
from caw.triton_kernels.op_indices import TRANSFORMS, Transform

VERSION = 1
MAX_PREVIOUS, MAX_NEXT = 3, 3
DECODABLE_PREVIOUS, DECODABLE_NEXT = 2, 1


@dataclass(frozen=True)
class FeatureSpec:
    """The layout of the evaluator's input, stored with its weights and checked before decoding.

    previous, next: N- and N+, how many positions before and after the current one.
    k: probabilities kept per position, sorted descending.
    transform: "raw" probabilities (the paper), "log" of them (floor 1e-10), "gap" = log of the largest minus log of
        each, with the largest itself kept as its log.
    classes: 0, or the number of token classes: then every position also has the log of each class's probability
        (floor 1e-4), behind the values of all positions.
    line_ends: whether the class "line break" is every token with a line break in it or that ends a text, or only those
        of nothing but white space; see `token_classes.class_table`. Needs classes.
    """

    previous: int = 1
    next: int = 1
    k: int = RECORD_SIZE
    transform: Transform = "log"
    classes: int = 0
    version: int = VERSION
    line_ends: bool = False

    def __post_init__(self) -> None:
        for name in ("previous", "next", "k", "classes"):
            if type(getattr(self, name)) is not int:
                raise TypeError(f"{name} must be an integer, got {getattr(self, name)!r}; use the default")
        if self.version != VERSION:
            raise ValueError(f"feature version must be {VERSION}, got {self.version}; retrain the evaluator")
        if not (0 <= self.previous <= MAX_PREVIOUS and 0 <= self.next <= MAX_NEXT):
            raise ValueError(
                f"window must be within ({MAX_PREVIOUS}, {MAX_NEXT}), got ({self.previous}, {self.next}); "
                "use previous=1, next=1"
            )
        if not 1 <= self.k <= RECORD_SIZE:
            raise ValueError(f"k must be in [1, {RECORD_SIZE}], got {self.k}; use {RECORD_SIZE}")
        if self.classes not in (0, len(CLASSES)):
            raise ValueError(f"classes must be 0 or {len(CLASSES)}, got {self.classes}; retrain the evaluator")
        if type(self.line_ends) is not bool:
            raise TypeError(f"line_ends must be True or False, got {self.line_ends!r}; use the default")
        if self.line_ends and not self.classes:
            raise ValueError("line_ends needs token classes, got classes=0; use line_ends=False")
        if self.transform not in TRANSFORMS:
            raise ValueError(f"transform must be raw, log or gap, got {self.transform!r}; use 'log'")

    @property
    def positions(self) -> int:
        return self.previous + 1 + self.next

    @property
    def size(self) -> int:
        """Number of inputs of the network."""
        return self.positions * (self.k + self.classes)

    def check_decodable(self) -> None:
        """Raise ValueError unless the decoder can supply this window and K."""
        if self.previous > DECODABLE_PREVIOUS or self.next > DECODABLE_NEXT or self.k > RECORD_SIZE:
            raise ValueError(
                f"decoding supplies windows up to ({DECODABLE_PREVIOUS}, {DECODABLE_NEXT}) of {RECORD_SIZE} values, "
                f"got ({self.previous}, {self.next}) of {self.k}; train an evaluator with previous=1, next=1"
            )

    def assemble(self, records: Sequence[Record], table: torch.Tensor | None = None) -> torch.Tensor:
        """Features float32 [B, size] of B positions.

        Args:
            records: one of B rows for each position of the window, oldest first; a position that does not exist is a
                record of probability 0 (`Record.empty`).
            table: see `masses`.

        Raises ValueError for another number of records, for too short ones, and for classes without a table.
        """
        if len(records) != self.positions:
            raise ValueError(f"expected {self.positions} records, got {len(records)}; pass one per window position")
        kept = min(record.probs.shape[1] for record in records)
        if kept < self.k:
            raise ValueError(f"expected records of at least {self.k} values, got {kept}; pad them as topk_softmax does")
        values = features_ref([r.probs for r in records], self.k, TRANSFORMS.index(self.transform))
        masses = self.masses(records, table)
        return values if masses is None else torch.cat([values, masses], dim=1)

    def masses(self, records: Sequence[Record], table: torch.Tensor | None) -> torch.Tensor | None:
        """Log of each class's probability at every position, float32 [B, positions * classes]; None without classes.

        Args:
            records: as for `assemble`.
            table: class of every token id, uint8 [V] (`token_classes.class_table`).

        Raises ValueError for classes without a table.
        """
        if not self.classes:
            return None
        if table is None:
            raise ValueError("features of token classes need a table of them, got none; pass Evaluator.token_class")
        parts = [r.probs for r in records], [r.ids for r in records]
        return masses_ref(*parts, table, self.k, self.classes)

    def to_dict(self) -> dict[str, Any]:
        """The layout as it is stored with the weights."""
        return asdict(self)
