"""Options that several commands share, and the watermarks, policies and devices built from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli.command import options_of
from caw.defaults import BETA, BETA_BY_MODEL, DELTA, GAMMA, STRENGTH, THETA, TOP_K_EXP
from caw.flags import MARK, POLICY, RUNNING, flag
from caw.io.progress import silent
from caw.io.show import shown
from caw.models import DEMO_MODEL
from caw.policies.names import POLICIES, make_policy, policy_name
from caw.watermarks.keys import parse_key
from caw.watermarks.names import WATERMARKS, watermark_class, watermark_name

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.watermarks import Signature

# the arguments that options of a watermark become, where they have another name
RENAMED = {"top_k_exp": "top_k", "strength_exp": "strength"}
OF_KGW = ("gamma", "delta", "subkeys", "format", "vocab_size")
WATERMARK_OPTIONS: dict[str, dict[str, str]] = {
    name: {option: RENAMED.get(option, option) for option in options}
    for name, options in {
        "recommended": (),
        "kgw": (*OF_KGW, "seeding", "context_width", "payload", "payload_bits"),
        "unigram": OF_KGW,
        "exp": ("top_k_exp", "strength_exp", "context_width", "free", "format", "vocab_size", "payload",
                "payload_bits"),
        "synthid": (),
    }.items()
}  # fmt: skip
POLICY_OPTIONS = {name: entry.parameters for name, entry in POLICIES.items()}


def panel(title: str, text: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=title, **settings)


ModelName = Annotated[
    str, typer.Option("--model", help=f"{DEMO_MODEL} (the demo model), a .gguf file, a folder or a hub id.")
]
OTHERWISE = "[recommended; kgw if a policy or an option of kgw is given]"
WatermarkName = Annotated[
    str | None, panel(MARK, f"Watermark {OTHERWISE}.", "--watermark", metavar="|".join([*WATERMARKS, "none"]))
]
MarkName = Annotated[
    str | None, panel(MARK, f"Watermark to test for {OTHERWISE}.", "--watermark", metavar="|".join(WATERMARKS))
]
KEY_HELP = (
    "Secret key: an integer below 2^64, or text that is not a number. Prefer CAW_KEY, which stays out of the "
    "shell history: `read -rs CAW_KEY; export CAW_KEY`, or `export CAW_KEY=$(cat keyfile)`."
)
Key = Annotated[str | None, panel(MARK, KEY_HELP, "--key", envvar="CAW_KEY", metavar="KEY")]


@dataclass(frozen=True)
class MarkOptions:
    """Options of watermarks."""

    gamma: float | None = flag(None, f"kgw, unigram: share of the vocabulary that is green [{GAMMA:g}].", MARK)
    seeding: str | None = flag(
        None, "kgw: hash that selects green tokens [lefthash]; other formats have more.", MARK,
        metavar="lefthash|selfhash",
    )  # fmt: skip
    context_width: int | None = flag(
        None, "Number of previous tokens that seed each choice: kgw [1; selfhash 4], exp [4].", MARK
    )
    format: str | None = flag(
        None, "System to be compatible with [native].", MARK,
        metavar="native|transformers|markllm|lm-watermarking|sbw|vllm-dual|sglang",
    )  # fmt: skip
    subkeys: int | None = flag(
        None, "kgw, unigram: sub-keys of the key, 1 to 1024, which detection tries all [1].", MARK
    )
    delta: float | None = flag(None, f"kgw, unigram: bonus added to the logits of green tokens [{DELTA:g}].", MARK)
    top_k_exp: int | None = flag(None, f"exp: number of top tokens that compete at strength 1 [{TOP_K_EXP}].", MARK)
    strength_exp: str | None = flag(
        None, "exp: parameter that the strength scales [top_k].", MARK, metavar="top_k|scale"
    )
    free: float | None = flag(
        None, "exp: nats that a drawn text begins with before the key draws; 0 = none [4.16, one beginning in 64].",
        MARK,
    )  # fmt: skip
    payload: int | None = flag(None, "kgw, exp: number to embed in the text.", MARK)
    payload_bits: int | None = flag(None, "kgw, exp: payload size in bits, 1 to 32.", MARK)
    vocab_size: int | None = flag(None, "Size of the model's logits; required to detect other systems' formats.", MARK)


BETA_HELP = ", ".join(f"{beta:g} for {model}" for model, beta in BETA_BY_MODEL.items())


@dataclass(frozen=True)
class PolicyOptions:
    """Options of policies."""

    strength: float | None = flag(
        None, f"fixed, entropy, logit-delta: strength of marked tokens [{STRENGTH:g}].", POLICY
    )
    nats: float | None = flag(None, "entropy: threshold in nats; tokens below it stay unmarked.", POLICY)
    gap: float | None = flag(
        None, "logit-delta: threshold on the gap between the two top logits; larger gaps stay unmarked.", POLICY
    )
    theta: float | None = flag(
        None, f"capacity: importance threshold; tokens above it stay unmarked [{THETA:g}].", POLICY
    )
    beta: float | None = flag(
        None, f"capacity: strength of tokens with zero importance [{BETA:g}; {BETA_HELP}].", POLICY
    )
    evaluator: str | None = flag(
        None, "capacity: evaluator, a shipped name or a .safetensors file [the model's own].", POLICY
    )
    target: float | None = flag(None, "Stop marking once the text so far has this p-value.", POLICY)


# what a detector must know, and what says how strongly is marked
OF_TEST = options_of(MarkOptions, "gamma", "seeding", "context_width", "format", "subkeys")
OF_STRENGTH = options_of(MarkOptions, "delta", "top_k_exp", "strength_exp", "free")
OF_POLICY = options_of(PolicyOptions)
OF_POLICY_READ = {name: option for name, option in OF_POLICY.items() if name != "target"}

PolicyName = Annotated[
    str | None,
    panel(POLICY, "Policy that sets each token's strength [capacity (CAW)].",
            "--policy", metavar="|".join(POLICIES)),
]  # fmt: skip


def quieten(context: typer.Context, on: bool) -> None:
    if on:
        context.with_resource(silent())


Quiet = Annotated[bool, panel(RUNNING, "Hide progress.", "--quiet", "-q", callback=quieten)]


def parse_speculate(text: str) -> str | int | None:
    """Return the value of --speculate. Numbers out of range are rejected later."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text not in ("auto", "own", "none"):
        raise ValueError(f"--speculate must be auto, own, none or a number, got {shown(text)}; leave it out")
    return None if text == "none" else text


def build_watermark(name: str, key: str | None, options: Mapping[str, Any]) -> Signature | None:
    """Build the watermark, None for "none". ValueError for an unknown name, no key, and another's options."""
    if name == "none":
        _refuse_strangers("watermark", "none", WATERMARK_OPTIONS, options)
        return None
    _require_known("watermark", name, [*WATERMARKS, "none"])
    arguments = _refuse_strangers("watermark", name, WATERMARK_OPTIONS, options)
    if key is None:
        raise ValueError(f"watermark {name} requires a key, got none; set CAW_KEY or give --key")
    return watermark_class(name)(parse_key(key), **arguments)


def build_policy(name: str, options: Mapping[str, Any], model: str) -> Policy:
    """Build the policy; `model` names its evaluator. ValueError for unknown names, missing and others' options."""
    _require_known("policy", name, list(POLICIES))
    _refuse_strangers("policy", name, POLICY_OPTIONS, options)
    given = {option: value for option, value in options.items() if value is not None}
    needed = POLICIES[name].needed
    if needed and needed not in given:
        raise ValueError(f"policy {name} requires --{needed}, got none; give a number")
    if name == "capacity" and "evaluator" not in given:
        from caw.evaluator.shelf import UNIVERSAL, shipped_for

        given["evaluator"] = shipped_for(model) or UNIVERSAL
    return make_policy(name, **given)


def _require_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}; choose one")


def _refuse_strangers(
    what: str, name: str, table: Mapping[str, Mapping[str, str]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of options given. table: by name, its options and their arguments; ValueError for others."""
    given, names = {option: value for option, value in options.items() if value is not None}, table.get(name, {})
    for option in given:
        if option not in names:
            owners = [owner for owner, theirs in table.items() if option in theirs]
            raise ValueError(
                f"{as_typed(option)} is only for {what} {' and '.join(owners)}, got {what} {name}; leave it out, or "
                f"give --{what} {owners[0]}"
            )
    return {names[option]: value for option, value in given.items()}


def as_typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def describe(thing: Signature | Policy | None) -> dict[str, Any] | None:
    """Return name and parameters for output lines, never the key; None for None."""
    if thing is None:
        return None
    mark = hasattr(thing, "key_id")
    name = watermark_name(thing) if mark else policy_name(thing)  # type: ignore[arg-type]
    said = {} if mark else {argument: parameter for parameter, argument in POLICIES[name].parameters.items()}
    described: dict[str, Any] = {"name": name}
    for field in fields(thing):  # type: ignore[arg-type]
        value = getattr(thing, field.name)
        if field.name in ("payload_bits", "temperature", "subkeys", "subkey") and value == field.default:
            continue  # named only where they are used
        if field.name not in ("key", "network") and value is not None:
            described[said.get(field.name, field.name)] = value.described() if hasattr(value, "described") else value
    return described
