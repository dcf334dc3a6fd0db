"""One request under way: its texts, their receipts, and the pieces that go to the client.

A receipt is begun, durably, before a text is made, and closed before its client learns that it is complete. Where a
receipt cannot be closed nothing more is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caw.found.receipts import text_digest
from caw.serve.contracts import Begun, Closed, Ending, ReceiptHandle
from caw.serve.engine import Engine
from caw.serve.errors import ApiError
from caw.serve.job import Done, Failed, Job, News, Token
from caw.serve.marking import Marking
from caw.serve.tools import Calls
from caw.serve.unfolding import Unfolding

LOG = logging.getLogger("caw.serve")
REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
Threaded = Callable[..., Awaitable[Any]]  # runs a function that may wait in another thread


@dataclass(eq=False)
class TextOrder:
    """One text of a request: what it is made by, its receipt, what was sent of it.

    reached: the p-value of what was sent, None where nothing marks it. tokens: how many came. letters: of those whose
    log-probabilities were told. closing: of its receipt, once begun.
    """

    job: Job
    begun: Begun
    handle: ReceiptHandle
    unfolding: Unfolding
    reached: Callable[[str], float] | None = None
    tokens: int = 0
    letters: int = 0
    done: Done | None = None
    closing: asyncio.Future[None] | None = None


@dataclass(frozen=True)
class Piece:
    """More of a text. choice: its number. finish: why it ended, "" while it goes on. receipt: id, once it ended."""

    choice: int
    text: str
    tokens: Sequence[Token]
    finish: str
    receipt: str


@dataclass(eq=False)
class Order:
    """A request whose texts are made.

    id, created: what clients get. stream: whether pieces are sent as they come. alternatives: as in the request.
    prompt_tokens: of all prompts together. news: of its jobs, with their numbers. register: where it stands until all
    of its receipts are closed. calls: the functions that its texts call, None = none.
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
    register: set[Order] = field(repr=False)
    calls: Calls | None = None
    texts: list[TextOrder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.register.add(self)

    @property
    def completion_tokens(self) -> int:
        return sum(text.tokens for text in self.texts)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Everything that goes to the client; a text that is not streamed is one piece, after all are done.

        Raises ApiError where a text cannot be finished, or may not leave.
        """
        left = len(self.texts)
        while left:
            for choice, news in (await self._next()).items():
                text = self.texts[choice]
                tokens = [one for one in news if isinstance(one, Token)]
                said = text.unfolding.add([one.id for one in tokens]) if tokens else ""
                if isinstance(news[-1], Failed):
                    raise ApiError(news[-1].status, news[-1].reason)
                text.tokens += len(tokens)
                if isinstance(news[-1], Done):
                    text.done, left = news[-1], left - 1
                    if self.stream:
                        yield await self._finish(choice, said, tokens)
                elif said or (tokens and self.alternatives is not None):
                    yield Piece(choice, said, tokens, "", "")
        if not self.stream:
            for choice in range(len(self.texts)):
                self._check(self.texts[choice])
            for choice in range(len(self.texts)):
                yield await self._finish(choice, "", [])

    async def _next(self) -> dict[int, list[News]]:
        """All news that there are, at least one, by the number of the text."""
        first = [await self.news.get()]
        while not self.news.empty():
            first.append(self.news.get_nowait())
        found: dict[int, list[News]] = {}
        for choice, news in first:
            found.setdefault(choice, []).append(news)
        return found

    async def _finish(self, choice: int, said: str, tokens: Sequence[Token]) -> Piece:
        """The last piece of a text, once its receipt is closed."""
        text = self.texts[choice]
        done = text.done
        assert done is not None
        self._check(text)
        sequence = done.sequence
        if not text.job.streams:
            text.tokens = len(sequence.tokens)
            known = dict(enumerate(sequence.log_probs))
            tokens = [Token(token, known.get(place)) for place, token in enumerate(sequence.tokens)]
        if sequence.finish_reason == "eos":
            tokens = [one for one in tokens if one.id not in sequence.ends]
        rest = text.unfolding.finish(sequence.visible)
        finish = REASONS[sequence.finish_reason]
        try:
            await self._close(text, "complete", finish)
        except Exception as error:
            LOG.exception("a receipt could not be closed")
            raise ApiError(500, "the receipt of the text could not be written; ask the server's operator") from error
        return Piece(choice, said + rest, tokens, finish, text.begun.id)

    def _check(self, text: TextOrder) -> None:
        """Raise ApiError for a text that may not leave."""
        receipt = text.done.receipt if text.done else None
        if self.marking.strict and (receipt is None or not receipt.found):
            why = "" if receipt is None else f" ({receipt.reason})"
            raise ApiError(
                500, f"no text was made that is found to be marked{why}; ask for a longer one", code="unfound"
            )

    async def _close(self, text: TextOrder, ending: Ending, finish: str = "") -> None:
        """Close a receipt, once; what it says is of what was sent, or is about to be.

        Who waits for it may be cancelled, because the client left; the writing goes on, and `end` waits for it.
        """
        if text.closing is None:
            closed = self._closed(text, ending, finish)
            text.closing = asyncio.ensure_future(self.threaded(_write, text, closed, text.unfolding.sent))
        await asyncio.shield(text.closing)

    def _closed(self, text: TextOrder, ending: Ending, finish: str) -> Closed:
        """What a receipt says at its end."""
        receipt, digest = text.done.receipt if text.done else None, text_digest(text.unfolding.sent)
        # a client that left before the text was sent: the test is of another text than the digest
        tested = receipt if receipt and receipt.digest == digest else None
        return Closed(
            ending=ending, finish_reason=finish, p_value=tested.p_value if tested else None,
            found=tested.found if tested else None, reason=receipt.reason if receipt else "",
            attempts=receipt.attempts if receipt else 1, tokens=text.tokens, digest=digest, time=time.time(),
            tested=tested.as_dict() if tested else None,
        )  # fmt: skip

    async def end(self, ending: Ending) -> None:
        """Stop what is still being made, and close the receipts that are open. Raises nothing."""
        for text in self.texts:
            if text.done is None:
                self.engine.cancel(text.job)
        for text in self.texts:
            try:
                await self._close(text, ending)
            except Exception:
                LOG.exception("a receipt could not be closed")
        self.register.discard(self)


def _write(text: TextOrder, closed: Closed, sent: str) -> None:
    """Close a receipt, with the p-value of what was sent where no test has said it; None where it cannot be told."""
    if closed.p_value is None and text.reached is not None and sent:
        try:
            closed = replace(closed, p_value=text.reached(sent))
        except Exception:  # nobody asked for it, so it withholds no text
            LOG.exception("the p-value of a text could not be told")
    text.handle.close(closed)
