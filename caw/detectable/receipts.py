"""The record of a text's test: enough to repeat it, never the key."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import caw
from caw.detectable.selection import Candidate
from caw.detectable.trial import Trial
from caw.detection.detector import Detector
from caw.detection.text_weights import TextWeights
from caw.io.show import shown
from caw.policies import Policy
from caw.policies.target import policy_text
from caw.watermarks.green_list import FormattedList

PACKAGES = ("torch", "transformers")
TEST = ("mode", "mid_p", "normalize", "regions")  # settings of a detector that a receipt names where they are not usual


@dataclass(frozen=True)
class Receipt:
    """The test of one text before it was returned.

    detected: whether the text was detected. reason: if not, why. p_value: of the text that left; level: what it had to
    reach. attempts: how often the text was made. policy: how strongly tokens are marked, times strength_factor.
    watermark, key_id: its name, and eight hex digits that name the key. weights: name (of a file its path as it was
    given, so that it is found again) and digest of the detector's weights, None without. tokens: of the text, as
    the detector reads it. digest: SHA-256 of the text. edits: share of the words that may be deleted later. margin:
    what was added to the z at which marking rests. test: settings of the detector other than usual. versions: of this
    library and of what it ran on.

    What marked the text, whatever the test found in it; None if nothing did: family: of a `caw.Recommended`, the name
    of its part, None for another watermark. subkey: the one that marked, subkeys: V, how many the detector tries (None
    where there is only the key).

    Of a guarded text also: keeps: what it had to keep of the unmarked one. kept: whether it does; None = it was changed
    although the unmarked text has nothing of that kind; False = the caller's own reader fails on the unmarked text or
    rejects it, so it leaves as it is (one that is detected unmarked is not shown to it). changes: stretches in which it
    differs. rollouts: continuations that were tried; rolled: their tokens. windows: of a stream, each of which keeps
    what the unmarked model would have written there; None = the whole text does. keeps_error: the last error of the
    caller's own reader.

    Raises TypeError or ValueError in one sentence for anything that is not a receipt.
    """

    detected: bool
    reason: str
    p_value: float
    level: float
    attempts: int
    watermark: str
    policy: str
    strength_factor: float
    key_id: str
    weights: Mapping[str, str] | None
    tokens: int
    digest: str
    edits: float = 0.0
    margin: float = 0.0
    test: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    family: str | None = None
    subkey: int | None = None
    subkeys: int | None = None
    keeps: str | None = None
    kept: bool | None = None
    changes: int | None = None
    rollouts: int | None = None
    rolled: int | None = None
    windows: int | None = None
    keeps_error: str = ""

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {
            "detected": bool, "reason": str, "p_value": float, "level": float, "attempts": int, "watermark": str,
            "policy": str, "strength_factor": float, "key_id": str, "weights": Mapping | None, "tokens": int,
            "digest": str, "edits": float, "margin": float, "family": str | None, "subkey": int | None,
            "subkeys": int | None,
            "test": Mapping, "versions": Mapping, "keeps": str | None, "kept": bool | None, "changes": int | None,
            "rollouts": int | None, "rolled": int | None, "windows": int | None, "keeps_error": str,
        }  # fmt: skip
        for name, kind in kinds.items():
            value = getattr(self, name)
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
            elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise TypeError(f"a receipt's {name} has the wrong type, got {shown(value)}; use the original receipt")
        if not 0 < self.level < 1 or not 0 <= self.p_value <= 1 or not math.isfinite(self.strength_factor):
            raise ValueError(
                f"a receipt's level must be in (0, 1) and its p_value in [0, 1], got {self.level:g} and "
                f"{self.p_value:g}; use the original receipt"
            )
        if self.weights is not None and set(self.weights) != {"name", "digest"}:
            raise ValueError(
                f"a receipt's weights must have name and digest, got {shown(sorted(self.weights))}; use the original "
                "receipt"
            )

    def as_dict(self) -> dict[str, Any]:
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, value: Any) -> "Receipt":
        """Read a receipt; fields of later versions are ignored."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        needed = [name for name, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
        missing = [name for name in needed if not isinstance(value, Mapping) or name not in value]
        if missing:
            raise ValueError(f"a receipt must have {missing[0]}, got {shown(value)}; use the original receipt")
        return cls(**{name: value[name] for name in fields if name in value})


@dataclass(frozen=True)
class GuardReport:
    """What a guard did. name: what it keeps. changes: stretches of the text that are not the unmarked one's. error: the
    last one of the caller's own reader, else empty. kept: whether it is; None = there was nothing of that kind to keep.
    rolled: tokens of the rollouts. subkey: the one that the text was changed under, None = it was not. windows: of a
    stream.
    """

    name: str
    changes: int
    rollouts: int
    error: str = ""
    kept: bool | None = True
    rolled: int = 0
    subkey: int | None = None
    windows: int | None = None


def text_digest(text: str) -> str:
    """Return SHA-256 of a text's UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_receipt(
    chosen: Candidate, attempts: int, trial: Trial, policy: Policy, guarded: GuardReport | None = None
) -> Receipt:
    """Write the receipt of the candidate to return. guarded: what its guard did, None without one."""
    detector = trial.under(chosen.request.row.key)
    result, weights = chosen.verdict.result, detector.weights
    usual = {f.name: f.default for f in dataclasses.fields(Detector)}
    given = {name: getattr(detector, name) for name in TEST}
    given["normalize"] = ",".join(given["normalize"])
    usual["normalize"] = ""
    return Receipt(
        detected=chosen.found,
        reason=chosen.verdict.reason,
        p_value=float(result.p_value),
        level=float(detector.fpr),
        attempts=attempts,
        watermark=result.watermark,
        policy=policy_text(policy),
        strength_factor=chosen.strength_factor,
        key_id=result.key_id,
        weights={"name": weights.name, "digest": weights.digest} if isinstance(weights, TextWeights) else None,
        tokens=result.num_tokens,
        digest=text_digest(chosen.text),
        edits=float(trial.edits),
        margin=float(chosen.request.row.margin),
        **_of_mark(trial, chosen, guarded),
        test={name: value for name, value in given.items() if value != usual[name]},
        versions=versions(),
        **({} if guarded is None else _of_guard(guarded)),
    )


def _of_mark(trial: Trial, chosen: Candidate, guarded: GuardReport | None) -> dict[str, Any]:
    """The fields of what marked a text."""
    if not chosen.strength_factor if guarded is None else guarded.subkey is None:
        return {}
    part_mark = trial.marking(chosen.request.row)
    part: dict[str, Any] = {} if part_mark is trial.mark else {"family": part_mark.name}
    if not isinstance(part_mark, FormattedList) or part_mark.tried == range(1):
        return part
    return {**part, "subkey": part_mark.subkey if guarded is None else guarded.subkey, "subkeys": part_mark.subkeys}


def _of_guard(guarded: GuardReport) -> dict[str, Any]:
    """The fields of a guarded text."""
    return {
        "keeps": guarded.name, "kept": guarded.kept, "changes": guarded.changes,
        "rollouts": guarded.rollouts, "rolled": guarded.rolled, "windows": guarded.windows,
        "keeps_error": guarded.error,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of this library and of the packages that affect its texts."""
    numbers = {"caw": caw.__version__}
    for package in PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:  # a detector needs neither
            continue
    return numbers
