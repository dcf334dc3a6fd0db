"""Package attributes that are imported on first use (PEP 562), so that importing the package is cheap."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing this must take no time: not even typing is
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package; `modules` maps modules to their names.

    The package's modules are available too, as if imported. No module may share its name with one of these attributes:
    importing it would replace the attribute.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        import importlib.util

        if name in homes:
            try:
                value = getattr(importlib.import_module(homes[name]), name)
            except ModuleNotFoundError as error:
                from caw.requirements import PACKAGES, missing

                if error.name not in PACKAGES:
                    raise
                raise ImportError(missing(error.name, f"{package}.{name}")) from error
            setattr(sys.modules[package], name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}") is not None:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def every() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes} - {"TYPE_CHECKING", "lazy", "lazy_names"})

    return get, every
