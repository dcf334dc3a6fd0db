"""`caw serve --profile`: defaults of options from a YAML file, in the package or the caller's own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli.errors import user_errors
from caw.cli.options import panel
from caw.flags import SERVING
from caw.io.inputs import read_text

if TYPE_CHECKING:
    from caw.registry import Registry

PROFILES, REQUIRES, PARTS = ("eu",), ("registry", "public"), {"requires", "options"}


def read_profile(name: str) -> dict[str, Any]:
    """Return a profile's parts, by a name in PROFILES or a YAML file. ValueError or OSError for anything else."""
    if name in PROFILES:
        text = (files("caw.cli") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
    elif Path(name).suffix in (".yaml", ".yml"):
        text = read_text(Path(name))
    else:
        raise ValueError(f"profile must be {' or '.join(PROFILES)}, or a .yaml file, got {name!r}; choose one")
    import yaml  # which --help does not wait for

    try:
        profile = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise ValueError(f"profile {name} is not valid YAML; check its indentation and quotes") from None
    if not isinstance(profile, dict) or not set(profile) <= PARTS or not isinstance(profile.get("options"), dict):
        raise ValueError(f"profile {name} must have options and may have requires; copy the profile eu")
    needs = profile.setdefault("requires", [])
    if not isinstance(needs, list) or any(need not in REQUIRES for need in needs):
        raise ValueError(f"profile {name} may require {' and '.join(REQUIRES)}, got {needs!r}; leave the rest out")
    return profile


def check_profile(name: str, found: Registry | None) -> None:
    """Hold a server of this registry to its profile. ValueError if the registry lacks what that requires."""
    needs = read_profile(name)["requires"]
    if needs and found is None:
        raise ValueError(f"profile {name} requires a registry, for receipts and keys, got none; give --registry")
    if "public" in needs and found is not None:
        now = found.database.clock()
        secret = [key for key in found.marking.every() if key.state(now) in ("valid", "waiting") and not key.public]
        if secret:
            raise ValueError(
                f"profile {name} requires keys that anyone may test for, got {secret[0].id} of {secret[0].tenant}; "
                "create them with `caw keys create TENANT --public`"
            )
    if found is not None:
        found.directory.profile, found.directory.only_public = name, "public" in needs


def _use(context: typer.Context, name: str | None) -> str | None:
    """Make the values of a profile the defaults of the command's options."""
    if name is not None:
        with user_errors():
            options = read_profile(name)["options"]
            known = {each.name for each in context.command.params} - {"profile", "key", "registry"}
            strange = next((option for option in options if option not in known), None)
            if strange is not None:
                raise ValueError(f"profile {name}: {strange!r} is no option of a profile; leave it out")
            context.default_map = {**(context.default_map or {}), **options}
    return name


Profile = Annotated[
    str | None,
    panel(SERVING, "Defaults of other options: eu, or a YAML file.", "--profile", is_eager=True, callback=_use,
          metavar="eu|FILE"),
]  # fmt: skip
