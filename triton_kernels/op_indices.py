"""The names behind whole numbers that ops take: the op gets the place in the tuple.

Free of PyTorch, so that a command line can list them at once.
"""

from __future__ import annotations

from typing import Literal, get_args

# what the evaluator is given of a probability: itself, its logarithm, or its distance to the greatest
Transform = Literal["raw", "log", "gap"]
TRANSFORMS: tuple[Transform, ...] = get_args(Transform)

# how a strength reaches the rungs of a ladder; see `takes_over_ref`
Rule = Literal["reweight", "top_k", "scale"]
RULES: tuple[Rule, ...] = get_args(Rule)
