"""One text while it is generated, as the host sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from caw.decoding.request import Request
from caw.decoding.trace import DraftCounts, SequenceTrace, TokenLogProbs, TokenTrace


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

    def counting(self, why_no_drafts: str) -> ActiveSequence:
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
        self.finish_reason, self.error, self.tokens, self.trace, self.log_probs = (
            "error",
            error,
            [],
            SequenceTrace(),
            [],
        )

    def withhold(self) -> None:
        """Empty it: the text is not returned."""
        self.finish_reason, self.tokens, self.trace, self.log_probs = "undetected", [], SequenceTrace(), []

    @property
    def visible(self) -> list[int]:
        """The tokens without an end token."""
        return self.tokens[:-1] if self.finish_reason == "eos" else self.tokens

    @property
    def remaining(self) -> int:
        """Number of tokens left in its budget."""
        return 0 if self.finish_reason else self.request.budget - len(self.tokens)
