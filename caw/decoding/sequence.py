"""One text in the making, as the host sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from caw.decoding.trace import SequenceTrace, TokenTrace


@dataclass(eq=False)
class ActiveSequence:
    """A sequence being decoded: which prompt, what came out, why it ended ("eos", "length", "stop", "error" or "").

    error: what was wrong, with no tokens; else empty.
    """

    index: int
    budget: int
    tokens: list[int] = field(default_factory=list)
    trace: SequenceTrace = field(default_factory=SequenceTrace)
    finish_reason: str = ""
    error: str = ""

    def add(self, token: int, trace: TokenTrace | None, *, ended: bool) -> None:
        """Append a token, which may end the text; so does reaching the budget."""
        self.tokens.append(token)
        if trace is not None:
            self.trace.append(trace)
        if ended:
            self.finish_reason = "eos"
        elif len(self.tokens) >= self.budget:
            self.finish_reason = "length"

    def stop(self) -> None:
        """The caller has seen enough; a text that ended by itself did so."""
        if self.finish_reason != "eos":
            self.finish_reason = "stop"

    def fail(self, error: str) -> None:
        """End it without tokens."""
        self.finish_reason, self.error, self.tokens, self.trace = "error", error, [], SequenceTrace()

    @property
    def lacking(self) -> int:
        """Tokens it may still get."""
        return 0 if self.finish_reason else self.budget - len(self.tokens)
