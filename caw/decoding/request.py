"""One text: as it is asked of a decoder, and as the host sees it while it is generated."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.sampling import stream_id
from caw.decoding.trace import DraftCounts, SequenceTrace, TokenLogProbs, TokenTrace
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
    """Make a request of each prompt; equal ones with equal settings get two streams. mark: of all, as in `Request`."""
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


@dataclass(eq=False)
class ActiveSequence:
    """A text being decoded: its request, its tokens, why it ended ("eos", "length", "stop", "error" or "").

    tokens: all of the text's, those that an earlier request made (`Request.begun`) first; trace and log_probs are of
    the new ones alone. ends: token ids that end it. error: what was wrong, with no tokens; else empty.
    log_probs: of each token, where the request asks for them.
    Known when it has ended: open, positions at which the mark had a choice (`RowLimits.counts_open`); free, tokens of
    its free beginning; spent, nats of that, inf = it is over.
    """

    index: int
    request: Request
    ends: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)
    trace: SequenceTrace = field(default_factory=SequenceTrace)
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""
    open: int = 0
    free: int = 0
    spent: float = math.inf

    def __post_init__(self) -> None:
        self.tokens = [*self.request.begun, *self.tokens]

    def counting(self, why_no_drafts: str) -> "ActiveSequence":
        """Return itself, with a trace that counts drafts, or says why there are none."""
        self.trace.drafts = DraftCounts(why_not=why_no_drafts)
        return self

    def add(self, token: int, trace: TokenTrace | None) -> None:
        """Append a token, which may end the text; so does reaching the budget."""
        self.tokens.append(token)
        if trace is not None:
            self.trace.append(trace)
        if token in self.ends:
            self.finish_reason = "eos"
        elif len(self.tokens) >= self.request.budget:
            self.finish_reason = "length"

    def stop(self) -> None:
        """End it at the caller's wish, unless it has ended by itself."""
        if self.finish_reason != "eos":
            self.finish_reason = "stop"

    def fail(self, error: str) -> None:
        """End it without tokens."""
        self.withhold("error")
        self.error = error

    def withhold(self, finish_reason: str = "undetected") -> None:
        """Empty it: the text is not returned."""
        self.finish_reason, self.tokens, self.trace, self.log_probs = finish_reason, [], SequenceTrace(), []

    @property
    def visible(self) -> list[int]:
        """The tokens without an end token."""
        return self.tokens[:-1] if self.finish_reason == "eos" else self.tokens

    @property
    def remaining(self) -> int:
        """Number of tokens left in its budget."""
        return 0 if self.finish_reason else self.request.budget - len(self.tokens)
