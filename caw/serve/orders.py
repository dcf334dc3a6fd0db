"""Order: one request in progress: its texts, their receipts, and the pieces for the client.

A receipt is begun, durably, before a text is generated, and closed before its client learns that it is complete. If a
receipt cannot be closed, nothing more is sent.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caw.decoding.request import ActiveSequence
from caw.defaults import FREE_TOKENS
from caw.detectable.receipts import text_digest
from caw.serve.beginnings import Beginnings
from caw.serve.contracts import Begun, Closed, Ending, ReceiptHandle
from caw.serve.engine import Engine
from caw.serve.errors import ApiError
from caw.serve.job import Done, Failed, Job, News, Token
from caw.serve.log_lines import LogLines
from caw.serve.marking import Marking
from caw.serve.offers import Offer
from caw.serve.thinking import answer_of
from caw.serve.tools import Calls
from caw.serve.unfolding import Unfolding

LOG = logging.getLogger("caw.serve")
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
Threaded = Callable[..., Awaitable[Any]]  # runs a function that may wait in another thread


@dataclass(eq=False)
class TextOrder:
    """One text of a request: its job, its receipt, and what was sent.

    reached: the p-value of what was sent, None if unmarked. tokens: number of new ones. proof: of the finished text,
    for its continuation; None = not allowed. steered: whether a client's bias favoured tokens. letters: characters
    whose log-probabilities were sent. closing: of its receipt, once started. marked: whether that calls it marked.
    """

    job: Job
    begun: Begun
    handle: ReceiptHandle
    unfolding: Unfolding
    reached: Callable[[str], float] | None = None
    proof: Callable[[Done], str] | None = None
    steered: bool = False
    tokens: int = 0
    letters: int = 0
    done: Done | None = None
    closing: asyncio.Future[None] | None = None
    marked: bool = False

    @property
    def begun_tokens(self) -> int:
        """Number of the text's tokens from an earlier request."""
        return len(self.job.request.begun)

    @property
    def unmarked(self) -> int:
        """Number of tokens sent of its free beginning: known at its end; until then, as many as it may have."""
        return self.done.sequence.free if self.done else min(self.tokens, self.beginning)

    @property
    def beginning(self) -> int:
        """Most tokens of its free beginning."""
        row = self.job.request.row
        return FREE_TOKENS if row.begins and row.do_sample else 0

    def carries(self, marking: Marking, p_value: float | None) -> bool:
        """Return whether the text may be called marked, if it is finished and has this p-value."""
        if self.done is None:
            return False
        sequence = self.done.sequence
        return marking.carried(len(sequence.visible), sequence.open, p_value, steered=self.steered)


@dataclass(frozen=True)
class Piece:
    """More of a text. choice: its number. finish: finish reason, "" until the end.

    At the end: receipt, its id; marked, whether it is; continuation, its token, "" = none; manifest, of the text up to
    here, b"" = none; calls: read from the text.
    """

    choice: int
    text: str
    tokens: Sequence[Token]
    finish: str
    receipt: str
    marked: bool = False
    continuation: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    manifest: bytes = b""


@dataclass(eq=False)
class Order:
    """A request whose texts are being generated.

    id, created: for the client. stream: whether to send pieces as they come. alternatives: as in the request.
    prompt_tokens: of all prompts together. news: of its jobs, with their numbers. register: contains the order until
    all of its receipts are closed. beginnings: counts its tenant's. calls: the functions that its texts call or may
    call, None = none. lines: of the log. sketch: of a text for its receipt, None = without. added: returns a
    text's manifest and what is put behind the text, None = nothing ever.
    """

    id: str
    created: int
    model: str
    stream: bool
    alternatives: int | None
    marking: Marking
    prompt_tokens: int
    engine: Engine
    threaded: Threaded
    news: asyncio.Queue[tuple[int, News]]
    register: "set[Order]" = field(repr=False)
    beginnings: Beginnings = field(repr=False)
    calls: Calls | Offer | None = None
    lines: LogLines = field(default_factory=lambda: LogLines(LOG), repr=False)
    sketch: Callable[[str], bytes] | None = None
    added: Callable[[TextOrder], tuple[bytes, str]] | None = None
    texts: list[TextOrder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.register.add(self)

    @property
    def completion_tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    def add(self, text: TextOrder) -> None:
        """Add a text, whose receipt is begun."""
        self.texts.append(text)
        self.beginnings.add(text.job.tenant, text.beginning, 0)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield everything for the client; a text that is not streamed is one piece, after all are done.

        Raises ApiError if a text cannot be finished or must not be sent.
        """
        left = len(self.texts)
        while left:
            for choice, news in (await self._next()).items():
                text = self.texts[choice]
                tokens = [one for one in news if isinstance(one, Token)]
                more = text.unfolding.add([one.id for one in tokens]) if tokens else ""
                if isinstance(news[-1], Failed):
                    raise ApiError(news[-1].status, news[-1].reason)
                text.tokens += len(tokens)
                if isinstance(news[-1], Done):
                    text.done, left = news[-1], left - 1
                    if self.stream:
                        yield await self._finish(choice, more, tokens)
                elif more or (tokens and self.alternatives is not None):
                    yield Piece(choice, more, tokens, "", "")
        if not self.stream:
            for choice in range(len(self.texts)):
                self._check(self.texts[choice])
            for choice in range(len(self.texts)):
                yield await self._finish(choice, "", [])

    async def _next(self) -> dict[int, list[News]]:
        """Return all available news, at least one, by the number of the text."""
        first = [await self.news.get()]
        while not self.news.empty():
            first.append(self.news.get_nowait())
        by_choice: dict[int, list[News]] = {}
        for choice, news in first:
            by_choice.setdefault(choice, []).append(news)
        return by_choice

    async def _finish(self, choice: int, more: str, tokens: Sequence[Token]) -> Piece:
        """Return the last piece of a text, once its receipt is closed."""
        text = self.texts[choice]
        done = text.done
        assert done is not None
        self._check(text)
        sequence = done.sequence
        if not text.job.streams:
            new = sequence.tokens[text.begun_tokens :]
            text.tokens = len(new)
            known = dict(enumerate(sequence.log_probs))
            tokens = [Token(token, known.get(place)) for place, token in enumerate(new)]
        if sequence.finish_reason == "eos":
            tokens = [one for one in tokens if one.id not in sequence.ends]
        rest = text.unfolding.finish(sequence.visible)
        finish = REASONS[sequence.finish_reason]
        try:
            await self._close(text, "complete", finish)
        except Exception as error:
            self.lines.failed("a receipt could not be closed", error)
            raise ApiError(500, "the text's receipt could not be written; ask the server's operator") from error
        manifest, behind = await self._added(text, finish)
        # what is behind a text would be in the middle of a continued one
        again = text.proof(done) if text.proof is not None and finish == "length" and not behind else ""
        return Piece(choice, more + rest + behind, tokens, finish, text.begun.id, text.marked, again, (), manifest)

    async def _added(self, text: TextOrder, finish: str) -> tuple[bytes, str]:
        """Return the manifest of a text and what is put behind the text; nothing where calls are sent."""
        calls = self.calls
        if self.added is None or (calls is not None and (calls.forced or calls.read(text.unfolding.sent, finish)[1])):
            return b"", ""
        try:
            added: tuple[bytes, str] = await self.threaded(self.added, text)
        except Exception as error:
            self.lines.failed("a C2PA manifest could not be signed", error)
            raise ApiError(500, "the text's manifest could not be signed; ask the server's operator") from error
        return added

    def _check(self, text: TextOrder) -> None:
        """Raise ApiError for a text that must not be sent."""
        receipt = text.done.receipt if text.done else None
        detected = receipt is not None and receipt.detected
        if text.done is not None and self._length(text.job, text.done.sequence) < self.marking.strict_from:
            return
        if text.done is not None and text.job.exempt is not None and text.job.exempt(text.done.sequence):
            return
        if self.marking.strict and detected and receipt and not text.carries(self.marking, receipt.p_value):
            reason = (
                f"this server sends only marked texts, in which the mark chooses at least {self.marking.fewest} tokens"
                "; ask for a longer text, and leave out what dictates its tokens"
            )
            raise ApiError(500, reason, code="undetected")
        if self.marking.strict and not detected:
            why = "" if receipt is None else f" ({receipt.reason})"
            raise ApiError(500, f"no attempt gave a detectable text{why}; ask for a longer text", code="undetected")

    def _length(self, job: Job, sequence: ActiveSequence) -> int:
        """Return how many tokens of a text count for `strict_from`: those of an exempt thinking section do not."""
        if not self.marking.thinks or job.thinking is None:
            return len(sequence.tokens)
        answer = answer_of(job.stops.shown(sequence.visible), job.thinking())
        return len(job.stops.tokenizer(answer, add_special_tokens=False)["input_ids"])

    async def _close(self, text: TextOrder, ending: Ending, finish: str = "") -> None:
        """Close a receipt, once, about the text that was sent or is about to be.

        The waiting task may be cancelled if the client disconnects; writing continues, and `end` waits for it.
        """
        if text.closing is None:
            closed = self._closed(text, ending, finish)
            text.closing = asyncio.ensure_future(self.threaded(_write, self, text, closed))
        await asyncio.shield(text.closing)

    def _closed(self, text: TextOrder, ending: Ending, finish: str) -> Closed:
        """Return the final contents of a receipt."""
        receipt, digest = text.done.receipt if text.done else None, text_digest(text.unfolding.sent)
        # a client that left before the text was sent: the test is of another text than the digest
        tested = receipt if receipt and receipt.digest == digest else None
        return Closed(
            ending=ending, finish_reason=finish, p_value=tested.p_value if tested else None,
            detected=tested.detected if tested else None, reason=receipt.reason if receipt else "",
            attempts=receipt.attempts if receipt else 1, tokens=text.begun_tokens + text.tokens, digest=digest,
            time=time.time(), tested=tested.as_dict() if tested else None,
            open=text.done.sequence.open if text.done else None,
        )  # fmt: skip

    async def end(self, ending: Ending) -> None:
        """Stop texts in progress, and close the open receipts. Raises nothing."""
        for text in self.texts:
            if text.done is None:
                self.engine.cancel(text.job)
            self.beginnings.add(text.job.tenant, text.unmarked - text.beginning, text.tokens)
        for text in self.texts:
            try:
                await self._close(text, ending)
            except Exception as error:
                self.lines.failed("a receipt could not be closed", error)
        self.register.discard(self)


def _write(order: Order, text: TextOrder, closed: Closed) -> None:
    """Close a receipt with what follows for whether it is marked, and the sent text's p (None if it has none)."""
    sent = text.unfolding.sent
    if closed.p_value is None and text.reached is not None and sent:
        try:
            closed = replace(closed, p_value=text.reached(sent))
        except Exception as error:  # nobody asked for it, so it withholds no text
            order.lines.failed("the p-value of a text could not be computed", error)
    marked = closed.ending == "complete" and text.carries(order.marking, closed.p_value)
    sketch = b"" if order.sketch is None else order.sketch(sent)
    text.handle.close(replace(closed, marked=marked, sketch=sketch))
    text.marked = marked
