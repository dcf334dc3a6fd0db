"""What a decoder is asked for: each request is one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from caw.decoding.row_settings import RowSettings
from caw.decoding.sampling import stream_id


@dataclass(frozen=True)
class Request:
    """One text.

    ids: of its prompt, at least one. budget: the most new tokens that fit. row: its settings.
    occurrence: how many equal requests came before it, which get other draws when sampling.
    """

    ids: Sequence[int]
    budget: int
    row: RowSettings = field(default_factory=RowSettings)
    occurrence: int = 0

    @property
    def stream(self) -> tuple[int, int]:
        """Of the sampling noise: it depends on the prompt alone, not on the order of different ones."""
        return stream_id(self.ids, self.occurrence)


def requests_for(
    prompts: Sequence[Sequence[int]], budgets: Sequence[int], rows: Sequence[RowSettings]
) -> list[Request]:
    """One request for each prompt; the same prompt with the same settings, given twice, gets two streams."""
    seen: dict[tuple[tuple[int, ...], RowSettings], int] = {}
    requests = []
    for ids, budget, row in zip(prompts, budgets, rows, strict=True):
        occurrence = seen.get((tuple(ids), row), 0)
        seen[tuple(ids), row] = occurrence + 1
        requests.append(Request(ids, budget, row, occurrence))
    return requests
