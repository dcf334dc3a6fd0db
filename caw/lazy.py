"""Names of a package that are imported at their first use (PEP 562), so that the package itself costs nothing."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing this must take no time: not even typing is
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose `homes` say in which module each name lives.

    The package's modules are found as well, as if they had been imported. No module may have the name of a home's
    name: importing it would put the module in the name's place.
    """

    def get(name: str) -> Any:
        import importlib.util

        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
