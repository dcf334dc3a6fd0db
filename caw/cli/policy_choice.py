"""The default watermark and policy of the commands, and the line that says how texts are marked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from caw.cli import options as opt
from caw.policies.names import POLICIES
from caw.settings import LEAST_RACED, Sampling

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.policies.recommended import Recommended
    from caw.watermarks import Watermark

TAKEN = ("target", "evaluator")  # options of policies that `caw.Recommended` has too
CAW, PLAIN = "capacity", "fixed"
# kinds of texts of a `caw.Recommended`: one it races for, and those that get green lists
RACED, GREEDY = "drawn texts", "greedy texts"
COOL = f"texts drawn below temperature {LEAST_RACED:g}, where a race is not found,"
OTHERS = f"{GREEDY}, and {COOL}"
UNIVERSAL_SERVES = "this model has no evaluator of its own, so the universal one serves it"
# what says how strong a watermark is; the rest of its settings is in every output line
STRONG = ("delta", "top_k", "depth")
OF_RACE = ("strength", "free")  # of a race whose noise is scaled: nothing reads its top_k
DISTORTS = "not distortion-free, which the race is at --policy fixed --strength 1 alone, the default"


def choose_watermark(
    name: str | None, options: Mapping[str, Any], policy: str | None = None, of_policy: Mapping[str, Any] | None = None
) -> str:
    """Return a command's watermark: as named; otherwise recommended, or kgw if its options or a policy are given."""
    if name is not None:
        return name
    given = {option for option, value in options.items() if value is not None}
    steered = {option for option, value in (of_policy or {}).items() if value is not None} - set(TAKEN)
    strange = given - set(opt.WATERMARK_OPTIONS["recommended"])
    return "kgw" if strange or steered or policy is not None else "recommended"


def choose_policy(
    name: str | None, options: Mapping[str, Any], model: str, *, marked: bool, races: bool = False
) -> tuple[str, str]:
    """Return (policy, remark on its evaluator): as named or by options; else CAW, or fixed for a race (`races`)."""
    from caw.evaluator.shelf import shipped_for

    if name is not None or not marked:
        return name or PLAIN, ""
    given = {option for option, value in options.items() if value is not None}
    if races and given <= {"target"}:  # a target is refused there
        return PLAIN, ""
    takes = [policy for policy, entry in POLICIES.items() if given <= set(entry.parameters)]
    if given and takes and CAW not in takes:
        return takes[0], ""
    return CAW, "" if "evaluator" in given or shipped_for(model) is not None else UNIVERSAL_SERVES


def build_recommended(mark: Any, policy: str | None, options: Mapping[str, Any]) -> Recommended:
    """Return the watermark with its policies' target and evaluator. ValueError for a policy and other options."""
    given = {option: value for option, value in options.items() if value is not None}
    strange = ["policy"] if policy is not None else [option for option in given if option not in TAKEN]
    if strange:
        raise ValueError(
            f"watermark recommended brings its own policies, got --{strange[0]} as well; leave it out, or give "
            "--watermark kgw"
        )
    return dataclasses.replace(mark, **given)


def recommended_of(
    mark: Any, policy: str | None, options: Mapping[str, Any], level: float | None, kinds: Iterable[str]
) -> tuple[Recommended, dict[str, Policy], str]:
    """Return a `Recommended` with its options, the policy of each kind of texts, and the line about its marks."""

    mark = build_recommended(mark, policy, options)
    policies = {kind: mark.of(Sampling(do_sample=kind == RACED), level).policy for kind in kinds}
    return mark, policies, what_recommended_marks(mark, policies)


def what_recommended_marks(mark: Recommended, policies: Mapping[str, Policy]) -> str:
    """Describe, in one line, what a `Recommended` does with each kind of texts; policies: of RACED and the others."""
    parts = []
    for kind, policy in policies.items():
        how = "with exp at full strength, which costs no quality"
        parts.append(f"{kind} {how if kind == RACED else what_marks(mark.greedy, policy).removeprefix('marking ')}")
    return f"marking {', '.join(parts)}"


def what_marks(mark: Watermark, policy: Policy, remark: str = "") -> str:
    """Describe, in one line, the watermark and the policy with the parameters that set the strength."""
    watermark, chosen = opt.describe(mark), opt.describe(policy)
    assert watermark is not None and chosen is not None
    strong = {name: watermark[name] for name in (OF_RACE if mark.races_whole else STRONG) if name in watermark}
    remark = "; ".join(filter(None, [remark, race_remark(mark, policy)]))
    line = f"marking with {_named(watermark['name'], strong)}, policy {_named(chosen.pop('name'), chosen)}"
    return f"{line}: {remark}" if remark else line


def race_remark(mark: Watermark, policy: Policy) -> str:
    """Say that a policy makes a race distort that need not; "" where it does not. Raises ValueError for a target."""
    from caw.policies.mark import Mark

    pair = Mark(mark, policy)
    pair.check_target()
    return DISTORTS if mark.races_whole and not pair.races else ""


def _named(name: str, settings: Mapping[str, Any]) -> str:
    said = (f"{setting} {f'{value:g}' if isinstance(value, float) else value}" for setting, value in settings.items())
    return f"{name} ({', '.join(said)})"
