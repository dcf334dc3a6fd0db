"""From a request to its order: look up the tenant, encode the prompts, decide the marking, begin the receipts."""

import asyncio
import contextlib
import math
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from caw.decoding.decoder import Decoder
from caw.decoding.forks import ForkDecoder
from caw.decoding.request import Request, requests_for
from caw.decoding.row_settings import RowSettings, may_begin_freely
from caw.decoding.stopping import StopStrings
from caw.detectable.receipts import policy_text
from caw.manifest import AIGC_LABEL
from caw.policies.recommended import row_of
from caw.serve.beginnings import Beginnings
from caw.serve.continuing import LIFE, Continuations, TextSoFar, prompt_digest
from caw.serve.contracts import Begun, KeyDirectory, ReceiptLog, Tenant
from caw.serve.desk import Desk
from caw.serve.engine import Engine
from caw.serve.errors import BAD, BUSY, UNKNOWN, ApiError
from caw.serve.grammars import Grammar, GrammarRules, Grammars
from caw.serve.inbox import BusyError, ClosedError, GreedyError
from caw.serve.job import Done, Job
from caw.serve.marking import Marking, marking_of
from caw.serve.offers import Offer, offer_of
from caw.serve.orders import Order, TextOrder
from caw.serve.planning import Planned
from caw.serve.prompts import PromptReader, count_prompts
from caw.serve.requests import NUDGE, Asked, ChatRequest
from caw.serve.thinking import CALL, Thinking
from caw.serve.unfolding import Unfolding
from caw.settings import DRAWING, Sampling

LAST = 60.0  # seconds for a step under way, and for the last receipts
DEFAULT_MAX_TOKENS = 16  # of completions; OpenAI's
MOST_MANIFESTS = 1000  # of the last texts, some 4 MB


class Service(Desk):
    """Accepts orders.

    Args:
        planned: the decoder's plan. directory: of tenants. receipts: the receipt log.
        secret: signs continuation tokens, shared by servers that continue each other's texts; None = random, so that
            tokens become invalid at a restart. sketch: of texts, for their receipts; None = receipts have none.
    """

    broken = "receipts cannot be written"

    def __init__(
        self, planned: Planned, directory: KeyDirectory, receipts: ReceiptLog, secret: bytes | None = None,
        sketch: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(planned, directory)
        self.planned, self.receipts, self.sketch, settings = planned, receipts, sketch, planned.settings
        most, shared = planned.plan.batch + settings.max_waiting, directory.tenant_for(None) is None
        self.continuations = Continuations(secret or secrets.token_bytes(32))
        kind = Decoder if planned.settings.guard is None else ForkDecoder
        self.engine = Engine(planned.model, planned.plan, most, shared=shared, kind=kind)
        self.manifests = OrderedDict[str, bytes]()
        self.open: set[Order] = set()
        self.beginnings = Beginnings()
        self.grammars, self.no_grammars = _grammars(planned)
        self.prompts = PromptReader(planned.tokenizer, planned.facts.vocab_size)
        # a watermark's repr has its numbers, and never its key
        self.watermark, self.policy = repr(planned.watermark), policy_text(planned.marks.main.policy)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Decode until the application ends; the threads end once all receipts are closed."""
        self.engine.start(asyncio.get_running_loop())
        async with super().running():
            try:
                yield
            finally:
                await asyncio.to_thread(self.engine.close, LAST)
                with anyio.move_on_after(LAST):
                    while self.open:
                        await asyncio.sleep(0.01)

    @property
    def state(self) -> str:
        return "failed" if self.engine.failed else "closing" if self.engine.inbox.closed else "ok"

    def check(self) -> None:
        self.receipts.check()

    async def order(self, asked: Asked, tenant: Tenant, prefix: str) -> Order:
        """Create a request's order and start its texts; ApiError if it cannot be. prefix: of the id for the client."""
        self.check_model(asked.model)
        asked.check()
        bound = asked.continuation or asked.json_mode or asked.calls or asked.offered
        if asked.embed_manifest and (self.signer is None or bound):
            why = "embed_manifest requires a server with a certificate, a new text, no JSON and no tools; leave it out"
            raise ApiError(BAD, why, parameter="embed_manifest")
        self._check_room(asked.count * count_prompts(asked), tenant)
        self.planned.check_key(tenant.key)
        parallel = not isinstance(asked, ChatRequest) or asked.parallel_tool_calls is not False
        offer = offer_of(asked.offered, self.planned.tokenizer, parallel=parallel)
        part = None if asked.continuation is None else self._part(asked, tenant)
        prompts, begun = await self.threaded(self._prompts, asked, part)
        most = len(begun) + self._budget(asked, [[*ids, *begun] for ids in prompts])
        marking = self._marking(asked, tenant, most)
        self.planned.check_reach(marking, most, self._sampling(asked))
        if marking.strict and part is not None and asked.steers:
            why = f"a continuation takes a logit_bias of at most {NUDGE:g} here; leave out greater ones"
            raise ApiError(BAD, why, parameter="logit_bias")
        grammar = await self.threaded(self._grammar, asked) if asked.json_mode or asked.calls else None
        jobs_of = [prompt for prompt in prompts for _ in range(asked.count)]
        row = self._row(asked, tenant, marking, most, part)
        order = Order(
            prefix + uuid.uuid4().hex, int(time.time()), self.settings.name, bool(asked.stream), asked.alternatives,
            marking, sum(len(ids) + len(begun) for ids in prompts), self.engine, self.threaded, asyncio.Queue(),
            self.open, self.beginnings, asked.calls or offer, self.lines,
            self.sketch, partial(self._added, asked) if self.signer or self.settings.aigc_producer else None,
        )  # fmt: skip
        mark = self.planned.marks.under(row.key, row)
        requests = requests_for(jobs_of, [most] * len(jobs_of), [row] * len(jobs_of), mark)
        if part is not None:
            requests = [
                replace(one, begun=begun, occurrence=part.occurrence, open=part.open, spent=part.spent)
                for one in requests
            ]
        try:
            for choice, request in enumerate(requests):
                making = asyncio.ensure_future(
                    self.threaded(self._text, order, tenant, choice, request, asked, part, grammar)
                )
                try:
                    await asyncio.shield(making)
                finally:  # cancelled too: its receipt may have begun, and is then closed below
                    text = await making
                    order.add(text)
            self.engine.submit([text.job for text in order.texts])
        except (BusyError, ClosedError) as error:
            await order.end("failed")
            raise _refusal(error) from None
        except BaseException:
            await order.end("failed")
            raise
        return order

    def check_model(self, name: str) -> None:
        if name != self.settings.name:
            why = f"the model {name[:64]!a} does not exist; use {self.settings.name!r}"
            raise ApiError(UNKNOWN, why, code="model_not_found", parameter="model")

    def _part(self, asked: Asked, tenant: Tenant) -> TextSoFar:
        """Return the text that a request continues. ApiError without proof that it is this tenant's."""
        assert asked.continuation is not None
        # how a text is marked follows from all but its length, which an operator may exempt below some number
        about = self._about(asked, tenant, self._marking(asked, tenant, None))
        return self.continuations.read(asked.continuation, about)

    def _about(self, asked: Asked, tenant: Tenant, marking: Marking) -> tuple[str, ...]:
        """Return what a text and its continuation must have in common."""
        kind = self.planned.watermark.part_for(self._sampling(asked)).name  # the marks of a rule have two keys
        return (tenant.id, marking.key_id, self.settings.name, self.watermark, self.policy, marking.unmarked, kind)

    def _sampling(self, asked: Asked) -> Sampling:
        sampling = asked.sampling(self.planned.sampling)
        return Sampling(**{name: sampling[name] for name in DRAWING if name in sampling})

    def _marking(self, asked: Asked, tenant: Tenant, most: int | None) -> Marking:
        """Return how a request's texts of at most this many tokens are marked; None = not exempt by their length."""
        watermark, policy = self.planned.marks.main
        return marking_of(
            tenant, self.settings, policy, self.planned.fewest, parts=len(self.planned.watermark.parts),
            max_tokens=self.planned.max_length if most is None else most, wants=asked.watermark, json=asked.json_mode,
            tools=asked.calls is not None, offered=bool(asked.offered), mark=watermark,
        )  # fmt: skip

    def _prompts(self, asked: Asked, part: TextSoFar | None) -> tuple[list[list[int]], tuple[int, ...]]:
        """Return (the ids of each prompt, the tokens that the text begins with)."""
        if part is None:
            return self.prompts.read(asked), ()
        ids = self.prompts.read_continued(asked, part)
        so_far = StopStrings(self.planned.tokenizer, list(asked.stops))
        if so_far.shown(list(part.tokens)) != so_far.text(list(part.tokens)):
            raise ApiError(BAD, "a stop string occurs in the text so far; leave it out", parameter="stop")
        return [ids], part.tokens

    def _check_room(self, count: int, tenant: Tenant) -> None:
        """Raise ApiError if this many texts cannot be accepted; checked again at submission."""
        if count > self.settings.max_choices:
            why = f"a request may ask for at most {self.settings.max_choices} texts, got {count}; send several requests"
            raise ApiError(BAD, why, parameter="n")
        try:
            self.engine.inbox.check(count, tenant.id)
        except (BusyError, ClosedError) as error:
            raise _refusal(error) from None

    def _budget(self, asked: Asked, prompts: Sequence[Sequence[int]]) -> int:
        longest, room = max(map(len, prompts)), self.planned.max_length
        asks = asked.max_tokens
        if isinstance(asked, ChatRequest):
            asks = asked.max_completion_tokens or asks or max(1, room - longest)
        most = asks or DEFAULT_MAX_TOKENS
        if longest + most > room:
            raise ApiError(
                BAD, f"a text may have at most {room} tokens in total, got a prompt of {longest} and max_tokens "
                f"{most}; shorten one of them", code="context_length_exceeded",
                parameter="messages" if isinstance(asked, ChatRequest) else "prompt",
            )  # fmt: skip
        return most

    def _grammar(self, asked: Asked) -> Callable[[], Grammar]:
        """Return a function that creates the grammar of each text. ApiError if that is impossible."""
        where = "response_format" if asked.calls is None else "tools"
        if self.grammars is None:
            why = f"JSON mode and tool calls are not available: {self.no_grammars}; leave {where} out"
            raise ApiError(BAD, why, parameter=where)
        if asked.calls is not None:
            return self.grammars.compiled(asked.calls.schema, compact=True)
        assert asked.response_format is not None
        return self.grammars.compiled(asked.response_format.schema_asked)

    def _row(self, asked: Asked, tenant: Tenant, marking: Marking, most: int, part: TextSoFar | None) -> RowSettings:
        seed = secrets.randbits(63) if part is None else part.seed
        if asked.seed is not None:
            seed = asked.seed
        sampling = asked.sampling(self.planned.sampling)
        factor = self.planned.factor_of(marking, self._sampling(asked))
        row = RowSettings(
            **sampling, max_new_tokens=most, seed=seed, strength_factor=factor,
            margin=marking.margin, key=tenant.key.key if marking.marked else None,
            begins=self.beginnings.allowed(tenant.id) and self._may_begin_freely(asked, most, part),
            log_probs=asked.alternatives is not None,
        )  # fmt: skip
        row = row_of(self.planned.watermark, row)
        try:
            row.check_vocabulary(self.planned.facts.vocab_size)
        except ValueError as error:
            raise ApiError(BAD, str(error), parameter="logit_bias") from None
        return row

    def _may_begin_freely(self, asked: Asked, most: int, part: TextSoFar | None) -> bool:
        """Tell whether a text may begin without the key, which the request alone decides. A continued one has had its
        beginning, unless it was cut within an exempt section before it.
        """
        if part is not None:
            bare, most = part.spent < math.inf, most - len(part.tokens)
        else:
            bare = isinstance(asked, ChatRequest) and asked.messages[-1].role != "assistant"
        bound = bool(asked.stops or asked.logit_bias or asked.json_mode or asked.calls or asked.offered)
        mark = self.planned.watermark
        return bare and may_begin_freely(most, mark.window if mark else 0, bound=bound)

    def _text(
        self, order: Order, tenant: Tenant, choice: int, request: Request, asked: Asked, part: TextSoFar | None,
        grammar: Callable[[], Grammar] | None,
    ) -> TextOrder:  # fmt: skip
        """Create one text of an order, with its receipt begun."""
        marking, stops = order.marking, StopStrings(self.planned.tokenizer, list(asked.stops))
        offer = order.calls if isinstance(order.calls, Offer) else None
        buffered, tested = not order.stream or marking.strict or asked.calls is not None, None
        if marking.level is not None:
            plain = not (marking.thinks or marking.spares)
            # a guard that reads whole texts shows nothing before the end, so what it cannot change is made again
            buffered = buffered or (plain and self.planned.guards(request.row, whole=True))
            rules = None if grammar is None else GrammarRules(grammar)
            tested = partial(
                self.planned.attempts, request, stops, marking.level, once=not buffered, plain=plain, rules=rules,
                subkey=None if part is None else part.subkey,
            )  # fmt: skip
        begun = Begun(
            id=str(uuid.uuid4()), request=order.id, choice=choice, tenant=tenant.id, key_id=marking.key_id,
            model=self.settings.name, watermark=self.watermark,
            policy=policy_text(self.planned.marks.kind(request.row).policy)
            + ("; thinking sections unmarked" if marking.thinks else "")
            + ("; calls unmarked" if marking.spares else ""), unmarked=marking.unmarked,
            detectable_at=marking.level, time=time.time(), keys=tenant.tried,
            continues="" if part is None else part.receipt,
        )  # fmt: skip
        try:
            handle = self.receipts.begin(begun)
        except Exception as error:
            self.lines.failed("a receipt could not be written", error)
            raise ApiError(503, "no receipt can be written, so no text is generated; try again later") from error
        by_template = request.ids if isinstance(asked, ChatRequest) else ()
        exempt = thinking = None
        if marking.thinks or marking.spares:
            given = {"thinks": marking.thinks, "calls": marking.spares}
            thinking = partial(Thinking, self.planned.tokenizer, by_template, **given)
        if offer is not None and marking.spares:
            exempt = partial(offer.suffices, stops, max(marking.strict_from, marking.fewest), marking.thinks)
        job = Job(
            request, stops, not buffered, partial(_heard, order, choice), tested, exempt, thinking, grammar, tenant.id
        )
        reached = partial(self.planned.p_value, key=tenant.key.key) if marking.marked else None
        unfolding = Unfolding(stops, None if offer is None else CALL)
        if request.begun:
            unfolding.go_on(request.begun)
        about, steered = self._about(asked, tenant, marking), asked.steers or (part is not None and part.steered)
        proof = partial(self._proof, begun.id, about, steered) if order.calls is None else None
        return TextOrder(job, begun, handle, unfolding, reached, proof, steered)

    def _proof(self, receipt: str, about: Sequence[str], steered: bool, done: Done) -> str:
        """Return the token with which a truncated text may be continued."""
        sequence, request, tested = done.sequence, done.sequence.request, done.receipt
        part = TextSoFar(
            tuple(sequence.tokens), sequence.open, sequence.spent, None if tested is None else tested.subkey, steered,
            prompt_digest(request.ids), len(request.ids), request.row.known_seed, request.occurrence, receipt,
            int(self.continuations.clock()) + LIFE,
        )  # fmt: skip
        return self.continuations.give(part, about)

    def _added(self, asked: Asked, text: TextOrder) -> tuple[bytes, str]:
        """Return a finished text's manifest, which `/v1/manifests` then has, and what is put behind the text."""
        label = AIGC_LABEL if self.settings.aigc_producer and not asked.json_mode else ""
        if self.signer is None:
            return b"", label
        says: dict[str, Any] = {"receipt": text.begun.id, "marked": text.marked}
        if text.marked:
            says["mark"] = {name: self.description[name] for name in ("format", "context_width", "tokenizer")}
        sent = text.unfolding.sent + label
        manifest, wrapper = self.signer.sign(sent, says, inside=bool(asked.embed_manifest))
        self.manifests[text.begun.id] = manifest
        if len(self.manifests) > MOST_MANIFESTS:
            self.manifests.popitem(last=False)
        return manifest, label + wrapper


def _grammars(planned: Planned) -> tuple[Grammars | None, str]:
    """Return the grammars of JSON mode, or None and the reason."""
    if planned.plan.captured:
        return None, "the server's steps are captured for a GPU"
    try:
        return Grammars(planned.tokenizer, planned.facts.vocab_size, tuple(planned.facts.ends)), ""
    except ImportError:
        return None, "the package llguidance is not installed"
    except ValueError:
        return None, "the model has a slow tokenizer"


def _heard(order: Order, choice: int, news: Any) -> None:
    order.news.put_nowait((choice, news))


def _refusal(error: BusyError | ClosedError) -> ApiError:
    if isinstance(error, GreedyError):
        why = "this tenant's share of the queue is full; try again later"
        return ApiError(BUSY, why, code="tenant_queue_full")
    if isinstance(error, BusyError):
        return ApiError(BUSY, "the queue is full; try again later", code="queue_full")
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down")
