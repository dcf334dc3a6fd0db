"""Choose the step that decodes a plan. All give the same tokens; `step.py` says what each is.

                 no drafts      drafts, which change no token
eager            EagerStep      DraftStep
captured         FixedStep      ChainedFixedStep
captured, fused  FusedStep      ChainedFusedStep

Steps are captured on CUDA or with compile=True, unless one of them needs something of the host (`will_capture` in
`plan_defaults.py`); they are fused where `fusible` (`capture/fused_step.py`) says so.
"""

from __future__ import annotations

from typing import Any

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.fused_step import FusedStep, fusible
from caw.decoding.drafts.chained_step import ChainedFixedStep, ChainedFusedStep
from caw.decoding.drafts.drafter import Drafter
from caw.decoding.drafts.experience import Experience, experience_with
from caw.decoding.drafts.ngrams import NgramDrafter
from caw.decoding.drafts.price import RowPrice, price_for
from caw.decoding.drafts.proposer import Proposer
from caw.decoding.drafts.small_model import ModelDrafter, share_of
from caw.decoding.drafts.step import DraftStep
from caw.decoding.drafts.width import Always, Paying, Width
from caw.decoding.eager_step import EagerStep
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import MOST_DRAFTS, ROUNDING, exact_rows
from caw.decoding.row_tensors import RowMarks
from caw.decoding.texts import Texts
from caw.models.parts import ModelParts
from caw.settings import WHERE_IT_PAYS

MOST_OF_MODEL = 5  # tokens that a small model guesses at most


def make_step(
    model: Any, plan: Plan, texts: Texts, marks: RowMarks | None = None, parts: ModelParts | None = None
) -> tuple[EagerStep | FixedStep, str]:
    """Choose the step that decodes by this plan.

    texts: the rows that it writes. marks: the watermarks of their keys. parts: those that the model has now, if they
    are known.

    Returns:
        (the step, why it carries no drafts: empty if it may).
    """
    speculate, why_not = plan.settings.speculate, plan.why_no_drafts
    if not why_not and speculate in WHERE_IT_PAYS and not exact_rows(model, parts):
        why_not = ROUNDING
    if plan.drafts:
        drafter = NgramDrafter() if isinstance(speculate, int) else speculate
        width, ahead = Always(plan.drafts), plan.looks_ahead
        proposer = Proposer(drafter, width, plan.facts.vocab_size, looks_ahead=ahead, beside=False)
        return (ChainedFusedStep if fusible(plan) else ChainedFixedStep)(model, plan, proposer, texts, marks), ""
    if plan.captured:
        return (FusedStep if fusible(plan) else FixedStep)(model, plan, texts, marks), why_not
    if why_not:
        return EagerStep(model, plan, texts, marks), why_not
    price = price_for(model)
    proposer = Proposer(*_source(model, plan, price), plan.facts.vocab_size, looks_ahead=plan.looks_ahead)
    return DraftStep(model, plan, proposer, price, texts, marks), ""


def _source(model: Any, plan: Plan, price: RowPrice) -> tuple[Drafter, Width]:
    """Return the drafter and how far its drafts are followed."""
    speculate = plan.settings.speculate
    if isinstance(speculate, int):
        return NgramDrafter(), Always(speculate)
    if speculate is model:
        raise ValueError("speculate must be a smaller model than the one that writes, got that one; leave it out")
    if hasattr(speculate, "config"):
        speculate = ModelDrafter(speculate, plan.watermark, plan.policy, share_of(speculate, model))
    if isinstance(speculate, ModelDrafter):
        kind = (speculate.cost, *map(type, (plan.watermark, plan.policy, speculate.watermark)))
        known = experience_with(speculate.model, kind, price, speculate.cost, speculate.expected)
        return speculate, Paying(MOST_OF_MODEL, known)
    drafter = NgramDrafter(alone=speculate == "own") if isinstance(speculate, str) else speculate
    known = Experience(price, getattr(drafter, "cost", 0.0), getattr(drafter, "expected", None))
    return drafter, Paying(MOST_DRAFTS, known)
