"""The page at `/`: paste a text and see whether it is marked. A plain form, self-contained and without scripts.

It shows no more than `/v1/detect` returns to the same asker: a verdict to the public, everything to a tenant.
"""

from collections.abc import Mapping
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response

from caw.detection.drawing import Stretch
from caw.detection.html_report import STYLE, one_of
from caw.io.pages import content_policy, template
from caw.io.show import format_p
from caw.serve.contracts import LEVEL
from caw.serve.desk import Desk
from caw.serve.detecting import MAX_LETTERS, Finding
from caw.serve.errors import BAD, BUSY, DENIED, FORBIDDEN, UNKNOWN, ApiError
from caw.serve.languages import LANGUAGES, language_of
from caw.serve.metrics import Metrics

FORM = "application/x-www-form-urlencoded"
FIELDS = 8  # of a form; ours has two
# an error's name in the texts, where it is not about the text; "late" for the rest
ERRORS = {BAD: "form", DENIED: "key", FORBIDDEN: "site", UNKNOWN: "none", BUSY: "busy"}
WHOLE_STYLE = STYLE + template("caw.serve", "page.css").render()
# with no referrer at all browsers would send the form as if from nowhere, and the server would take it for a stranger's
HEADERS = {
    "content-security-policy": content_policy(WHOLE_STYLE, "form-action 'self'", "frame-ancestors 'none'"),
    "x-content-type-options": "nosniff", "referrer-policy": "same-origin", "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
}  # fmt: skip


class Page:
    """Renders the page of one service.

    Args:
        name: of the model. asks_key: whether to offer an API key field, because there are several tenants.
    """

    def __init__(self, name: str, *, asks_key: bool) -> None:
        self.name, self.asks_key = name, asks_key
        self._template = template("caw.serve", "page.html", p=format_p, shade=shade)

    def html(self, language: str, text: str = "", finding: Finding | None = None, error: str = "") -> str:
        """Return the page with a visitor's text and the result or the error of that name; never with their API key."""
        texts = LANGUAGES[language]

        def grouped(number: int) -> str:
            return f"{number:,}".replace(",", texts["thousands"])

        def chance(p: float) -> str:
            if p > 0.3:
                return str(texts["often"].format(n=round(10 * p)))
            return str(texts["never"] if p < 1e-15 else texts["once"].format(n=grouped(one_of(p))))

        return self._template.render(
            name=self.name, asks_key=self.asks_key, text=text, finding=finding, error=error, style=WHOLE_STYLE,
            title="" if finding is None else texts["verdicts"][finding.verdict]["title"], most=MAX_LETTERS, t=texts,
            language=language, languages=LANGUAGES, grouped=grouped, chance=chance, one_in=grouped(one_of(LEVEL)),
        )  # fmt: skip


def shade(stretch: Stretch) -> str:
    """Return the CSS class of its colour: one step per standard deviation, at most three."""
    if stretch.lean is None:
        return "again"
    return f"p{min(3, 1 + int(stretch.lean))}" if stretch.lean > 0 else f"m{min(2, 1 + int(-stretch.lean))}"


def add_page(app: FastAPI, service: Desk, metrics: Metrics) -> None:
    page = Page(service.settings.name, asks_key=service.directory.tenant_for(None) is None)

    @app.get("/")
    async def empty(request: Request) -> Response:
        return HTMLResponse(page.html(_language(request)), headers=HEADERS)

    @app.post("/")
    async def tested(request: Request) -> Response:
        text, finding, error, status = "", None, "", 200
        try:
            fields = await _fields(request)
            text = fields.get("text", "")
            key = fields.get("key", "").strip()
            tenant = await service.tenant(key) if key else await service.visitor()
            address = request.client.host if request.client else ""
            finding = await service.detection.answer(text, tenant, address, draw=True)
        except ApiError as failed:
            error = "text" if failed.parameter == "text" else ERRORS.get(failed.status, "late")
            status = failed.status
        metrics.answered("/", status)
        shown = await service.threaded(page.html, _language(request), text, finding, error)
        return HTMLResponse(shown, status, HEADERS)


def _language(request: Request) -> str:
    return language_of(",".join(request.headers.getlist("accept-language")), request.query_params.get("lang", ""))


async def _fields(request: Request) -> Mapping[str, str]:
    """Return the form of a request, with line breaks normalised: browsers send two characters for one.

    Raises ApiError for anything that our form does not send, and for forms of other sites.
    """
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise ApiError(FORBIDDEN, "the form came from another site; paste the text here")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise ApiError(BAD, "the form could not be read; paste the text here")
    try:
        body = (await request.body()).decode("ascii")
        fields = parse_qs(body, keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except ValueError:  # bytes that are no text, or more fields
        raise ApiError(BAD, "the form could not be read; paste the text here") from None
    return {name: values[0].replace("\r\n", "\n") for name, values in fields.items()}
