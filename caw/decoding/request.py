"""Requests to a decoder: each is one text."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.sampling import stream_id
from caw.policies.mark import Mark


@dataclass(frozen=True)
class Request:
    """A request for one text.

    ids: of its prompt, at least one. budget: maximum generated tokens, those of `begun` included. row: its settings,
    with a drawn seed where they have none.
    occurrence: how many equal requests came before it, which get other draws when sampling.
    begun: tokens of the text that an earlier request generated after the same prompt. The text continues as if it had
    never been interrupted: they are contexts, evidence and positions of draws, and count towards the budget.
    spent: nats of its free beginning that `begun` has had; inf = the beginning is over, as of a text of which nobody
    knows.
    open: positions of `begun` at which a mark had a choice (`RowLimits.counts_open`).
    mark: what marks the text, under its own key; None = the plan's, under the key of `row`.
    """

    ids: Sequence[int]
    budget: int
    row: RowSettings = field(default_factory=RowSettings)
    occurrence: int = 0
    begun: tuple[int, ...] = ()
    spent: float = field(default=math.inf, kw_only=True)
    open: int = field(default=0, kw_only=True)
    mark: Mark | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.row.seed is None:
            object.__setattr__(self, "row", replace(self.row, seed=secrets.randbits(63)))

    @property
    def known(self) -> Sequence[int]:
        """Ids that the model reads before the first new token: the prompt and `begun`."""
        return [*self.ids, *self.begun] if self.begun else self.ids

    @property
    def stream(self) -> tuple[int, int]:
        """Stream of the sampling noise: it depends on the prompt alone, not on the order of different ones."""
        return stream_id(self.ids, self.occurrence)


def requests_for(
    prompts: Sequence[Sequence[int]], budgets: Sequence[int], rows: Sequence[RowSettings], mark: Mark | None = None
) -> list[Request]:
    """Make one request for each prompt; the same prompt with the same settings, given twice, gets two streams.

    mark: of all, as in `Request`.
    """
    seen: dict[tuple[tuple[int, ...], RowSettings], int] = {}
    requests = []
    for ids, budget, row in zip(prompts, budgets, rows, strict=True):
        occurrence = seen.get((tuple(ids), row), 0)
        seen[tuple(ids), row] = occurrence + 1
        requests.append(Request(ids, budget, row, occurrence, mark=mark))
    return requests


def limits_of(requests: Sequence[Request], model_ends: Sequence[int]) -> RowLimits:
    """Return the narrowest limits for these requests, at least one."""
    longest = max(len(request.ids) + request.budget for request in requests)
    return RowLimits.of([request.row for request in requests], model_ends, longest)
