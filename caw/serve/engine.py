"""The thread that owns the model: texts join and leave its batch between steps."""

import asyncio
import dataclasses
import functools
import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from caw.decoding.decoder import Decoder
from caw.decoding.forks import ReadRequest
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import exact_rows
from caw.decoding.portions import may_portion
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.waiting import Waiting
from caw.decoding.warping import Warping
from caw.detectable.attempts import Attempts
from caw.detectable.search import Rollout
from caw.serve.errors import BAD
from caw.serve.grammars import Grammar, RowMasks
from caw.serve.inbox import Inbox
from caw.serve.job import Done, Failed, Job, News, Token
from caw.serve.thinking import Thinking

LOG = logging.getLogger("caw.serve")
MOST_FAILURES = 3  # of decoders in a row, none of which finished a text


@dataclasses.dataclass(eq=False)
class _Making:
    """A job in the decoder. attempts: its tests and retries, None = no test; place: number of this attempt there.

    request: of this attempt, None until it is queued. thinking, grammar: of this attempt. shows: whether each token may
    be sent as it comes.
    """

    job: Job
    attempts: Attempts | None
    place: int
    thinking: Thinking | None = None
    grammar: Grammar | None = None
    request: Request | None = None
    shows: bool = False

    def begin(self, request: Request) -> Request:
        """Process the text's existing start, and return the request for the decoder."""
        self.request = request
        self.thinking = self.job.thinking() if self.job.thinking else None
        self.grammar = self.job.grammar() if self.job.grammar and not isinstance(request, ReadRequest) else None
        if self.grammar is not None:
            self.grammar.go_on(request.begun)
        if self.thinking is None or not request.begun:
            return request
        self.thinking.go_on(request.begun)
        if not self.thinking.inside:
            return request
        return dataclasses.replace(request, row=dataclasses.replace(request.row, strength_factor=0.0))


class Engine:
    """Decodes jobs in its own thread, started by `start`, stopped by `close`.

    Args:
        plan: covers every possible job. most: maximum jobs in progress. shared: whether there are several tenants.
        kind: of its decoders, one that takes forks if texts are guarded.

    tokens: new tokens so far. failed: why decoding stopped; "" if it did not.
    """

    def __init__(
        self, model: Any, plan: Plan, most: int, *, shared: bool = False, kind: type[Decoder] = Decoder
    ) -> None:
        self.kind = kind
        portioned = may_portion(plan) and exact_rows(model)
        self.model, self.plan = model, dataclasses.replace(plan, keep_rows=True, portioned=portioned)
        if not plan.captured:  # a captured step cannot ask what a text may go on with
            warper = plan.warper
            if isinstance(warper, Warping):
                warper = dataclasses.replace(warper, sparse=True, native=plan.kernels.native)
            self.plan = dataclasses.replace(self.plan, warper=RowMasks(warper, self._grammar))
        self.inbox, self.tokens, self.failed = Inbox(most, plan.batch, shared=shared), 0, ""
        self._making: dict[int, _Making] = {}
        self._outbox: list[tuple[Job, News]] = []
        self._decoder: Decoder | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="caw-engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start; news of jobs go to this event loop."""
        self._loop = loop
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs, or none. Raises BusyError, GreedyError or ClosedError."""
        self.inbox.put(jobs)

    def cancel(self, job: Job) -> None:
        """Stop a job at its next token; it sends no more news."""
        job.cancelled = True

    @property
    def active(self) -> int:
        decoder = self._decoder
        return 0 if decoder is None else sum(row is not None for row in decoder.rows)

    @property
    def reading(self) -> int:
        """Number of batch rows whose prompt is being read in portions."""
        decoder = self._decoder
        return 0 if decoder is None else len(decoder.portions)

    @property
    def waiting(self) -> int:
        """Jobs without a row, as far as known at this moment."""
        return max(0, self.inbox.under_way - self.active - self.reading)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more jobs, stop those in progress, and wait for the thread, at most this many seconds."""
        self._abandoned = True
        self.inbox.close()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # In the engine's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self.inbox.closed and not self.failed:
            before = self.tokens
            try:
                self._decode()
            except Exception as error:  # whatever it is, those who wait have to be told
                LOG.exception("decoding failed")
                failures = failures + 1 if self.tokens == before else 1
                if failures == MOST_FAILURES:
                    self.failed = f"{type(error).__name__} in {failures} decoders in a row"
                    self.inbox.close()
                self._fail_all("decoding failed on the server; try again later")
        self._fail_all("the server is shutting down; try again later")

    def _decode(self) -> None:
        self._decoder = decoder = self.kind(self.model, self.plan, LOG.info, LiveWaiting(self))
        for sequence in decoder.run((), self._token):
            self._finished(sequence)

    def _fail_all(self, reason: str) -> None:
        jobs = {making.job for making in self._making.values()} | set(self.inbox.take(wait=False))
        self._making.clear()
        self._decoder = None
        for job in jobs:
            self._tell(job, Failed(reason))
        self.settle()

    def settle(self) -> None:
        """Deliver all news to the event loop at once."""
        if self._outbox:
            news, self._outbox = self._outbox, []
            try:
                self._loop.call_soon_threadsafe(_deliver, news)
            except RuntimeError:  # the loop is closed: nobody listens
                LOG.debug("news of %d texts after the event loop closed", len(news))

    def _tell(self, job: Job, news: News) -> None:
        """Notify a job's owner; everything but tokens ends the job, once: it may have several sequences."""
        if job.over:
            return
        if not isinstance(news, Token):
            job.over = True
            self.inbox.ended(job)
        if not job.cancelled:
            self._outbox.append((job, news))

    def tenant_of(self, number: int) -> str:
        return self._making[number].job.tenant

    def rows_of_tenants(self) -> Counter[str]:
        """Return the number of batch rows of each tenant."""
        assert self._decoder is not None
        numbers = [row.index for row in self._decoder.rows if row is not None] + self._decoder.portions.numbers
        return Counter(map(self.tenant_of, numbers))

    def drops(self, number: int) -> bool:
        """Return whether a request was abandoned; it is then dropped."""
        job = self._making[number].job
        if not (job.cancelled or job.over or self._abandoned):
            return False
        del self._making[number]
        self._tell(job, Failed("the server is shutting down; try again later"))
        return True

    def admit(self, job: Job) -> None:
        try:
            attempts = job.tested() if job.tested else None
            requests = [job.request] if attempts is None else attempts.first
            windows = job.streams and attempts is not None and attempts.sends(functools.partial(self._send, job))
            for place, request in enumerate(requests):
                self._add(_Making(job, attempts, place, shows=job.streams and not windows), request)
        except (ValueError, TypeError) as error:
            LOG.warning("refused: %s", error)
            self._tell(job, Failed("the server does not support decoding with these settings; ask its operator"))
        except Exception:  # of one text, which must not end those that came with it
            LOG.exception("a text could not be started")
            self._tell(job, Failed("the text could not be started; try again later"))

    def _send(self, job: Job, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._tell(job, Token(token, None))

    def _add(self, making: _Making, request: Request, *, ahead: bool = False) -> int:
        assert self._decoder is not None
        number = self._decoder.waiting.add(making.begin(request), ahead=ahead)  # last: what waits has to be known
        self._making[number] = making
        return number

    def _token(self, sequence: ActiveSequence) -> bool:
        """Return whether a text ends with its newest token."""
        self.tokens += 1
        making = self._making[sequence.index]
        job = making.job
        if making.thinking is not None and not making.thinking.over:
            self._spare(sequence, making)
        if making.grammar is not None and sequence.tokens[-1] not in sequence.ends:
            making.grammar.follow(sequence.tokens)
        if job.cancelled or job.over or self._abandoned or (making.grammar is not None and making.grammar.error):
            return True
        if making.shows:
            log_probs = sequence.log_probs[-1] if sequence.log_probs else None
            self._tell(job, Token(sequence.tokens[-1], log_probs))
        ended = making.attempts is not None and making.attempts.ended(sequence)
        return ended or job.stops.reached(sequence.tokens)

    def _spare(self, sequence: ActiveSequence, making: _Making) -> None:
        """Turn marking of a text on or off from its next token; in captured steps, after the rounds in progress."""
        thinking, request = making.thinking, making.request
        assert self._decoder is not None and thinking is not None and request is not None
        before, inside = thinking.inside, thinking.after(sequence.tokens)
        if inside != before or len(sequence.tokens) == 1:
            factors = self._decoder.choosing.texts.row_factors
            factors[self._decoder.rows.index(sequence)] = 0.0 if inside else request.row.strength_factor

    def _grammar(self, row: int) -> Grammar | None:
        """Return the grammar of a batch row; None for an empty row."""
        assert self._decoder is not None
        sequence = self._decoder.rows[row]
        return None if sequence is None else self._making[sequence.index].grammar

    def _finished(self, sequence: ActiveSequence) -> None:
        making = self._making.pop(sequence.index)
        job, attempts = making.job, making.attempts
        if job.over:  # with another of its sequences
            return
        if making.thinking is not None and making.request is not None:
            sequence.request = making.request
        error = "" if making.grammar is None else making.grammar.error
        if error and isinstance(making.request, Rollout):
            sequence.fail(error)  # one change of a guarded text less
        elif error and making.grammar is not None:
            if making.grammar.status != BAD:
                LOG.error("a text got a token that its schema forbids")
            self._tell(job, Failed(error, making.grammar.status))
            return
        if self._abandoned and not sequence.error and sequence.finish_reason == "stop":
            self._tell(job, Failed("the server is shutting down; try again later"))
        elif job.cancelled or attempts is None or (job.exempt is not None and job.exempt(sequence)):
            self._tell(job, Failed(sequence.error) if sequence.error else Done(sequence, None))
        else:
            self._test(job, attempts, making.place, sequence)

    def _test(self, job: Job, attempts: Attempts, place: int, sequence: ActiveSequence) -> None:
        """Test a finished text; return it, or start a retry."""
        sequence.index = place

        def again(request: Request, *, ahead: bool = False) -> int:
            return self._add(_Making(job, attempts, len(attempts.owners) - 1), request, ahead=ahead)

        try:
            done = attempts.on_finished(sequence, again)
        except Exception:  # of one text's test, which must not end those of others
            LOG.exception("a text could not be tested")
            self._tell(job, Failed("the text could not be tested; try again later"))
            return
        if done is not None:
            _, sequence, receipt = done
            self._tell(job, Failed(sequence.error) if sequence.error else Done(sequence, receipt))


class LiveWaiting(Waiting):
    """A queue whose decoder runs until the inbox is closed: with an empty batch it waits for a job."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.plan)
        self.engine, self.inbox = engine, engine.inbox
        self._ahead: set[int] = set()

    def add(self, request: Request, *, ahead: bool = False) -> int:
        number = super().add(request, ahead=ahead)
        if ahead:
            self._ahead.add(number)
        return number

    def take(self, most: int) -> list[tuple[int, Request]]:
        """Return retries first, then one request per row: the oldest of the tenant with the fewest rows."""
        rows, taken = self.engine.rows_of_tenants(), list[tuple[int, Request]]()
        while self.requests and len(taken) < most:
            order = ((one[0] not in self._ahead, rows[self.engine.tenant_of(one[0])], place) for place, one in
                     enumerate(self.requests))  # fmt: skip
            place = min(order)[-1]
            taken.append(self.requests[place])
            del self.requests[place]
            self._ahead.discard(taken[-1][0])
            rows[self.engine.tenant_of(taken[-1][0])] += 1
        return taken

    def gone(self, number: int) -> bool:
        return self.engine.drops(number)

    def more(self, *, idle: bool) -> bool:
        while True:
            self.engine.settle()
            for job in self.inbox.take(wait=idle and not self.requests):
                self.engine.admit(job)
            self.requests = deque(one for one in self.requests if not self.engine.drops(one[0]))
            self._ahead.intersection_update(number for number, _ in self.requests)
            if not idle or self.requests:
                return True
            if self.inbox.closed:
                self.engine.settle()
                return False


def _deliver(news: Sequence[tuple[Job, News]]) -> None:
    """Run in the event loop."""
    for job, one in news:
        job.listen(one)
