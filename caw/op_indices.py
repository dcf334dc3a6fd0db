"""Integer codes in op arguments: a name's index in its tuple. The command line lists them without PyTorch."""

from typing import Literal, get_args

# what the evaluator is given of a probability: itself, its logarithm, or its distance to the greatest
Transform = Literal["raw", "log", "gap"]
TRANSFORMS: tuple[Transform, ...] = get_args(Transform)

# how a strength reaches the rungs of a ladder; see `takes_over`
Rule = Literal["reweight", "top_k", "scale"]
RULES: tuple[Rule, ...] = get_args(Rule)

# how the compiled ladders and scores of a native format work; see `caw.watermarks.base.Native`
GREEN, SELFHASH, RACE_TOP_K, RACE_SCALE = range(4)

# in place of a token id: none yet in this step, and logits that are NaN or infinite
NOT_EMITTED, BROKEN = -1, -2
