"""Options that several commands share, and the watermarks, policies and devices built from them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.defaults import BETA, BETA_BY_MODEL, DELTA, GAMMA, STRENGTH, THETA, TOP_K_EXP
from caw.io.progress import silent
from caw.io.show import shown
from caw.models.device import DTYPES, resolve_device
from caw.policies.names import POLICIES, make_policy, policy_name
from caw.watermarks.keys import parse_key
from caw.watermarks.names import WATERMARKS, watermark_class, watermark_name

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.watermarks import Signature

MARK, POLICY, DECODING, RUNNING = "Watermark", "Policy", "Decoding", "Running"

FORMAT = {"format": "format", "vocab-size": "vocab_size"}
SUBKEYS = {"subkeys": "subkeys"}
PAYLOAD = {"payload": "payload", "payload-bits": "payload_bits"}
# the options of each watermark, with the argument that each becomes
WATERMARK_OPTIONS: dict[str, dict[str, str]] = {
    "recommended": {},
    "kgw": {"gamma": "gamma", "delta": "delta", "seeding": "seeding", "context-width": "context_width"}
    | SUBKEYS
    | FORMAT
    | PAYLOAD,
    "unigram": {"gamma": "gamma", "delta": "delta"} | SUBKEYS | FORMAT,
    "exp": {"top-k-exp": "top_k", "strength-exp": "strength", "context-width": "context_width", "free": "free"}
    | FORMAT
    | PAYLOAD,
    "synthid": {},
}
POLICY_OPTIONS = {name: entry.parameters for name, entry in POLICIES.items()}


def panel(title: str, text: str, *names: str, **settings: Any) -> Any:
    """An option in the help panel with this title."""
    return typer.Option(*names, help=text, rich_help_panel=title, **settings)


def grouped(**groups: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator of a command: its parameter of a group's name gets the values of the group's options, by name.

    groups: each an option's name with its annotation, or with (annotation, default); None = no default.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            for name, option in groups.get(each.name, {each.name: (each.annotation, each.default)}).items():
                annotation, default = option if isinstance(option, tuple) else (option, None)
                parameters.append(each.replace(name=name.replace("-", "_"), annotation=annotation, default=default))

        def call(**given: Any) -> None:
            packed = {group: {name: given.pop(name.replace("-", "_")) for name in groups[group]} for group in groups}
            command(**given, **packed)

        functools.update_wrapper(call, command, updated=())
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        del call.__wrapped__  # type: ignore[attr-defined]
        return call

    return decorate


BETA_HELP = ", ".join(f"{beta:g} for {model}" for model, beta in BETA_BY_MODEL.items())
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
Gamma = Annotated[
    float | None, panel(MARK, f"kgw, unigram: share of the vocabulary that is green [{GAMMA:g}].", "--gamma")
]
Delta = Annotated[
    float | None, panel(MARK, f"kgw, unigram: bonus added to the logits of green tokens [{DELTA:g}].", "--delta")
]
Seeding = Annotated[
    str | None,
    panel(
        MARK,
        "kgw: hash that selects green tokens [lefthash]; other formats have more.",
        "--seeding",
        metavar="lefthash|selfhash",
    ),
]
FormatName = Annotated[
    str | None,
    panel(MARK, "System to be compatible with [native].", "--format",
            metavar="native|transformers|markllm|lm-watermarking|sbw|vllm-dual"),
]  # fmt: skip
Payload = Annotated[int | None, panel(MARK, "kgw, exp: number to embed in the text.", "--payload")]
PayloadBits = Annotated[int | None, panel(MARK, "kgw, exp: payload size in bits, 1 to 32.", "--payload-bits")]
VocabSize = Annotated[
    int | None, panel(MARK, "Size of the model's logits; required to detect other systems' formats.", "--vocab-size")
]
ContextWidth = Annotated[
    int | None,
    panel(MARK, "Number of previous tokens that seed each choice: kgw [1; selfhash 4], exp [4].", "--context-width"),
]
TopKExp = Annotated[
    int | None,
    panel(MARK, f"exp: number of top tokens that compete at strength 1 [{TOP_K_EXP}].", "--top-k-exp"),
]
StrengthExp = Annotated[
    str | None, panel(MARK, "exp: parameter that the strength scales [top_k].", "--strength-exp", metavar="top_k|scale")
]
Free = Annotated[
    float | None,
    panel(MARK, "exp: nats that a drawn text begins with before the key draws; 0 = none [4.16, one beginning in 64].",
          "--free"),
]  # fmt: skip
Subkeys = Annotated[
    int | None,
    panel(MARK, "kgw, unigram: sub-keys of the key, 1 to 1024, which detection tries all [1].", "--subkeys"),
]

OF_TEST: dict[str, Any] = {
    "gamma": Gamma, "seeding": Seeding, "context-width": ContextWidth, "format": FormatName, "subkeys": Subkeys,
}  # fmt: skip
OF_STRENGTH: dict[str, Any] = {"delta": Delta, "top-k-exp": TopKExp, "strength-exp": StrengthExp, "free": Free}

PolicyName = Annotated[
    str | None,
    panel(POLICY, "Policy that sets each token's strength [capacity (CAW)].",
            "--policy", metavar="|".join(POLICIES)),
]  # fmt: skip
Strength = Annotated[
    float | None, panel(POLICY, f"fixed, entropy, logit-delta: strength of marked tokens [{STRENGTH:g}].")
]
Nats = Annotated[float | None, panel(POLICY, "entropy: threshold in nats; tokens below it stay unmarked.")]
Gap = Annotated[
    float | None,
    panel(POLICY, "logit-delta: threshold on the gap between the two top logits; larger gaps stay unmarked."),
]
Theta = Annotated[
    float | None, panel(POLICY, f"capacity: importance threshold; tokens above it stay unmarked [{THETA:g}].")
]
Beta = Annotated[
    float | None, panel(POLICY, f"capacity: strength of tokens with zero importance [{BETA:g}; {BETA_HELP}].")
]
TargetP = Annotated[float | None, panel(POLICY, "Stop marking once the text so far has this p-value.", "--target")]
EvaluatorName = Annotated[
    str | None, panel(POLICY, "capacity: evaluator, a shipped name or a .safetensors file [the model's own].")
]
OF_POLICY: dict[str, Any] = {
    "strength": Strength, "nats": Nats, "gap": Gap, "theta": Theta, "beta": Beta, "evaluator": EvaluatorName,
}  # fmt: skip

Device = Annotated[str | None, panel(RUNNING, "Device: cpu, cuda, cuda:1, ... [cuda if available].", "--device")]
DTYPE_NAMES = "auto|" + "|".join(DTYPES)
DType = Annotated[str, panel(RUNNING, "Data type of the model.", "--dtype", metavar=DTYPE_NAMES)]


def quieten(context: typer.Context, on: bool) -> None:
    if on:
        context.with_resource(silent())


Quiet = Annotated[bool, panel(RUNNING, "Hide progress.", "--quiet", "-q", callback=quieten)]
Threads = Annotated[int | None, panel(RUNNING, "CPU threads [all cores].", "--threads", min=1)]
MaxMemory = Annotated[
    str | None,
    panel(RUNNING, "Memory limit besides the model weights, e.g. 8GiB [90 % of free memory].", "--max-memory"),
]
MarkEos = Annotated[
    bool | None,
    panel(
        DECODING,
        "Allow the mark to change where a text ends [as the format's own system does].",
        "--mark-eos/--keep-eos",
    ),
]
Compile = Annotated[
    bool, panel(RUNNING, "Compile the model with torch.compile, which takes about a minute.", "--compile")
]

Speculate = Annotated[
    str,
    panel(RUNNING, "Speculative decoding; texts do not change: auto (n-gram lookup where it pays), own (lookup within "
    "each text only), none, or a number of tokens to look up."),
]  # fmt: skip


def parse_speculate(text: str) -> str | int | None:
    """Return the value of --speculate. Numbers out of range are rejected later."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    if text not in ("auto", "own", "none"):
        raise ValueError(f"--speculate must be auto, own, none or a number, got {shown(text)}; leave it out")
    return None if text == "none" else text


def build_watermark(name: str, key: str | None, options: Mapping[str, Any]) -> Signature | None:
    """Build the watermark from --watermark, --key and its own options; None for "none".

    Raises ValueError for an unknown name, a missing key, and another watermark's options.
    """
    if name == "none":
        _refuse_strangers("watermark", "none", WATERMARK_OPTIONS, options)
        return None
    _require_known("watermark", name, [*WATERMARKS, "none"])
    arguments = _refuse_strangers("watermark", name, WATERMARK_OPTIONS, options)
    if key is None:
        raise ValueError(f"watermark {name} requires a key, got none; set CAW_KEY or give --key")
    return watermark_class(name)(parse_key(key), **arguments)


def build_policy(name: str, options: Mapping[str, Any], model: str) -> Policy:
    """Build the policy from --policy and its own options. `model` names the default evaluator.

    Raises ValueError for an unknown name, a missing option, and another policy's options.
    """
    _require_known("policy", name, list(POLICIES))
    _refuse_strangers("policy", name, POLICY_OPTIONS, options)
    given = {option: value for option, value in options.items() if value is not None}
    needed = POLICIES[name].needed
    if needed and needed not in given:
        raise ValueError(f"policy {name} requires --{needed}, got none; give a number")
    if name == "capacity" and "evaluator" not in given:
        from caw.evaluator.network import UNIVERSAL, shipped_for

        given["evaluator"] = shipped_for(model) or UNIVERSAL
    return make_policy(name, **given)


def _require_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}; choose one")


def _refuse_strangers(
    what: str, name: str, table: Mapping[str, Mapping[str, str]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of the given options. An option that would have no effect is an error.

    table: of each name, its options with the argument that each sets.
    """
    given, names = {option: value for option, value in options.items() if value is not None}, table.get(name, {})
    for option in given:
        if option not in names:
            owners = [owner for owner, theirs in table.items() if option in theirs]
            raise ValueError(
                f"--{option} is only for {what} {' and '.join(owners)}, got {what} {name}; leave it out, or give "
                f"--{what} {owners[0]}"
            )
    return {names[option]: value for option, value in given.items()}


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


def prepare_device(device: str | None, threads: int | None) -> str:
    """Check --device before anything is loaded, and set the number of CPU threads."""
    set_threads(threads)
    return str(resolve_device(device))


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads; None leaves it unchanged."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
