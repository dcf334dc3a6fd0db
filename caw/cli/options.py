"""Options that commands share, and how they become watermarks, policies and devices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.defaults import BETA, BETA_BY_MODEL, DELTA, GAMMA, STRENGTH, THETA, TOP_K_EXP
from caw.models.device import DTYPES, resolve_device
from caw.policies.registry import POLICIES, make_policy, policy_name
from caw.watermarks.registry import WATERMARKS, watermark_class, watermark_name

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.watermarks import Watermark

MARK, POLICY, DECODING, RUNNING = "Watermark", "Policy", "Decoding", "Running"

FORMAT = {"format": "format", "vocab-size": "vocab_size"}
PAYLOAD = {"payload": "payload", "payload-bits": "payload_bits"}
# the options of each watermark, with the argument that each becomes
WATERMARK_OPTIONS: dict[str, dict[str, str]] = {
    "kgw": {"gamma": "gamma", "delta": "delta", "seeding": "seeding", "context-width": "context_width"}
    | FORMAT
    | PAYLOAD,
    "unigram": {"gamma": "gamma", "delta": "delta"} | FORMAT,
    "exp": {"top-k-exp": "top_k", "strength-exp": "strength", "context-width": "context_width"} | FORMAT | PAYLOAD,
    "synthid": {},
}
POLICY_OPTIONS = {name: entry.parameters for name, entry in POLICIES.items()}


def panel(title: str, text: str, *names: str, **settings: Any) -> Any:
    """An option that `--help` shows in the panel of this title."""
    return typer.Option(*names, help=text, rich_help_panel=title, **settings)


BETA_HELP = ", ".join(f"{beta:g} for {model}" for model, beta in BETA_BY_MODEL.items())
WatermarkName = Annotated[str, panel(MARK, "Which watermark.", "--watermark", metavar="|".join([*WATERMARKS, "none"]))]
MarkName = Annotated[str, panel(MARK, "Which watermark to look for.", "--watermark", metavar="|".join(WATERMARKS))]
KEY_HELP = (
    "Secret: an integer below 2^64, or text that is not a number. Set CAW_KEY instead to keep it out of the shell's "
    "history: `read -rs CAW_KEY; export CAW_KEY`, or from a file `export CAW_KEY=$(cat keyfile)`."
)
Key = Annotated[str | None, panel(MARK, KEY_HELP, "--key", envvar="CAW_KEY", metavar="KEY")]
Gamma = Annotated[float | None, panel(MARK, f"kgw, unigram: green share of the vocabulary [{GAMMA:g}].", "--gamma")]
Delta = Annotated[float | None, panel(MARK, f"kgw, unigram: logit bonus of green tokens [{DELTA:g}].", "--delta")]
Seeding = Annotated[
    str | None,
    panel(
        MARK,
        "kgw: how the context seeds the choice [lefthash]; other formats have more.",
        "--seeding",
        metavar="lefthash|selfhash",
    ),
]
FormatName = Annotated[
    str | None,
    panel(MARK, "Which system's number format to use [native].", "--format",
            metavar="native|transformers|markllm|lm-watermarking|sbw|vllm-dual"),
]  # fmt: skip
Payload = Annotated[int | None, panel(MARK, "kgw, exp: a number to hide in the text.", "--payload")]
PayloadBits = Annotated[int | None, panel(MARK, "kgw, exp: size of the payload in bits, 1 to 32.", "--payload-bits")]
VocabSize = Annotated[
    int | None, panel(MARK, "Number of the model's logits; needed to detect other systems' formats.", "--vocab-size")
]
ContextWidth = Annotated[
    int | None, panel(MARK, "How many tokens seed each choice: kgw [1; selfhash 4], exp [4].", "--context-width")
]
TopKExp = Annotated[
    int | None,
    panel(MARK, f"exp: how many of the likeliest tokens compete at strength 1 [{TOP_K_EXP}].", "--top-k-exp"),
]
StrengthExp = Annotated[
    str | None, panel(MARK, "exp: what the strength changes [top_k].", "--strength-exp", metavar="top_k|scale")
]

PolicyName = Annotated[
    str | None,
    panel(POLICY, "How strongly each token is marked [capacity, which is CAW; fixed where the model has no evaluator].",
            "--policy", metavar="|".join(POLICIES)),
]  # fmt: skip
Strength = Annotated[
    float | None, panel(POLICY, f"fixed, entropy, logit-delta: strength of marked tokens [{STRENGTH:g}].")
]
Nats = Annotated[float | None, panel(POLICY, "entropy: mark only where the entropy (in nats) is above this.")]
Gap = Annotated[float | None, panel(POLICY, "logit-delta: mark only where the two best logits are closer than this.")]
Theta = Annotated[float | None, panel(POLICY, f"capacity: leave tokens above this importance unmarked [{THETA:g}].")]
Beta = Annotated[
    float | None, panel(POLICY, f"capacity: strength for tokens of no importance [{BETA:g}; {BETA_HELP}].")
]
TargetP = Annotated[
    float | None, panel(POLICY, "Mark no further once the text so far would be found at this p-value.", "--target")
]
EvaluatorName = Annotated[
    str | None, panel(POLICY, "capacity: name of a shipped evaluator, or a .safetensors file [the model's own].")
]

Device = Annotated[str | None, panel(RUNNING, "cpu, cuda, cuda:1, ... [cuda if there is one].", "--device")]
DType = Annotated[
    str, panel(RUNNING, "Precision that the model runs in.", "--dtype", metavar="auto|" + "|".join(DTYPES))
]
Threads = Annotated[int | None, panel(RUNNING, "CPU threads [all cores].", "--threads", min=1)]
MaxMemory = Annotated[
    str | None, panel(RUNNING, "Memory to use besides the weights, e.g. 8GiB [0.9 of what is free].", "--max-memory")
]
PrefillAttention = Annotated[
    str,
    panel(
        RUNNING, "Attention kernel for reading prompts.", "--prefill-attention", metavar="sdpa|flash_attention_2|eager"
    ),
]
MarkEos = Annotated[
    bool | None,
    panel(
        DECODING,
        "Whether the mark may change where a text ends [as the format's own system does].",
        "--mark-eos/--keep-eos",
    ),
]
Compile = Annotated[
    bool, panel(RUNNING, "Run the model through torch.compile; preparing it takes a minute.", "--compile")
]

Speculate = Annotated[
    str,
    panel(RUNNING, "What guesses tokens ahead; the texts stay the same: auto (look-up where it pays), own (in each "
          "text alone), none, a number of tokens to look up, or a smaller model of the same vocabulary."),
]  # fmt: skip


def parse_speculate(text: str) -> tuple[str | int | None, str | None]:
    """(what --speculate says, the name of a model where it names one); a number out of range is refused later."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text), None
    if not text:
        raise ValueError("--speculate must be auto, own, none, a number or a model, got nothing; leave it out")
    if text in ("auto", "own", "none"):
        return (None if text == "none" else text), None
    return "auto", text


def parse_key(text: str) -> int | str:
    """Digits, with or without a minus, are an integer, as in the library; everything else is text.

    Raises ValueError, which shows nothing of the key, for an integer that is no key: as text it would mean another key
    than the same number does in Python.
    """
    if not re.fullmatch(r"-?[0-9]+", text):
        return text
    if text[0] == "-" or len(text) > 20 or int(text) >= 1 << 64:
        raise ValueError(
            "a key of digits alone must be an integer in [0, 2**64) of up to 20 digits, got another; add a letter, "
            "which makes it text"
        )
    return int(text)


def build_watermark(name: str, key: str | None, options: Mapping[str, Any]) -> Watermark | None:
    """The watermark that --watermark, --key and its own options ask for; None for "none".

    Raises ValueError for an unknown name, a missing key, and options that are another watermark's.
    """
    if name == "none":
        _refuse_strangers("watermark", "none", WATERMARK_OPTIONS, options)
        return None
    _require_known("watermark", name, [*WATERMARKS, "none"])
    arguments = _refuse_strangers("watermark", name, WATERMARK_OPTIONS, options)
    if key is None:
        raise ValueError(f"watermark {name} needs a key, got none; set CAW_KEY or give --key")
    return watermark_class(name)(parse_key(key), **arguments)


def build_policy(name: str, options: Mapping[str, Any], model: str) -> Policy:
    """The policy that --policy and its own options ask for; `model` names the default evaluator.

    Raises ValueError for an unknown name, a missing option, and options that are another policy's.
    """
    _require_known("policy", name, list(POLICIES))
    _refuse_strangers("policy", name, POLICY_OPTIONS, options)
    given = {option: value for option, value in options.items() if value is not None}
    needed = POLICIES[name].needed
    if needed and needed not in given:
        raise ValueError(f"policy {name} needs --{needed}, got none; give a number")
    if name == "capacity" and "evaluator" not in given:
        from caw.evaluator import shipped_for

        default = shipped_for(model)
        if default is None:
            raise ValueError(f"policy capacity needs --evaluator for model {model!r}, got none; train one for it")
        given["evaluator"] = default
    return make_policy(name, **given)


def _require_known(what: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, got {name!r}; choose one of these")


def _refuse_strangers(
    what: str, name: str, table: Mapping[str, Mapping[str, str]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments from the options that were given; an option that would do nothing is an error, not a surprise.

    table: of each name, its options with the argument that each becomes.
    """
    given, names = {option: value for option, value in options.items() if value is not None}, table.get(name, {})
    for option in given:
        if option not in names:
            owners = " and ".join(owner for owner, theirs in table.items() if option in theirs)
            raise ValueError(f"--{option} is an option of {what} {owners}, got {what} {name}; leave it out")
    return {names[option]: value for option, value in given.items()}


def describe(thing: Watermark | Policy | None) -> dict[str, Any] | None:
    """Name and parameters for output lines, never the key; None for None."""
    if thing is None:
        return None
    mark = hasattr(thing, "key_id")
    name = watermark_name(thing) if mark else policy_name(thing)  # type: ignore[arg-type]
    said = {} if mark else {argument: parameter for parameter, argument in POLICIES[name].parameters.items()}
    described: dict[str, Any] = {"name": name}
    for field in fields(thing):  # type: ignore[arg-type]
        if field.name in ("payload_bits", "temperature") and getattr(thing, field.name) == field.default:
            continue  # rare parameters are named only where they are used
        value = getattr(thing, field.name)
        if field.name not in ("key", "network") and value is not None:
            described[said.get(field.name, field.name)] = value.described() if field.name == "target" else value
    return described


def prepare_device(device: str | None, threads: int | None) -> str:
    """Check --device before anything is loaded, and set the number of CPU threads of this process."""
    set_threads(threads)
    return str(resolve_device(device))


def set_threads(threads: int | None) -> None:
    """The number of CPU threads of this process; None leaves it."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
