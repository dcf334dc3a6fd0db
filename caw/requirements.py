"""Checks for optional packages, made before work starts rather than at its end."""

import importlib.util
import sys
from importlib import metadata

# module to import, and the extra of this library that brings the package
PACKAGES = {
    "accelerate": ("accelerate", "demo"),
    "c2pa-python": ("c2pa", "c2pa"),
    "c2pa-text": ("c2pa_text", "c2pa"),
    "cryptography": ("cryptography", "registry"),
    "datasets": ("datasets", "eval"),
    "fastapi": ("fastapi", "serve"),
    "gguf": ("gguf", "demo"),
    "jinja2": ("jinja2", "registry"),
    "matplotlib": ("matplotlib", "plot"),
    "openai": ("openai", "label"),
    "pyyaml": ("yaml", "eval"),
    "ray": ("ray", "ray"),
    "reedsolo": ("reedsolo", "payload"),
    "scikit-learn": ("sklearn", "eval"),
    "sqlalchemy": ("sqlalchemy", "registry"),
    "torch": ("torch", "generate"),
    "transformers": ("transformers", "generate"),
}


def require(package: str, purpose: str) -> None:
    """Raise ImportError in one sentence unless the package (of PACKAGES) is installed; it is not imported.

    purpose: what it is needed for, as the words after "required for".
    """
    if not there(PACKAGES[package][0]):
        raise ImportError(missing(package, purpose))


def missing(package: str, purpose: str) -> str:
    """The sentence about a package of PACKAGES that is not installed."""
    extra = PACKAGES[package][1]
    return f"{package} is required for {purpose} and is not installed; run `pip install 'caw-watermark[{extra}]'`"


def there(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what finders that block a package raise
        return False
    except ValueError:  # a module without a spec, which somebody put in sys.modules
        return sys.modules.get(module) is not None


def namesake() -> str:
    """Say that another project's distribution "caw" is installed, which writes into the same folder; "" if not."""
    try:
        summary = metadata.metadata("caw")["Summary"] or ""
    except metadata.PackageNotFoundError:
        return ""
    if "atermark" in summary:  # this library under its first name, in a checkout that built it then
        return ""
    return (
        "expected caw-watermark alone, found another project's distribution caw beside it, whose files replace this "
        "library's; run `pip uninstall caw`, then `pip install --force-reinstall --no-deps caw-watermark`"
    )
