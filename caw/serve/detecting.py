"""Detection on the server: exact for tenants, coarse for the public.

An attacker with unlimited queries and exact answers could edit a text until it is no longer detected. So the public
gets one of three verdicts, only for texts of sufficient length, and at a limited rate.
"""

import asyncio
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from caw.detection.drawing import Stretch, stretches
from caw.detection.family import part_of
from caw.detection.many_keys import KeySearch, KeySearchResult
from caw.detection.message import listed
from caw.io.unicode import is_unicode
from caw.manifest import Record, bare, read
from caw.serve.contracts import LEVEL, KeyDirectory, Tenant
from caw.serve.errors import BAD, BUSY, ApiError
from caw.serve.log_lines import LogLines
from caw.serve.reading import Reading
from caw.serve.strict import Strict
from caw.watermarks.green_list import GreenList

MAX_LETTERS = 100_000
LEAST_TOKENS = 60  # of a text that the public may ask about
PUBLIC_RATE, PUBLIC_BURST = 0.2, 10  # questions a second of one address, and at once
MOST_WAITING, MOST_PUBLIC = 32, 8  # texts that wait in all, and before which the public's may wait
DEADLINE = 60.0  # seconds within which a text is answered
CACHED = 64  # tenants whose prepared keys are cached
MOST_DRAWN = 5000  # stretches of a text that a page shows
EVERYBODY = "everybody"
MARKED, NONE, SHORT = "marked", "no mark found", "too short"


class DetectRequest(Strict):
    """`/v1/detect`."""

    text: str


@dataclass(frozen=True)
class Finding:
    """Result of one text for the keys of its asker.

    verdict: MARKED, NONE or SHORT. found: the full result, None for the public. keys: number of keys tried. green:
    whether the best key counts green tokens, and their share by chance; None for other watermarks. drawn: the text
    under the best key, for a page. cut: whether it is truncated. undone: changes that other readings undid, for a page.
    record: of a manifest inside the text, which does not count, None = there is none.
    """

    verdict: str
    message: str
    found: KeySearchResult | None = None
    keys: int = 0
    green: float | None = None
    drawn: tuple[Stretch, ...] = ()
    cut: bool = False
    undone: str = ""
    record: Record | None = None

    def as_dict(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"object": "detection", "verdict": self.verdict, "message": self.message}
        if self.record is not None:
            answer |= {
                "message": f"{self.message.rstrip('.')}. {self.record.message}",
                "manifest": asdict(self.record),
            }
        search = self.found
        if search is None:
            return answer
        matches = [
            {"key_id": name, "p_value": float(result.p_value), "scored": result.num_scored}
            | ({} if result.subkey is None else {"subkey": result.subkey})
            | ({} if result.family is None else {"family": result.family})
            for name, result in search.results.items()
        ]
        return answer | {
            "p_value": search.p_value, "level": search.fpr, "tokens": search.tokens, "keys": self.keys,
            "matches": matches,
        }  # fmt: skip


class Detection:
    """Tests texts one by one in its own thread.

    Args:
        reading: provides watermark and tokenizer. directory: provides keys. lines: of the server's log. trust: PEM,
            issuers of manifests.
    """

    def __init__(self, reading: Reading, directory: KeyDirectory, lines: LogLines, trust: str = "") -> None:
        self.reading, self.directory, self.lines, self.trust = reading, directory, lines, trust
        self.rates, self.all = Rates(PUBLIC_RATE, PUBLIC_BURST), Rates(10 * PUBLIC_RATE, 10 * PUBLIC_BURST)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="caw-detect")
        self._waiting = 0
        self._ready: OrderedDict[str | None, tuple[tuple[str, ...], KeySearch | None]] = OrderedDict()
        self._lock = threading.Lock()

    async def answer(self, text: str, tenant: Tenant | None, address: str, *, draw: bool = False) -> Finding:
        """Return the result for the asker. tenant: None for the public, identified by `address`. draw: for a page.

        Raises ApiError for a text that cannot be tested, and above the rate limit.
        """
        if not 0 < len(text) <= MAX_LETTERS or not is_unicode(text):
            why = f"text must be 1 to {MAX_LETTERS} characters of valid Unicode; send a part of it"
            raise ApiError(BAD, why, parameter="text")
        if tenant is None and not (self.rates.allows(asker_of(address)) and self.all.allows(EVERYBODY)):
            raise ApiError(
                BUSY, "rate limit for requests without an API key exceeded; try again in a minute", code="rate_limit"
            )
        if self._waiting >= (MOST_PUBLIC if tenant is None else MOST_WAITING):
            raise ApiError(BUSY, "the queue for detection is full; try again later", code="queue_full")
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._tested, text, tenant, draw)
        try:
            done, _ = await asyncio.wait([work], timeout=DEADLINE)  # a text whose turn has come is tested to its end
        finally:
            work.cancel()
            self._waiting -= 1
        if not done:
            raise ApiError(503, f"no result within {DEADLINE:g} s; try again later, or send a part of the text")
        return work.result()

    def close(self) -> None:
        self._thread.shutdown()

    def _tested(self, text: str, tenant: Tenant | None, draw: bool) -> Finding:
        finding = self._found(bare(text), tenant, draw)
        return replace(finding, record=read(text, self.trust))

    def _found(self, text: str, tenant: Tenant | None, draw: bool) -> Finding:
        search = self._search(tenant)
        if search is None:
            raise ApiError(404, "no public keys to test for; ask the operator for an API key")
        [result] = search([text])
        if result.error:
            raise ApiError(BAD, result.error, parameter="text")
        if tenant is None:
            return _coarse(result)
        mark = search.watermarks[search.names.index(result.likeliest)]
        mark = part_of(mark, None if result.nearest is None else result.nearest.family)
        green = mark.null_moments[0] if isinstance(mark, GreenList) else None
        drawn: tuple[Stretch, ...] = ()
        if draw and result.nearest is not None:
            drawn = tuple(islice(stretches(result.nearest, mark, self.reading.tokenizer), MOST_DRAWN + 1))
        cut, holds = len(drawn) > MOST_DRAWN, "" if result.nearest is None else listed(result.nearest.undone)
        return Finding(
            _verdict(result), result.message, result, len(search.names), green, drawn[:MOST_DRAWN], cut, holds
        )

    def _search(self, tenant: Tenant | None) -> KeySearch | None:
        """Return the prepared keys of an asker; None if there are none."""
        try:
            keys = {key.id: key for key in self.directory.detection_keys(tenant)}
        except Exception as error:
            self.lines.failed("marking keys could not be read", error)
            raise ApiError(503, "the keys to test for could not be read; ask the operator") from error
        who, names = None if tenant is None else tenant.id, tuple(keys)
        with self._lock:
            known, search = self._ready.pop(who, ((), None))
            if known != names or search is None:
                marks = {name: self.reading.mark_of(key) for name, key in keys.items()}
                search = KeySearch(self.reading.tokenizer, marks, LEVEL) if marks else None
            self._ready[who] = (names, search)
            if len(self._ready) > CACHED:
                self._ready.popitem(last=False)
        return search


def _verdict(result: KeySearchResult) -> str:
    return MARKED if result.is_watermarked else SHORT if result.is_undecided else NONE


def _coarse(result: KeySearchResult) -> Finding:
    verdict = SHORT if result.tokens < LEAST_TOKENS else _verdict(result)
    sentence = {
        MARKED: "The text carries a mark of this service.",
        NONE: "No mark of this service was found. This does not tell who wrote the text.",
        SHORT: "The text is too short to decide.",
    }[verdict]
    # what the text holds is no secret of ours; what each reading of it scored is, so no number is told
    parts = () if result.nearest is None else result.nearest.undone
    holds = listed([part.lstrip("0123456789, ") for part in parts])
    return Finding(
        verdict, f"{sentence} It contains {holds}: it was tested with and without." if holds else sentence, undone=holds
    )


MOST = 10_000  # askers in the LRU cache


def asker_of(address: str) -> str:
    """Return the identity behind an address: for IPv6 its /64, because one user has 2^64 addresses there."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


class Rates:
    """Token bucket: `burst` requests at once, `rate` more a second, for each asker. Not thread-safe; clock: seconds."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, asker: str) -> bool:
        """Return whether one more request is allowed now, and count it."""
        now = self.clock()
        left, then = self._left.pop(asker, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[asker] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return allowed
