"""HTML pages from templates: values are escaped, nothing is fetched from elsewhere, and no script runs."""

import base64
import hashlib
from collections.abc import Callable

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def template(package: str, name: str, **filters: Callable[..., str]) -> Template:
    """Load a template of a package's folder `templates`; filters: by name."""
    environment = Environment(
        loader=PackageLoader(package), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(filters)
    return environment.get_template(name)


def content_policy(style: str, *more: str) -> str:
    """Return a Content-Security-Policy that allows a page only this style sheet. more: further rules."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return "; ".join(["default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'", *more])
