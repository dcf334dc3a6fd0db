"""Default settings of the library, command line, YAML files, demo, tuning and README.

Chosen on Qwen2.5-Coder-0.5B with KGW, GSM8K, 100 questions under five keys (docs/results/quality.md, "Five keys").
CAW with THETA and BETA * DELTA = 8 answers 10.0 % correctly and is detected in 89 % of texts at a false-positive rate
of 1 %; the fixed strength DELTA answers 5.4 % and is detected in 86 %. No other CAW setting gains beyond chance under
several keys: theta 0.5 with BETA * DELTA = 20 gains 2.4 points (-1 to 6), and BETA * DELTA = 4 is detected in only 29
%.

BETA is not 1 because a fixed strength uses DELTA as it is: 8 without a policy leaves 0.2 % of the answers correct.
EXP: BETA * TOP_K_EXP = 20 tokens race where a token has zero importance ("cot-14" there). SynthID applies all of its
layers where the importance is below half of THETA.

The demo model is more sensitive (24 everyday prompts, 200 tokens, bench_detection.py at aaf5148c): beta 1 already
detects all texts at 1e-5 with 0.91 nats per token; beta 2 costs 1.13, unmarked text has 0.63.
"""

import math

GAMMA = 0.25  # green share of the vocabulary: KGW, Unigram
DELTA = 4.0  # logit bonus of green tokens at strength 1: KGW, Unigram
TOP_K_EXP = 10  # tokens that race at strength 1: EXP
STRENGTH = 1.0  # of policies without look-ahead, where they mark
THETA = 0.9  # capacity: tokens of more importance stay unmarked
BETA = 2.0  # capacity: strength where a token has no importance
BETA_BY_MODEL = {"smollm2-135m": 1.0}  # the same for evaluators of these models
FREE_NATS = math.log(64)  # surprisal of the free beginning of a drawn text: two draws begin alike once in 64 at most
FREE_TOKENS = 64  # tokens of a free beginning at most: of 75 texts drawn at T .2, 6 need more than 48, 1 more than 64
RECOMMENDED_WIDTH = 2  # tokens that seed the race of `caw.Recommended`; why: docs/results/detection.md
RECOMMENDED_TARGET = 1e-3  # p-value at which its marking of greedy texts may rest: the default level of `caw.detect`
RECORD_SIZE = 100  # K, the paper's "limited number of values ... 100 in our experiments"
