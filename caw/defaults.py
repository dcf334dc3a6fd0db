"""The settings that everything uses unless told otherwise: library, command line, YAML, demo, tuning, README.

Chosen on Qwen2.5-Coder-0.5B, KGW, GSM8K, 100 questions under five keys (docs/experiments.md, "Five keys"):
CAW with THETA and BETA * DELTA = 8 answers .100 right and is found .89 at a false-positive rate of 1 %, where the fixed
strength DELTA answers .054 and is found .86. It is the only setting of CAW whose gain is beyond chance under several
keys; theta .5 with BETA * DELTA = 20 gained less (.024, -.01 to .06), BETA * DELTA = 4 is hardly found there (.29).

BETA is not 1, because a fixed strength uses DELTA as it is: 8 without a policy leaves .002 of the answers right. EXP:
BETA * TOP_K_EXP = 20 tokens race where a token has no importance ("cot-14" there); SynthID has all of its layers where
the importance is below half of THETA.

The demo model bends sooner (24 everyday prompts, 200 tokens, benchmarks/bench_detection.py): with beta 1 all texts are
found at 1e-5 already, at a surprise of .91 nats a token; with beta 2 it is 1.13, unmarked .63.
"""

from __future__ import annotations

GAMMA = 0.25  # green share of the vocabulary: KGW, Unigram
DELTA = 4.0  # logit bonus of green tokens at strength 1: KGW, Unigram
TOP_K_EXP = 10  # tokens that race at strength 1: EXP
STRENGTH = 1.0  # of policies without look-ahead, where they mark
THETA = 0.9  # capacity: tokens of more importance stay unmarked
BETA = 2.0  # capacity: strength where a token has no importance
BETA_BY_MODEL = {"smollm2-135m": 1.0}  # the same for evaluators of these models
RECORD_SIZE = 100  # K, the paper's "limited number of values ... 100 in our experiments"
