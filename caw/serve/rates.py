"""How often somebody may ask."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

MOST = 10_000  # askers that are remembered; who is forgotten first asked longest ago


def asker_of(address: str) -> str:
    """Who asks from an address: of IPv6 its /64, because whoever has one address there has 2^64 of them."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


class Rates:
    """`burst` questions at once, `rate` more each second, for each asker. Not for several threads.

    clock: seconds, which never go back.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self.clock = rate, burst, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, asker: str) -> bool:
        """Whether one more question is allowed now; it then counts."""
        now = self.clock()
        left, then = self._left.pop(asker, (float(self.burst), now))
        left = min(float(self.burst), left + (now - then) * self.rate)
        allowed = left >= 1
        self._left[asker] = (left - 1 if allowed else left, now)
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return allowed
