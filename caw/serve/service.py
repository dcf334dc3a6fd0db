"""From a request to its order: who asks, what the prompts are, how texts are marked, and their receipts begun."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio

from caw.decoding.request import Request, requests_for
from caw.decoding.row_settings import RowSettings
from caw.decoding.stopping import StopStrings
from caw.found.attempts import FoundTexts
from caw.found.receipts import policy_text
from caw.serve.contracts import Begun, KeyDirectory, ReceiptLog, Tenant
from caw.serve.detecting import Detection
from caw.serve.engine import Engine
from caw.serve.errors import BAD, BUSY, DENIED, UNKNOWN, ApiError
from caw.serve.grammars import Grammar, Grammars
from caw.serve.inbox import BusyError, ClosedError, GreedyError
from caw.serve.job import Job
from caw.serve.marking import Marking, marking_of
from caw.serve.orders import Order, TextOrder
from caw.serve.planning import Planned
from caw.serve.prompts import PromptReader, count_prompts
from caw.serve.requests import Asked, ChatRequest
from caw.serve.thinking import Thinking
from caw.serve.unfolding import Unfolding
from caw.settings import MIN_TEMPERATURE

LOG = logging.getLogger("caw.serve")
LAST = 60.0  # seconds for a step under way, and for the last receipts
WORKERS = 16  # threads that wait for registries and disks
DEFAULT_MAX_TOKENS = 16  # of completions; OpenAI's


class Service:
    """Takes orders.

    Args:
        planned: what to decode with. directory: who may ask. receipts: where they go.
    """

    def __init__(self, planned: Planned, directory: KeyDirectory, receipts: ReceiptLog) -> None:
        self.planned, self.directory, self.receipts = planned, directory, receipts
        self.settings = settings = planned.settings
        most, shared = planned.plan.batch + settings.max_waiting, directory.tenant_for(None) is None
        self.engine = Engine(planned.model, planned.plan, most, shared=shared)
        self.detection = Detection(planned, directory)
        self.open: set[Order] = set()
        self.grammars, self.no_grammars = _grammars(planned)
        self.prompts = PromptReader(planned.tokenizer, planned.facts.vocab_size)
        self.workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="caw-request")
        # a watermark's repr has its numbers, and never its key
        self.watermark, self.policy = repr(planned.watermark), policy_text(planned.policy)

    async def threaded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run what may wait for a disk or a database in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, function, *arguments)

    async def visitor(self) -> Tenant | None:
        """Who asks without an API key; None for the public."""
        try:
            found: Tenant | None = await self.threaded(self.directory.tenant_for, None)
        except Exception:
            LOG.exception("a tenant could not be looked up")
            return None
        return found

    async def tenant(self, bearer: str | None) -> Tenant:
        """Who asks; ApiError for a stranger."""
        try:
            tenant = await self.threaded(self.directory.tenant_for, bearer)
        except Exception as error:
            LOG.exception("a tenant could not be looked up")
            raise ApiError(503, "there is no key to mark with now, so no text is made; ask the operator") from error
        if tenant is None:
            said = "the API key is missing or unknown; send one as a bearer token"
            raise ApiError(DENIED, said, code="invalid_api_key")
        return tenant

    async def order(self, asked: Asked, tenant: Tenant, prefix: str) -> Order:
        """The order of a request, whose texts are being made; ApiError where it cannot be taken.

        prefix: of the id that the client gets.
        """
        self.check_model(asked.model)
        asked.check()
        self._check_room(asked.count * count_prompts(asked), tenant)
        prompts = await self.threaded(self.prompts.read, asked)
        most = self._budget(asked, prompts)
        self.planned.check_key(tenant.key)
        marking = marking_of(
            tenant, self.settings, self.planned.policy, max_tokens=most, wants=asked.watermark, json=asked.json_mode,
            tools=asked.calls is not None,
        )  # fmt: skip
        self.planned.check_reach(marking, most)
        grammar = await self.threaded(self._grammar, asked) if asked.json_mode or asked.calls else None
        jobs_of = [prompt for prompt in prompts for _ in range(asked.count)]
        row = self._row(asked, tenant, marking, most)
        order = Order(
            prefix + uuid.uuid4().hex, int(time.time()), self.settings.name, bool(asked.stream), asked.alternatives,
            marking, sum(map(len, prompts)), self.engine, self.threaded, asyncio.Queue(),
            self.open, asked.calls,
        )  # fmt: skip
        requests = requests_for(jobs_of, [most] * len(jobs_of), [row] * len(jobs_of))
        try:
            for choice, request in enumerate(requests):
                making = asyncio.ensure_future(self.threaded(self._text, order, tenant, choice, request, asked))
                try:
                    await asyncio.shield(making)
                finally:  # cancelled too: its receipt may have begun, and is then closed below
                    text = await making
                    text.job.grammar = grammar
                    order.texts.append(text)
            self.engine.submit([text.job for text in order.texts])
        except (BusyError, ClosedError) as error:
            await order.end("failed")
            raise _refusal(error) from None
        except BaseException:
            await order.end("failed")
            raise
        return order

    def check_model(self, name: str) -> None:
        """Raise ApiError for another model."""
        if name != self.settings.name:
            said = f"the model {name[:64]!a} is not served here; ask for {self.settings.name!r}"
            raise ApiError(UNKNOWN, said, code="model_not_found", parameter="model")

    def _check_room(self, count: int, tenant: Tenant) -> None:
        """Raise ApiError where so many texts cannot be taken; what is checked again when they are handed over."""
        if count > self.settings.max_choices:
            said = f"a request may ask for {self.settings.max_choices} texts, got {count}; send several"
            raise ApiError(BAD, said, parameter="n")
        try:
            self.engine.inbox.check(count, tenant.id)
        except (BusyError, ClosedError) as error:
            raise _refusal(error) from None

    def _budget(self, asked: Asked, prompts: Sequence[Sequence[int]]) -> int:
        """The most new tokens of each text."""
        longest, room = max(map(len, prompts)), self.planned.max_length
        asks = asked.max_tokens
        if isinstance(asked, ChatRequest):
            asks = asked.max_completion_tokens or asks or max(1, room - longest)
        most = asks or DEFAULT_MAX_TOKENS
        if longest + most > room:
            raise ApiError(
                BAD, f"a text may have {room} tokens in all, got a prompt of {longest} and max_tokens {most}; shorten "
                "one of them", code="context_length_exceeded",
                parameter="messages" if isinstance(asked, ChatRequest) else "prompt",
            )  # fmt: skip
        return most

    def _grammar(self, asked: Asked) -> Callable[[], Grammar]:
        """What makes the grammar of each text; ApiError where there can be none."""
        where = "response_format" if asked.calls is None else "tools"
        if self.grammars is None:
            said = f"JSON mode and calls are not served by this server: {self.no_grammars}; leave {where} out"
            raise ApiError(BAD, said, parameter=where)
        if asked.calls is not None:
            return self.grammars.compiled(asked.calls.schema, compact=True)
        assert asked.response_format is not None
        return self.grammars.compiled(asked.response_format.schema_asked)

    def _row(self, asked: Asked, tenant: Tenant, marking: Marking, most: int) -> RowSettings:
        temperature = 1.0 if asked.temperature is None else asked.temperature
        samples = temperature >= MIN_TEMPERATURE
        seed = secrets.randbits(63) if asked.seed is None else asked.seed % (1 << 64)
        return RowSettings(
            max_new_tokens=most, do_sample=samples, temperature=temperature if samples else 1.0,
            top_p=1.0 if asked.top_p is None else asked.top_p, seed=seed, strength_factor=marking.factor,
            margin=marking.margin, key=tenant.key.key if marking.marked else None,
            log_probs=asked.alternatives is not None,
        )  # fmt: skip

    def _text(self, order: Order, tenant: Tenant, choice: int, request: Request, asked: Asked) -> TextOrder:
        """One text of an order, its receipt begun."""
        marking, stops = order.marking, StopStrings(self.planned.tokenizer, list(asked.stops))
        buffered, tested = not order.stream or marking.strict or order.calls is not None, None
        if marking.found_at is not None:
            tested = partial(self._attempts, request, stops, marking.found_at, once=not buffered)
        begun = Begun(
            id=str(uuid.uuid4()), request=order.id, choice=choice, tenant=tenant.id, key_id=marking.key_id,
            model=self.settings.name, watermark=self.watermark,
            policy=self.policy + ("; thinking sections unmarked" if marking.thinks else ""), unmarked=marking.unmarked,
            found_at=marking.found_at, time=time.time(), keys=tenant.tried,
        )  # fmt: skip
        try:
            handle = self.receipts.begin(begun)
        except Exception as error:
            LOG.exception("a receipt could not be begun")
            raise ApiError(503, "no receipt can be written, so no text is made; try again later") from error
        by_template = request.ids if isinstance(asked, ChatRequest) else ()
        thinking = partial(Thinking, self.planned.tokenizer, by_template) if marking.thinks else None
        job = Job(request, stops, not buffered, partial(_heard, order, choice), tested, thinking, tenant=tenant.id)
        reached = partial(self.planned.p_value, key=tenant.key.key) if marking.marked else None
        return TextOrder(job, begun, handle, Unfolding(stops), reached)

    def _attempts(self, request: Request, stops: StopStrings, level: float, *, once: bool) -> FoundTexts:
        return self.planned.attempts(request, stops, level, once=once)

    async def close(self) -> None:
        """Stop decoding, and let go of the threads once all receipts are closed."""
        await asyncio.to_thread(self.engine.close, LAST)
        with anyio.move_on_after(LAST):
            while self.open:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(self.workers.shutdown)
        await asyncio.to_thread(self.detection.close)


def _grammars(planned: Planned) -> tuple[Grammars | None, str]:
    """What keeps texts to JSON; or None, and why."""
    if planned.plan.captured:
        return None, "its steps are captured for a GPU"
    try:
        return Grammars(planned.tokenizer, planned.facts.vocab_size, tuple(planned.facts.ends)), ""
    except ImportError:
        return None, "it lacks the package llguidance"
    except ValueError:
        return None, "its model's tokenizer is a slow one"


def _heard(order: Order, choice: int, news: Any) -> None:
    order.news.put_nowait((choice, news))


def _refusal(error: BusyError | ClosedError) -> ApiError:
    if isinstance(error, GreedyError):
        said = "as many of this tenant's texts wait as may, so that there is room for others; try again later"
        return ApiError(BUSY, said, code="tenant_queue_full")
    if isinstance(error, BusyError):
        return ApiError(BUSY, "as many texts are being made as this server may; try again later", code="queue_full")
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down")
