"""Whether a text is marked under the keys that its asker may test: exact for tenants, coarse for the public.

Whoever can ask as often as they like, and is told how near a text is to being found, can edit it until it is not. So
the public gets one of three words, for texts long enough to say something of, and only so often.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from caw.detection.drawing import Stretch, stretches
from caw.detection.many_keys import KeySearch, KeySearchResult
from caw.io.unicode import is_unicode
from caw.serve.contracts import LEVEL, KeyDirectory, Tenant
from caw.serve.errors import BAD, BUSY, ApiError
from caw.serve.planning import Planned
from caw.serve.rates import Rates, asker_of
from caw.serve.strict import Strict
from caw.watermarks.green_list import GreenList

MAX_LETTERS = 100_000
LEAST_TOKENS = 60  # of a text that the public may ask about
PUBLIC_RATE, PUBLIC_BURST = 0.2, 10  # questions a second of one address, and at once
MOST_WAITING, MOST_PUBLIC = 32, 8  # texts that wait in all, and before which the public's may wait
KEPT = 64  # tenants whose keys are kept ready
MOST_DRAWN = 5000  # stretches of a text that a page shows
EVERYBODY = "everybody"
MARKED, NONE, SHORT = "marked", "no mark found", "too short"


class DetectRequest(Strict):
    """`/v1/detect`."""

    text: str


@dataclass(frozen=True)
class Finding:
    """What one text says about the keys of its asker.

    verdict: MARKED, NONE or SHORT. found: everything, None for the public. keys: how many were tried. green: whether
    the likeliest key counts green tokens, and the share of them by chance; None for other watermarks.
    drawn: the text under the likeliest key, where a page is to show it. cut: whether more followed.
    """

    verdict: str
    message: str
    found: KeySearchResult | None = None
    keys: int = 0
    green: float | None = None
    drawn: tuple[Stretch, ...] = ()
    cut: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What `/v1/detect` answers."""
        told: dict[str, Any] = {"object": "detection", "verdict": self.verdict, "message": self.message}
        found = self.found
        if found is None:
            return told
        matches = [
            {"key_id": name, "p_value": float(result.p_value), "scored": result.num_scored}
            for name, result in found.results.items()
        ]
        return told | {
            "p_value": found.p_value, "level": found.fpr, "tokens": found.tokens, "keys": self.keys, "matches": matches,
        }  # fmt: skip


class Detection:
    """Tests texts in a thread of its own, one after the other.

    Args:
        planned: whose watermark and tokenizer count. directory: which keys are whose.
    """

    def __init__(self, planned: Planned, directory: KeyDirectory) -> None:
        self.planned, self.directory = planned, directory
        self.rates, self.all = Rates(PUBLIC_RATE, PUBLIC_BURST), Rates(10 * PUBLIC_RATE, 10 * PUBLIC_BURST)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="caw-detect")
        self._waiting = 0
        self._ready: OrderedDict[str | None, tuple[tuple[str, ...], KeySearch | None]] = OrderedDict()
        self._lock = threading.Lock()

    async def answer(self, text: str, tenant: Tenant | None, address: str, *, draw: bool = False) -> Finding:
        """What the asker is told. tenant: None for the public, told apart by `address`. draw: for a page.

        Raises ApiError for a text that cannot be tested, and for one question too many.
        """
        if not 0 < len(text) <= MAX_LETTERS or not is_unicode(text):
            said = f"text must have 1 to {MAX_LETTERS} letters of valid Unicode, got others; send a part of it"
            raise ApiError(BAD, said, parameter="text")
        if tenant is None and not (self.rates.allows(asker_of(address)) and self.all.allows(EVERYBODY)):
            raise ApiError(BUSY, "too many questions without an API key; try again in a minute", code="rate_limit")
        if self._waiting >= (MOST_PUBLIC if tenant is None else MOST_WAITING):
            raise ApiError(BUSY, "too many texts wait to be tested; try again later", code="queue_full")
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._tested, text, tenant, draw)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown()

    def _tested(self, text: str, tenant: Tenant | None, draw: bool) -> Finding:
        search = self._search(tenant)
        if search is None:
            raise ApiError(404, "there are no keys to test texts with; ask the operator for an API key")
        [found] = search([text])  # type: ignore[misc]
        if found.error:
            raise ApiError(BAD, found.error, parameter="text")
        if tenant is None:
            return _coarse(found)
        mark = search.watermarks[search.names.index(found.likeliest)]
        green = mark.null_moments[0] if isinstance(mark, GreenList) else None
        drawn: tuple[Stretch, ...] = ()
        if draw and found.nearest is not None:
            drawn = tuple(islice(stretches(found.nearest, mark, self.planned.tokenizer), MOST_DRAWN + 1))
        cut = len(drawn) > MOST_DRAWN
        return Finding(_verdict(found), found.message, found, len(search.names), green, drawn[:MOST_DRAWN], cut)

    def _search(self, tenant: Tenant | None) -> KeySearch | None:
        """The keys of an asker, made ready; None without any."""
        keys = {key.id: key for key in self.directory.detection_keys(tenant)}
        who, names = None if tenant is None else tenant.id, tuple(keys)
        with self._lock:
            known, search = self._ready.pop(who, ((), None))
            if known != names or search is None:
                marks = {name: self.planned.mark_of(key) for name, key in keys.items()}
                search = KeySearch(self.planned.tokenizer, marks, LEVEL) if marks else None
            self._ready[who] = (names, search)
            if len(self._ready) > KEPT:
                self._ready.popitem(last=False)
        return search


def _verdict(found: KeySearchResult) -> str:
    return MARKED if found.is_watermarked else SHORT if found.is_undecided else NONE


def _coarse(found: KeySearchResult) -> Finding:
    """What the public is told."""
    verdict = SHORT if found.tokens < LEAST_TOKENS else _verdict(found)
    return Finding(verdict, {
        MARKED: "The text carries a mark of this service.",
        NONE: "No mark of this service was found. That does not say who wrote the text.",
        SHORT: "The text is too short to say anything of.",
    }[verdict])  # fmt: skip
