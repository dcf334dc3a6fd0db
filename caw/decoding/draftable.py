"""Whether forwards can carry drafts."""

from __future__ import annotations

from typing import Any

from caw import ops
from caw.decoding.forward.fused_layers import DTYPES, GPU_ROWS, fusible
from caw.decoding.forward.prefill_attention import compiled_prefill
from caw.models.facts import ModelFacts
from caw.settings import WHERE_IT_PAYS, Settings

MOST = 12  # drafts of one sequence in a forward, unless more are asked for
FIXED = 4  # drafts of a captured step for a drafter that does not say how many
ROWS = 32  # of a sequence in a captured step
NEVER = "speculate is None"
ROUNDING = "the model has layers whose rounding may depend on the number of rows"


def why_no_drafts(
    facts: ModelFacts, settings: Settings, kernels: ops.Ops, *, captured: bool, changing: bool, slots: int, batch: int
) -> str:
    """Why decoding carries no drafts; empty if it may.

    captured, slots: as in `Plan`. changing: whether a token's keys and values may be others the next time they are
    computed. batch: texts at once, before memory makes it smaller. A captured step of more rows than the kernels of few
    rows take would go to other products without a word, so that drafts are refused there.

    Raises ValueError where drafts cannot be carried and were asked for by more than "auto" or "own".
    """
    if settings.speculate is None:
        return NEVER
    compiled = compiled_prefill(settings.prefill_attention, facts.device, kernels) and facts.dtype in DTYPES
    spread = facts.spread or facts.mesh is not None
    others = kernels.native and kernels.sibling_attention is not ops.sibling_attention
    rows = slots + graph_drafts(settings, "", captured)
    together = batch * rows
    found = {
        "steps other than this library's compiled ones on a CPU, in float32 or bfloat16": not (compiled or captured),
        "steps on several devices": spread,
        "compile=True": settings.compile,
        "captured steps, which only a number or a drafter gives drafts": captured and not _fixed(settings.speculate),
        "captured steps with another package's attention": captured and others,
        f"captured steps of {rows} rows for each text, of at most {ROWS}": captured and rows > ROWS,
        f"captured steps of {together} rows for {batch} texts, of at most {GPU_ROWS}": captured and together > GPU_ROWS,
        f"branching={settings.branching!r}": settings.branching != "tree",
        "texts that may outgrow the model's rotary embedding, or dropout": changing,
    }
    reason = next((name for name, there in found.items() if there), "")
    if reason and settings.speculate not in WHERE_IT_PAYS:
        raise ValueError(
            f"speculate={_said(settings.speculate)} needs branching='tree' and this library's compiled or captured "
            f"steps, found {reason}; leave speculate out"
        )
    return reason


def most_drafts(settings: Settings, why_not: str) -> int:
    """Tokens that one sequence's draft has at most; 0 where there is a reason to have none."""
    most = settings.speculate if isinstance(settings.speculate, int) else MOST
    return 0 if why_not else most


def graph_drafts(settings: Settings, why_not: str, captured: bool) -> int:
    """Drafts of each sequence in every captured step; 0 where there is a reason to have none."""
    if why_not or not (captured and _fixed(settings.speculate)):
        return 0
    return settings.speculate if isinstance(settings.speculate, int) else FIXED


def _fixed(speculate: Any) -> bool:
    """Whether it gives captured steps drafts: a number or a drafter, not what drafts only where that is known to pay,
    nor a model, whose guesses on the CPU a GPU would wait for."""
    own = isinstance(speculate, str) and speculate in WHERE_IT_PAYS
    return speculate is not None and not own and not hasattr(speculate, "config")


def exact_rows(model: Any) -> bool:
    """Whether all decoder layers run as this library's own operator, which gives a row the same bits in any forward."""
    layers = [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]
    return bool(layers) and all(map(fusible, layers))


def _said(speculate: Any) -> str:
    return str(speculate) if isinstance(speculate, int) else type(speculate).__name__
