"""One text that a server makes: what is asked for, and what is heard of it while it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import TokenLogProbs
from caw.found.attempts import FoundTexts
from caw.found.receipts import Receipt
from caw.serve.grammars import Grammar
from caw.serve.thinking import Thinking


@dataclass(frozen=True)
class Token:
    """A new token, with what the unmarked model says of it where that was asked for."""

    id: int
    log_probs: TokenLogProbs | None


@dataclass(frozen=True)
class Done:
    """The text is finished. receipt: what its test said, None without one."""

    sequence: ActiveSequence
    receipt: Receipt | None


@dataclass(frozen=True)
class Failed:
    """The text cannot be finished. reason: one sentence for the client. status: of HTTP, where nothing was sent yet."""

    reason: str
    status: int = 500


News = Token | Done | Failed


@dataclass(eq=False)
class Job:
    """A text in the making.

    request: for the decoder. stops: of its text. streams: whether each token is heard of, or only the end.
    tested: how the finished text is tested and made again; None = it is not.
    thinking: made anew for each attempt, follows it through its unmarked thinking section; None = all is marked alike.
    grammar: made anew for each attempt, says what the text may go on with; None = anything.
    listen: called in the event loop with each piece of news, in order. cancelled: set by `Engine.cancel`; nothing more
    is heard then. tenant: whose it is; tenants take turns.
    """

    request: Request
    stops: StopStrings
    streams: bool
    listen: Callable[[News], None]
    tested: Callable[[], FoundTexts] | None = None
    thinking: Callable[[], Thinking] | None = None
    grammar: Callable[[], Grammar] | None = None
    tenant: str = ""
    cancelled: bool = False
