"""The application: what each path does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from caw.serve.answering import Answer
from caw.serve.contracts import Tenant
from caw.serve.detecting import DetectRequest
from caw.serve.errors import BAD, ApiError, encoded
from caw.serve.guard import Guard
from caw.serve.metrics import Metrics
from caw.serve.page import add_page
from caw.serve.requests import ChatRequest, CompletionRequest, Sampling
from caw.serve.service import Service
from caw.serve.settings import LOOPBACK
from caw.serve.shapes import Chat, Completions, Shape

LOG = logging.getLogger("caw.serve")
FRESH = 1.0  # seconds for which a check of the receipts counts


def make_app(service: Service) -> FastAPI:
    """The application of a service; its engine runs from start-up to shut-down."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start(asyncio.get_running_loop())
        try:
            yield
        finally:
            await service.close()

    # no pages of documentation: they would fetch scripts from elsewhere; no redirects: they would go where the client's
    # own Host says
    app = FastAPI(
        title="caw", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.service = service
    metrics = Metrics(service.engine)
    settings = service.settings
    hosts = {*LOOPBACK, "[::1]"} if settings.local and not settings.proxies else None
    app.add_middleware(Guard, most=settings.max_body, seconds=settings.read_timeout, hosts=hosts)
    _add_errors(app, metrics)
    _add_status(app, service, metrics)
    _add_texts(app, service, metrics)
    _add_detection(app, service, metrics)
    add_page(app, service, metrics)
    return app


async def _client(request: Request) -> Tenant:
    found: Tenant = await request.app.state.service.tenant(_bearer(request))
    return found


async def _asker(request: Request) -> Tenant | None:
    bearer = _bearer(request)
    found: Tenant | None = await request.app.state.service.visitor() if bearer is None else await _client(request)
    return found


# found before a body is looked into: strangers cost no more than reading it
Client = Annotated[Tenant, Depends(_client)]
Asker = Annotated[Tenant | None, Depends(_asker)]


def _add_detection(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """The path of texts that are to be tested."""

    @app.post("/v1/detect")
    async def detect(asked: DetectRequest, request: Request, tenant: Asker) -> Response:
        address = request.client.host if request.client else ""
        finding = await service.detection.answer(asked.text, tenant, address)
        metrics.answered(request.url.path, 200)
        return _json(finding.as_dict())


def _add_texts(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """Paths of texts, and of the model that makes them."""
    chat, completions = Chat(service.planned.tokenizer), Completions(service.planned.tokenizer)
    model = {"id": service.settings.name, "object": "model", "created": 0, "owned_by": "caw"}

    async def answer(asked: Any, shape: Shape, tenant: Tenant) -> Response:
        order = await service.order(asked, tenant, shape.prefix)
        metrics.taken(order)
        return Answer(order, shape, service.settings, metrics, usage=_wants_usage(asked))

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, tenant: Client) -> Response:
        return await answer(asked, chat, tenant)

    @app.post("/v1/completions")
    async def plain_completions(asked: CompletionRequest, tenant: Client) -> Response:
        return await answer(asked, completions, tenant)

    @app.get("/v1/models", dependencies=[Depends(_client)])
    async def models() -> Response:
        return _json({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", dependencies=[Depends(_client)])
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return _json(model)


def _add_status(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """Paths for those who run the server."""
    turn, checked = asyncio.Lock(), [-FRESH, 0.0]  # when receipts were checked, and whether that failed

    @app.api_route("/health", methods=["GET", "HEAD"])  # balancers ask by either
    async def health() -> Response:
        engine = service.engine
        if engine.failed or engine.inbox.closed:
            return _json({"status": "failed" if engine.failed else "closing"}, 503)
        async with turn:  # anyone may ask, and each check is a commit: one a second serves all who ask
            if time.monotonic() >= checked[0] + FRESH:
                checked[:] = [time.monotonic(), await _receipts_fail(service)]
        return _json({"status": "receipts cannot be written" if checked[1] else "ok"}, 503 if checked[1] else 200)

    @app.get("/metrics")
    async def shown() -> Response:
        return Response(metrics.shown(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _receipts_fail(service: Service) -> bool:
    try:
        await service.threaded(service.receipts.check)
    except Exception:
        LOG.exception("receipts cannot be written")
        return True
    return False


def _add_errors(app: FastAPI, metrics: Metrics) -> None:
    """Every error in OpenAI's shape, which repeats no more of a request than the name of a parameter."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        metrics.answered(request.url.path, error.status)
        headers = {429: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(error.status, {})
        return _json(error.body, error.status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        broken = first["type"] == "json_invalid"  # its place is a number of letters
        where = "" if broken else ".".join(str(part)[:64] for part in first["loc"] if part != "body")
        message = f"the request is not valid: {where or 'body'}: {first['msg']}"
        if not where and not broken:  # as from `curl -d` without a header, which calls it a form
            message = "the body must be a JSON object, got something else; send one with content-type: application/json"
        return await refused(request, ApiError(BAD, message, parameter=where or None))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        answer = await refused(request, ApiError(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})  # which methods a path has
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return await refused(request, ApiError(500, "the server failed; try again later"))


def _bearer(request: Request) -> str | None:
    """The API key of a request, None without one."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" and key.strip() else None


def _wants_usage(asked: Sampling) -> bool:
    return asked.stream_options is not None and asked.stream_options.include_usage


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(value), status, headers, "application/json")
