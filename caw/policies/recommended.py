"""The policies that a `caw.Recommended` brings: full strength for the race, CAW with a target elsewhere."""

from __future__ import annotations

from caw.evaluator.network import UNIVERSAL, shipped_for
from caw.policies.base import Policy
from caw.policies.capacity import CapacityPolicy
from caw.policies.fixed import FixedStrength
from caw.watermarks.recommended import Recommended

NO_EVALUATOR = (
    "no evaluator of this model and no tokenizer for the universal one, so greedy texts are marked at strength 1 until "
    "they reach the target; pass the tokenizer as caw_tokenizer=, name an evaluator, or use caw.generate"
)


def policy_for(
    mark: Recommended, model_name: str, *, raced: bool, level: float | None = None, classes: bool = True
) -> Policy:
    """Return the policy of a text.

    Args:
        raced: whether the race marks it, see `caw.settings.gets_race`.
        model_name: names the evaluator, unless `mark` does; "" = unknown.
        level: p-value at which texts are tested before they leave, None = they are not.
        classes: see `evaluator_of`.

    Raises what `CapacityPolicy` raises for an evaluator that cannot be loaded.
    """
    if raced:
        return FixedStrength(1.0)
    target = mark.level_of_each(mark.target if level is None else min(level, mark.target))
    evaluator = evaluator_of(mark, model_name, classes=classes)
    return FixedStrength(1.0, target=target) if evaluator is None else CapacityPolicy(evaluator, target=target)


def evaluator_of(mark: Recommended, model_name: str, *, classes: bool = True) -> str | None:
    """Return the evaluator of greedy texts: the mark's, the model's own, or the universal one.

    classes: whether there is a tokenizer to read token classes from; without one the universal evaluator cannot serve,
    and a model without its own has None.
    """
    own = mark.evaluator or (shipped_for(model_name) if model_name else None)
    return own or (UNIVERSAL if classes else None)


def refuse_policy(policy: object) -> None:
    """Raise ValueError for a policy beside a `Recommended`."""
    if policy is not None:
        raise ValueError(
            f"a Recommended brings its own policies, got {type(policy).__name__} as well; leave policy out, or give "
            "caw.KGW or caw.EXP"
        )
