"""What a decoder has to be able to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits


@dataclass(frozen=True)
class Workload:
    """batch: texts at once. capacity: tokens (prompt + new) of the longest.

    limits: how far the texts may differ; None = all are as the settings of the call say.
    """

    batch: int
    capacity: int
    limits: RowLimits | None = None

    @classmethod
    def of(cls, requests: Sequence[Request], most: int, model_ends: Sequence[int]) -> Workload:
        """Of these texts, at least one, up to `most` of them at once."""
        longest = max(len(request.ids) + request.budget for request in requests)
        limits = RowLimits.of([request.row for request in requests], model_ends)
        return cls(min(most, len(requests)), longest, limits)
