"""Inputs of the evaluator: the records of positions i-N-..i+N+, sorted, padded and transformed.

Training and decoding share this code. Paper, equation (1) and "Preliminary Experiments" (100 values per position).
Beyond the paper: the probability of digits, operators, names, … at each position (`token_classes`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from caw.capacity import window_features, window_masses
from caw.evaluator.token_classes import CLASSES
from caw.op_indices import TRANSFORMS, Transform
from caw.record import RECORD_SIZE, Record

VERSION = 1
MAX_PREVIOUS, MAX_NEXT = 3, 3
DECODABLE_PREVIOUS, DECODABLE_NEXT = 2, 1


@dataclass(frozen=True)
class FeatureSpec:
    """The layout of the evaluator's input, stored with its weights and checked before decoding.

    previous, next: N- and N+, number of positions before and after the current one.
    k: number of top probabilities per position, sorted descending.
    transform: "raw" probabilities (the paper), "log" of them (floor 1e-10), "gap" = log of the largest minus log of
        each, and the log of the largest itself.
    classes: 0, or the number of token classes: every position then also has the log of each class's probability (floor
        1e-4), after the values of all positions.
    line_ends: whether the class "line break" includes every token with a line break and every end token, or only tokens
        of pure white space; see `token_classes.class_table`. Requires classes.
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
            raise ValueError("line_ends requires token classes, got classes=0; use line_ends=False")
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
                f"decoding supports windows up to ({DECODABLE_PREVIOUS}, {DECODABLE_NEXT}) of {RECORD_SIZE} values, "
                f"got ({self.previous}, {self.next}) of {self.k}; train an evaluator with previous=1, next=1"
            )

    def assemble(self, records: Sequence[Record], table: torch.Tensor | None = None) -> torch.Tensor:
        """Return features float32 [B, size] of B positions.

        Args:
            records: one of B rows for each position of the window, oldest first; a position that does not exist is a
                record of probability 0 (`Record.empty`).
            table: see `masses`.

        Raises ValueError for a wrong number of records, for records that are too short, and for classes without a
        table.
        """
        if len(records) != self.positions:
            raise ValueError(f"expected {self.positions} records, got {len(records)}; pass one per window position")
        kept = min(record.probs.shape[1] for record in records)
        if kept < self.k:
            raise ValueError(f"expected records of at least {self.k} values, got {kept}; pad them as topk_softmax does")
        values = window_features([r.probs for r in records], self.k, TRANSFORMS.index(self.transform))
        masses = self.masses(records, table)
        return values if masses is None else torch.cat([values, masses], dim=1)

    def masses(self, records: Sequence[Record], table: torch.Tensor | None) -> torch.Tensor | None:
        """Return the log of each class's probability at every position, float32 [B, positions * classes]; None without
        classes.

        Args:
            records: as for `assemble`.
            table: class of every token id, uint8 [V] (`token_classes.class_table`).

        Raises ValueError for classes without a table.
        """
        if not self.classes:
            return None
        if table is None:
            raise ValueError("features of token classes require a class table, got none; pass Evaluator.token_class")
        parts = [r.probs for r in records], [r.ids for r in records]
        return window_masses(*parts, table, self.k, self.classes)

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as stored with the weights."""
        return asdict(self)
