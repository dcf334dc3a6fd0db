"""Ways to generate, by name: this library's own as WATERMARK[+POLICY[/BRANCHING]], and those of others.

plain                        this library's own unwatermarked decode, which all others are compared to
kgw, unigram, exp, synthid   the watermark at full strength
kgw+entropy                  only where the entropy is above a threshold
kgw+caw                      capacity policy, looking ahead in one forward; /sequential, /batch: the paper's baselines
plain/drafts, kgw+caw/drafts the same with drafts (`speculate="auto"`), which all others are without
plain/drawn, exp/drawn       tokens drawn at temperature .7 with top-p .95, all others are greedy; EXP is the full race
transformers                 transformers.generate; -static: static cache, which transformers compiles on a GPU
transformers-kgw             transformers.generate with its own KGW; as-transformers-kgw: ours in its format
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import WatermarkingConfig

from caw.benchmark.subjects import Subject
from caw.benchmark.timing import Call, Made, PreparationWatch
from caw.defaults import DELTA, GAMMA, TOP_K_EXP
from caw.entrance import generate
from caw.models.ends import end_token_ids
from caw.policies import Policy
from caw.policies.names import make_policy
from caw.watermarks import EXP, KGW, Watermark
from caw.watermarks.names import watermark_class

PLAIN = "plain"
KEY, TOP_K = 15_485_863, TOP_K_EXP  # GAMMA and DELTA are of every green list here, so that pairs give equal tokens
NATS = 1.0
WATERMARKS: dict[str, dict[str, float]] = {
    "kgw": {"gamma": GAMMA, "delta": DELTA}, "unigram": {"gamma": GAMMA, "delta": DELTA}, "exp": {"top_k": TOP_K},
    "synthid": {},
}  # fmt: skip
POLICIES = ("entropy", "caw", "caw/sequential", "caw/batch")
FOREIGN = {"as-transformers-kgw": "transformers"}
OTHERS = ("transformers", "transformers-static", "transformers-kgw")
OWN = (PLAIN, *WATERMARKS, *(f"{w}+{p}" for w in WATERMARKS for p in POLICIES), *FOREIGN)
DRAFTS = "/drafts"
DRAFTED = tuple(name + DRAFTS for name in (PLAIN, "kgw", "kgw+caw", "exp", "exp+caw"))
DRAWN = "/drawn"
DRAWING: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_p": 0.95}
SAMPLED = tuple(name + DRAWN for name in (PLAIN, "kgw", "kgw+caw", "exp", "synthid"))
ALL = (*OWN, *SAMPLED, *DRAFTED, *OTHERS)
# one screen: the paper's figure, its baselines, and what others offer
DEFAULT = (
    PLAIN, "kgw", "kgw+entropy", "kgw+caw", "kgw+caw/sequential", "kgw+caw/batch", "unigram", "unigram+caw",
    "exp", "exp+entropy", "exp+caw", "exp+caw/sequential", "exp+caw/batch",
    "transformers", "transformers-kgw", "as-transformers-kgw",
)  # fmt: skip


@dataclass(frozen=True)
class ModeInputs:
    """One case: the subject, its prompts, and the settings of the policies."""

    subject: Subject
    prompts: list[list[int]]
    theta: float
    beta: float | None


def check_modes(names: Sequence[str]) -> tuple[str, ...]:
    """The modes in order, each once, "plain" first; "default" and "all" stand for theirs. ValueError for others."""
    groups = {"default": DEFAULT, "all": ALL}
    wanted = [name for given in names for name in groups.get(given, (given,))]
    for name in wanted:
        if name not in ALL:
            raise ValueError(f"modes must be among default, all, {', '.join(ALL)}, got {name!r}; choose some of these")
    return tuple(dict.fromkeys([PLAIN, *wanted]))


def call_of(mode: str, inputs: ModeInputs) -> Call:
    if mode in OTHERS:
        return theirs(inputs, mode)
    watermark, policy, branching = parts_of(mode.removesuffix(DRAFTS), inputs)
    return ours(inputs, watermark, policy, branching, drafts=mode.endswith(DRAFTS), **drawing_of(mode))


def drawing_of(mode: str) -> dict[str, Any]:
    """Return the sampling settings of a mode; empty for greedy ones."""
    return DRAWING if mode.endswith(DRAWN) else {}


def parts_of(mode: str, inputs: ModeInputs) -> tuple[Watermark | None, Policy | None, str]:
    """Return (watermark, policy, branching) of one of this library's own modes."""
    if mode in FOREIGN:
        return KGW(key=KEY, gamma=GAMMA, delta=DELTA, format=FOREIGN[mode]), None, "tree"
    name, _, rest = mode.removesuffix(DRAWN).partition("+")
    policy_name, _, branching = rest.partition("/")
    watermark = None if name == PLAIN else make_watermark(name, drawn=mode.endswith(DRAWN))
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        "": ("fixed", {}),
        "entropy": ("entropy", {"nats": NATS}),
        "caw": ("capacity", {"evaluator": inputs.subject.evaluator, "theta": inputs.theta, "beta": inputs.beta}),
    }
    policy, parameters = chosen[policy_name]
    return watermark, None if watermark is None else make_policy(policy, **parameters), branching or "tree"


def make_watermark(name: str, *, drawn: bool = False) -> Watermark:
    """The watermark of a mode; drawn: EXP races over the whole kept vocabulary."""
    if drawn and name == "exp":
        return EXP(KEY, strength="scale")
    [mark] = watermark_class(name)(KEY, **WATERMARKS[name]).parts
    return mark


def ours(
    inputs: ModeInputs,
    watermark: Watermark | None,
    policy: Policy | None,
    branching: str,
    *,
    drafts: bool = False,
    **sampling: Any,
) -> Call:
    """Return `caw.generate` of exactly as many tokens as requested: ending earlier is forbidden."""
    fixed: dict[str, Any] = {
        "watermark": watermark, "policy": policy, "branching": branching, "batch_size": len(inputs.prompts),
        "return_trace": drafts, "progress": False,
        "speculate": "auto" if drafts else None, **sampling,
    }  # fmt: skip
    ends = bool(end_token_ids(inputs.subject.model, inputs.subject.tokenizer))

    def call(tokens: int) -> Made:
        watch = PreparationWatch()
        out = generate(
            inputs.subject.model, inputs.subject.tokenizer, inputs.prompts, max_new_tokens=tokens,
            min_new_tokens=tokens if ends else 0, report=watch, **fixed,
        )  # fmt: skip
        return Made(out.sequences, watch.seconds, [t.drafts for t in out.trace or () if t.drafts is not None])

    return call


def theirs(inputs: ModeInputs, mode: str) -> Call:
    """Return `transformers.generate`: the same model, greedy, with its own attention and cache."""
    model, tokenizer = inputs.subject.model, inputs.subject.tokenizer
    rows = torch.tensor(inputs.prompts, device=model.device)
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(rows), "do_sample": False, "pad_token_id": tokenizer.eos_token_id or 0,
    }  # fmt: skip
    if mode == "transformers-static":
        options["cache_implementation"] = "static"
    if mode == "transformers-kgw":
        options["watermarking_config"] = WatermarkingConfig(
            greenlist_ratio=GAMMA, bias=DELTA, hashing_key=KEY, seeding_scheme="lefthash", context_width=1
        )

    ends = bool(end_token_ids(model, tokenizer))

    def call(tokens: int) -> Made:
        more = {"min_new_tokens": tokens} if ends else {}
        out = model.generate(rows, max_new_tokens=tokens, **options, **more)
        return Made(out[:, rows.shape[1] :].tolist())

    return call


def same_tokens(names: Sequence[str]) -> list[list[str]]:
    """Return groups of names that must give the tokens of the group's first, for any branching."""
    groups = [[PLAIN, PLAIN + DRAFTS, "transformers", "transformers-static"]]
    groups += [[w, w + DRAFTS] for w in WATERMARKS]
    groups.append(["as-transformers-kgw", "transformers-kgw"])
    groups += [[name for name in names if name.startswith(f"{w}+caw") and DRAWN not in name] for w in WATERMARKS]
    return [kept for group in groups if len(kept := [name for name in group if name in names]) > 1]
