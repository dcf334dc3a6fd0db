"""Which texts an engine marks, and how: a file of keys and profiles, and what a request may choose of it.

{
  "keys": {
    "house": {"env": "HOUSE_KEY"},
    "acme": {"registry": "sqlite:////var/lib/caw/keys.db", "tenant": "acme"}
  },
  "profiles": {
    "house": {"key": "house", "watermark": {"name": "kgw", "delta": 2.0}, "policy": {"name": "fixed"}},
    "acme": {"key": "acme"}
  },
  "default": "house",
  "opt_out": false
}
"""

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caw.checks import require_bool
from caw.io.inputs import read_text
from caw.io.json_files import read_settings
from caw.io.show import shown, shown_variable
from caw.policies import Policy
from caw.policies.names import POLICIES, make_policy
from caw.policies.recommended import mark_of
from caw.settings import Sampling
from caw.watermarks import Signature
from caw.watermarks.keys import read_key
from caw.watermarks.names import WATERMARKS, reads_alike, watermark_arguments, watermark_from

ARGUMENT = "caw_profile"  # of a request
OFF = "off"
KEY_FORMS = ({"env"}, {"file"}, {"registry", "tenant"})


@dataclass(frozen=True)
class Profile:
    """A way to mark. watermark: with its key, not in its repr. policy: None = the plain watermark's, or a rule's."""

    name: str
    watermark: Signature = field(repr=False)
    policy: Policy | None


@dataclass(frozen=True)
class ProfileFile:
    """The operator's file. default: of requests that name no profile, OFF = unmarked. opt_out: may they choose OFF."""

    profiles: Mapping[str, Profile]
    default: str
    opt_out: bool

    def __post_init__(self) -> None:
        require_bool("opt_out", self.opt_out)
        if not self.profiles or OFF in self.profiles:
            raise ValueError(f"profiles must be at least one, none named {OFF!r}, got {shown(list(self.profiles))}")
        if self.default not in self.profiles and not (self.default == OFF and self.opt_out):
            raise ValueError(
                f"default must be one of the profiles, {', '.join(self.profiles)}, got {shown(self.default)}; with "
                f"opt_out it may be {OFF!r}"
            )

    def __str__(self) -> str:
        """What an engine's log says."""
        ways = [f"{name} ({profile.watermark.name}, key {profile.watermark.key_id})" for name, profile in
                self.profiles.items()]  # fmt: skip
        off = f"; a request may choose {OFF!r} and is not marked" if self.opt_out else ""
        return f"caw marks by {', '.join(ways)}; without {ARGUMENT}: {self.default}{off}"

    def chosen(self, given: Mapping[str, Any], where: str) -> Profile | None:
        """The profile that a request chooses by what it gives in `where`, None = it is not marked.

        Raises ValueError, in one sentence, for a profile that there is not.
        """
        for name in given:
            if name.startswith("caw") and name != ARGUMENT:
                raise ValueError(f"{where} must name {ARGUMENT} or nothing of caw, got {shown(name)}; leave it out")
        name = given.get(ARGUMENT, self.default)
        choices = [*self.profiles, *[OFF] * self.opt_out]
        if name not in choices:
            raise ValueError(f"{ARGUMENT} must be one of {', '.join(choices)}, got {shown(name)}; leave it out")
        return None if name == OFF else self.profiles[name]


def marks(variable: str) -> ProfileFile:
    """What the file named by an environment variable says; it is read once in a process. Raises what `load` raises."""
    path = os.environ.get(variable)
    if not path:
        raise ValueError(f"{variable} must name the file of keys and profiles, it is not set; see docs/engines.md")
    return load(Path(path))


@functools.cache
def load(path: Path) -> ProfileFile:
    """Read a file of keys and profiles, with the secrets that it names.

    Raises ValueError in one sentence, in which no secret is; ImportError where a registry's packages are missing.
    """
    said = read_settings(path, "the file of keys and profiles", "see docs/engines.md")
    try:
        _known(said, "the file", {"keys", "profiles", "default"}, {"opt_out"})
        profiles = {name: _profile(name, own, said["keys"]) for name, own in _object(said, "profiles").items()}
        return ProfileFile(profiles, said["default"], said.get("opt_out", False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _profile(name: str, said: Any, keys: Any) -> Profile:
    where = f"profile {shown(name)}"
    _known(said, where, {"key"}, {"watermark", "policy"})
    if not isinstance(keys, Mapping) or not isinstance(said["key"], str) or said["key"] not in keys:
        names = ", ".join(keys) if isinstance(keys, Mapping) else "none"  # what stands there may be the secret itself
        raise ValueError(f"{where}: key must be a name of keys ({names}), got something else; add it there")
    try:
        watermark = _watermark(keys[said["key"]], said.get("watermark"))
        if "policy" not in said:
            return Profile(name, watermark, None)
        policy = make_policy(**named(said["policy"], "policy", POLICIES))
        mark_of(watermark, policy, Sampling())  # refuses one beside a rule
        return Profile(name, watermark, policy)
    except KeyError as error:
        raise ValueError(f"{where}: its policy has no parameter {error}; leave it out") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


def _watermark(key: Any, said: Any) -> Signature:
    """The watermark that a profile tells of, under a key; a registry's key has one of its own."""
    texts = isinstance(key, Mapping) and all(isinstance(each, str) for each in key.values())
    if not isinstance(key, int | str) and not (texts and set(key) in KEY_FORMS):
        raise ValueError("a key must be a secret or an object of env, of file, or of registry and tenant; use env")
    if isinstance(key, Mapping) and "registry" in key:
        own = _of_registry(key["registry"], key["tenant"])
        if said is not None and not reads_alike(own, watermark_from(named(said, "watermark", WATERMARKS), 1)):
            raise ValueError(
                "watermark must be the one of the registry's key, or its texts are not found; leave it out"
            )
        return own if said is None else watermark_from(said, own.key)
    if said is None:
        raise ValueError("watermark must be given, found none; add e.g. {'name': 'kgw'}")
    arguments = named(said, "watermark", WATERMARKS)
    known = watermark_arguments(arguments["name"])
    if unknown := sorted(arguments.keys() - {"name", *known}):
        raise ValueError(f"watermark may have {', '.join(known)}, got {shown(unknown[0])}; leave it out")
    return watermark_from(arguments, _secret(key))


def _secret(key: int | str | Mapping[str, Any]) -> int | str | bytes:
    if isinstance(key, int | str):
        return read_key(key)
    if "env" in key:
        secret = os.environ.get(key["env"])
        if not secret:
            raise ValueError(f"{shown_variable(key['env'])} must hold the key, it is not set; export it")
        return read_key(secret)
    try:
        return read_key(read_text(Path(key["file"])).strip())
    except OSError as error:  # its own sentence names the file, and that may be the secret
        reason = (error.strerror or type(error).__name__).lower()
        raise ValueError(f"the file of its key cannot be read ({reason}); check its path and permissions") from None


def _of_registry(url: str, tenant: str) -> Signature:
    """The watermark of a tenant's key that marks now."""
    from caw.registry import open_registry
    from caw.registry.marking_keys import current

    registry = open_registry(url)
    try:
        now = current(registry.marking.every(tenant), registry.database.clock())
        if now is None:
            raise ValueError(f"tenant {shown(tenant)} must have a key that marks now, found none; see `caw keys list`")
        return registry.marking.watermarks(tenant)[now.id]
    finally:
        registry.close()


def named(said: Any, what: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """A name and arguments; ValueError for a name that there is not."""
    if not isinstance(said, Mapping) or said.get("name") not in known:
        name = said.get("name") if isinstance(said, Mapping) else said
        raise ValueError(f"{what} must have a name of {', '.join(known)}, got {shown(name)}; see docs/engines.md")
    return dict(said)


def _object(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(said[name], Mapping):
        raise ValueError(f"{name} must be an object, got {type(said[name]).__name__}; see docs/engines.md")
    return said[name]


def _known(said: Any, what: str, needed: set[str], more: set[str]) -> None:
    if not isinstance(said, Mapping):
        raise ValueError(f"{what} must be an object, got {type(said).__name__}; see docs/engines.md")
    wrong, missing = set(said) - needed - more, needed - set(said)
    if wrong or missing:
        raise ValueError(
            f"{what} must have {', '.join(sorted(needed))} and may have {', '.join(sorted(more))}, got "
            f"{', '.join(sorted(map(str, said))) or 'nothing'}; see docs/engines.md"
        )
