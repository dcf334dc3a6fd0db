"""Receipts as the endpoint makes them."""

import dataclasses
from typing import Any

from caw.serve.contracts import Begun, Closed


def begun(id: str, **changes: Any) -> Begun:
    whole = Begun(
        id, "chatcmpl-1", 0, "acme", "1a2b3c4d", "smollm2-135m", "kgw(gamma=0.25)", "FixedStrength(strength=1.0)", "",
        1e-3, 1796126400.25,
    )  # fmt: skip
    return dataclasses.replace(whole, **changes)


def closed(**changes: Any) -> Closed:
    return dataclasses.replace(Closed("complete", "stop", 1.5e-7, True, "", 1, 200, "ab" * 32, 1796126401.5), **changes)
