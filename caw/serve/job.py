"""Job: one text for the engine to generate, and the news of its progress."""

from collections.abc import Callable
from dataclasses import dataclass

from caw.decoding.request import ActiveSequence, Request
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import TokenLogProbs
from caw.detectable.attempts import Attempts
from caw.detectable.receipts import Receipt
from caw.serve.grammars import Grammar
from caw.serve.thinking import Thinking


@dataclass(frozen=True)
class Token:
    """A new token, with the unmarked model's log-probabilities if requested."""

    id: int
    log_probs: TokenLogProbs | None


@dataclass(frozen=True)
class Done:
    """The text is finished. receipt: result of its test, or None."""

    sequence: ActiveSequence
    receipt: Receipt | None


@dataclass(frozen=True)
class Failed:
    """The text cannot be finished. reason: one sentence for the client. status: HTTP status if nothing was sent yet."""

    reason: str
    status: int = 500


News = Token | Done | Failed


@dataclass(eq=False)
class Job:
    """A text in progress.

    request: for the decoder. stops: of its text. streams: whether to report every token, or only the end. tested:
    creates the tests and retries of the text; None = no test. exempt: whether a finished text needs none. thinking:
    created for each attempt, follows its unmarked sections; None = everything is marked. grammar: created for each
    attempt, restricts the text; None = anything. listen: called in the event loop with each piece of news, in order.
    cancelled: set by `Engine.cancel`; no more news follows. over: set once it has ended, however many of its sequences
    are still decoded. tenant: for fair scheduling.
    """

    request: Request
    stops: StopStrings
    streams: bool
    listen: Callable[[News], None]
    tested: Callable[[], Attempts] | None = None
    exempt: Callable[[ActiveSequence], bool] | None = None
    thinking: Callable[[], Thinking] | None = None
    grammar: Callable[[], Grammar] | None = None
    tenant: str = ""
    cancelled: bool = False
    over: bool = False
