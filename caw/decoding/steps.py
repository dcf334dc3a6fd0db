"""Choose the step that decodes a plan: captured on CUDA or with compile=True, if it may be; see `step.py`."""

from typing import Any

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.fused_step import FusedStep, fusible
from caw.decoding.drafts.ngrams import NgramDrafter
from caw.decoding.drafts.proposer import Drafter, Earned, Proposer, Width
from caw.decoding.drafts.verify import DraftStep
from caw.decoding.eager_step import EagerStep
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import MOST_DRAFTS, ROUNDING, exact_rows
from caw.decoding.texts import Texts
from caw.settings import WHERE_IT_PAYS


def make_step(model: Any, plan: Plan, texts: Texts) -> tuple[EagerStep | FixedStep, str]:
    """Return (the step that decodes the rows `texts` by this plan, why it carries no drafts: "" if it may)."""
    speculate, why_not = plan.settings.speculate, plan.why_no_drafts
    if not why_not and speculate in WHERE_IT_PAYS and not exact_rows(model):
        why_not = ROUNDING
    if why_not:
        if plan.captured:
            return (FusedStep if fusible(plan) else FixedStep)(model, plan, texts), why_not
        return EagerStep(model, plan, texts), why_not
    if isinstance(speculate, int):
        drafter: Drafter = NgramDrafter()
    else:
        drafter = NgramDrafter(alone=speculate == "own") if isinstance(speculate, str) else speculate
    width = Width(speculate) if isinstance(speculate, int) else Earned(MOST_DRAFTS, getattr(drafter, "expected", None))
    proposer = Proposer(drafter, width, plan.facts.vocab_size)
    return DraftStep(model, plan, proposer, texts), ""
