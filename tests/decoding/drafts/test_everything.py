"""Every watermark under every policy with drafts, on every architecture and the demo model: too long for every run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, build
from decoding.drafts.test_step import MARKS as SUITE
from decoding.drafts.test_step import MIXED, same
from decoding.mixing import FOREIGN
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise

import caw
from caw import ops

pytestmark = [
    pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension"),
    pytest.mark.gate("drafts"),
]
MARKS = {**WATERMARKS, **FOREIGN, "payload": SUITE["payload"]}
FUSED = ["llama", "mistral", "qwen2", "qwen2-window", "qwen3", "phi3", "granite"]


@pytest.mark.parametrize("watermark", [None, *MARKS])
@pytest.mark.parametrize("batch", [1, 3, 6])
def test_every_mark_and_policy(llama: Any, watermark: str | None, batch: int) -> None:
    chosen = MARKS[watermark] if watermark else None
    for policy in POLICIES if watermark else ["full"]:
        same(llama, chosen, POLICIES[policy](llama) if chosen else None, MIXED, batch)


@pytest.mark.parametrize("name, watermark", pairwise(CONFIGS, WATERMARKS))
def test_every_architecture(name: str, watermark: str) -> None:
    model = build(name)
    for policy in ("full", "window21"):
        same(model, WATERMARKS[watermark], POLICIES[policy](model), MIXED)


@pytest.mark.parametrize("name, watermark", pairwise(FUSED, MARKS))
def test_bfloat16(name: str, watermark: str) -> None:
    model = copy.deepcopy(build(name)).to(torch.bfloat16)
    for policy in ("delta", "window11"):
        same(model, MARKS[watermark], POLICIES[policy](model), MIXED)


PROMPTS = [
    "Repeat this text:\nThe fox went home to its small house in the woods.\n\nThe same text again:\nThe fox went",
    "def mean(values):\n    return sum(values) / len(values)\n\n\ndef mean_of_squares(values):\n    return",
    "Once upon a time",
]
ON_DEMO = {"kgw": caw.KGW(key=1, delta=2.5), "selfhash": caw.KGW(key=2, seeding="selfhash"), "exp": caw.EXP(key=3),
           "unigram": caw.Unigram(key=4), "synthid": caw.SynthID(key=5)}  # fmt: skip


@pytest.mark.parametrize("dtype, weights", [("float32", None), ("bfloat16", None), ("float32", "file")])
def test_the_demo_model(dtype: str, weights: str | None) -> None:
    model, tokenizer = caw.load_model("smollm2-135m", dtype=dtype, quantization=weights)
    caw_policy = caw.CapacityPolicy("smollm2-135m")
    policies = [caw.FixedStrength(1.0), caw.EntropyThreshold(1.0), caw_policy]
    for watermark in (None, *ON_DEMO.values()):
        for policy in policies if watermark else [None]:
            for sampling in ({}, {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "seed": 3}):
                made = [
                    caw.generate(
                        model, tokenizer, PROMPTS, watermark=watermark, policy=policy, max_new_tokens=24,
                        speculate=speculate, batch_size=batch, progress=False, **sampling,
                    )
                    for speculate, batch in ((None, 3), ("auto", 1), (4, 3))
                ]  # fmt: skip
                assert made[1].sequences == made[2].sequences == made[0].sequences
                assert [t.choice for t in made[1].trace or []] == [t.choice for t in made[0].trace or []]
