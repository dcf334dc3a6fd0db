"""Pages from templates: what goes in is shown as text, nothing is fetched from elsewhere, and no script runs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(package: str, name: str, **filters: Callable[..., str]) -> Template:
    """A template of a package's folder `templates`; filters: by the name that it calls them."""
    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(filters)
    return environment.get_template(name)


def content_policy(style: str, *more: str) -> str:
    """A Content-Security-Policy under which a page has this one style sheet and nothing else. more: of its rules."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return "; ".join(["default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'", *more])
