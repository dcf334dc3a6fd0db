"""The application: one handler per path."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from caw.manifest import KIND
from caw.serve.answering import MANIFESTS, Answer
from caw.serve.body_limits import BodyLimits
from caw.serve.contracts import Tenant
from caw.serve.description import PATH
from caw.serve.desk import Desk
from caw.serve.detecting import DetectRequest
from caw.serve.errors import BAD, UNKNOWN, ApiError, encoded
from caw.serve.metrics import Metrics
from caw.serve.page import add_page
from caw.serve.requests import ChatRequest, CompletionRequest, StreamOptions
from caw.serve.service import MOST_MANIFESTS, Service
from caw.serve.settings import LOOPBACK
from caw.serve.shapes import Chat, Completions, Shape
from caw.serve.strict import SENTENCE

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Utf8Request(Request):
    """A body is JSON in UTF-8, as RFC 8259 says; Python's own reader would guess UTF-16 and UTF-32 too."""

    async def json(self) -> Any:
        """Return the body, a byte order mark aside; HTTPException for another encoding, ValueError for no JSON."""
        body = await self.body()
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text[:4]:  # JSON begins with ASCII, so other encodings have zeros there
            raise HTTPException(BAD, "the body must be JSON in UTF-8, got another encoding; send it as UTF-8")
        return json.loads(text)


class Utf8Route(APIRoute):
    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def utf8(request: Request) -> Response:
            return await handler(Utf8Request(request.scope, request.receive))

        return utf8


FRESH = 1.0  # seconds for which a check of the receipts counts


def make_app(service: Desk) -> FastAPI:
    """Build the application of a service, or of one that only tests texts; it runs from startup to shutdown."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    # no pages of documentation: they would fetch scripts from elsewhere; no redirects: they would go where the client's
    # own Host says
    app = FastAPI(
        title="caw", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.service = service
    app.router.route_class = Utf8Route
    metrics = Metrics(service.engine if isinstance(service, Service) else None)
    settings = service.settings
    hosts = {*LOOPBACK, "[::1]"} if settings.local and not settings.proxies else None
    app.add_middleware(BodyLimits, most=settings.max_body, seconds=settings.read_timeout, hosts=hosts)
    _add_errors(app, metrics)
    _add_status(app, service, metrics)
    if isinstance(service, Service):
        _add_texts(app, service, metrics)
    _add_detection(app, service, metrics)
    add_page(app, service, metrics)
    for route in app.routes:
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")  # its answer is the same, and the connection leaves the body out
    return app


async def _client(request: Request) -> Tenant:
    tenant: Tenant = await request.app.state.service.tenant(_bearer(request))
    return tenant


async def _asker(request: Request) -> Tenant | None:
    bearer = _bearer(request)
    tenant: Tenant | None = await request.app.state.service.visitor() if bearer is None else await _client(request)
    return tenant


# found before a body is looked into: strangers cost no more than reading it
Client = Annotated[Tenant, Depends(_client)]
Asker = Annotated[Tenant | None, Depends(_asker)]


def _add_detection(app: FastAPI, service: Desk, metrics: Metrics) -> None:
    """Add the path that tests texts, and the one that describes their mark."""

    @app.get(PATH)
    def description() -> Response:
        return _json(service.description)

    @app.post("/v1/detect")
    async def detect(asked: DetectRequest, request: Request, tenant: Asker) -> Response:
        address = request.client.host if request.client else ""
        finding = await service.detection.answer(asked.text, tenant, address)
        metrics.answered(request.url.path, 200)
        return _json(finding.as_dict())


def _add_texts(app: FastAPI, service: Service, metrics: Metrics) -> None:
    settings = (service.planned.tokenizer, service.settings.aigc_producer)
    chat, completions = Chat(*settings), Completions(*settings)
    model = {"id": service.settings.name, "object": "model", "created": 0, "owned_by": "caw"}

    async def answer(asked: Any, shape: Shape, tenant: Tenant) -> Response:
        order = await service.order(asked, tenant, shape.prefix)
        metrics.taken(order)
        return Answer(order, shape, service.settings, metrics, asked.stream_options or StreamOptions())

    @app.post("/v1/chat/completions")
    async def chat_completions(asked: ChatRequest, tenant: Client) -> Response:
        return await answer(asked, chat, tenant)

    @app.post("/v1/completions")
    async def plain_completions(asked: CompletionRequest, tenant: Client) -> Response:
        return await answer(asked, completions, tenant)

    @app.get(f"{MANIFESTS}/{{receipt}}")
    async def manifest(receipt: str) -> Response:  # of anybody's text: it does not hold the text, and its id is random
        if (found := service.manifests.get(receipt)) is None:
            why = f"no manifest of this receipt is here, which has those of its last {MOST_MANIFESTS} texts"
            raise ApiError(UNKNOWN, f"{why}; use the answer's")
        return Response(found, media_type=KIND)

    @app.get("/v1/models", dependencies=[Depends(_client)])
    async def models() -> Response:
        return _json({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", dependencies=[Depends(_client)])
    async def one_model(name: str) -> Response:
        service.check_model(name)
        return _json(model)


def _add_status(app: FastAPI, service: Desk, metrics: Metrics) -> None:
    turn, checked = asyncio.Lock(), [-FRESH, 0.0]  # when it was checked, and whether that failed

    @app.get("/health")
    async def health() -> Response:
        if service.state != "ok":
            return _json({"status": service.state}, 503)
        async with turn:  # anyone may ask, and each check is a commit: one a second serves all who ask
            if time.monotonic() >= checked[0] + FRESH:
                checked[:] = [time.monotonic(), await _broken(service)]
        return _json({"status": service.broken if checked[1] else "ok"}, 503 if checked[1] else 200)

    @app.get("/metrics")
    async def shown() -> Response:
        return Response(metrics.shown(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _broken(service: Desk) -> bool:
    try:
        await service.threaded(service.check)
    except Exception as error:
        service.lines.failed(service.broken, error)
        return True
    return False


def _add_errors(app: FastAPI, metrics: Metrics) -> None:
    """Return every error in OpenAI's shape; it repeats no more of a request than the name of a parameter."""

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
        message = f"invalid request: {where or 'body'}: {first['msg']}"
        if first["type"] == SENTENCE:
            message = f"{where}: {first['msg']}"
        if not where and not broken:  # as from `curl -d` without a header, which calls it a form
            message = "the body must be a JSON object; send one with content-type: application/json"
        return await refused(request, ApiError(BAD, message, parameter=where or None))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        why = str(error.detail)
        if error.status_code == UNKNOWN:
            paths = sorted({each.path for each in app.routes if isinstance(each, APIRoute)}, key=len, reverse=True)
            asked = re.sub("/+", "/", request.url.path).rstrip("/")  # as of a base URL with a slash or a part too many
            asked = re.sub("/v1/responses(/.*)?$", "/v1/chat/completions", asked)  # OpenAI's newer interface
            meant = [path for path in paths if "{" not in path and asked.endswith(path.removeprefix("/v1") or path)]
            why = f"this server has no such path; use {meant[0] if meant and asked else ', '.join(sorted(paths))}"
        answer = await refused(request, ApiError(error.status_code, why))
        answer.headers.update(error.headers or {})  # which methods a path has
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return await refused(request, ApiError(500, "the server failed; try again later"))


def _bearer(request: Request) -> str | None:
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" and key.strip() else None


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(value), status, headers, "application/json")
