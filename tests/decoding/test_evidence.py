"""Identity 9: after every step the evidence equals the detector's of the ids generated so far."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import prompt
from decoding.running import make_decoder
from decoding.test_mixed_rows import FOREIGN
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw.decoding.evidence import LEVELS
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.detection.detector import Detector
from caw.detection.weights import TokenWeights
from caw.policies import Target
from caw.testing import assert_close

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(6, 3), prompt(2, 4)]
BUDGETS = [17, 5, 12, 30, 24]
MARKS = {
    **WATERMARKS,
    "key of its own": caw.KGW(key=2**64 - 1, delta=2.0, context_width=2),
    "dual": caw.EXP(key=5, format="vllm-dual", context_width=2, top_k=12),
    "sglang": caw.EXP(key=5, format="sglang", context_width=2, top_k=12),
    **FOREIGN,
    "minhash": caw.KGW(key=7, delta=3.0, seeding="minhash", format="lm-watermarking"),
    "selfhash of transformers": caw.KGW(key=7, delta=3.0, seeding="selfhash", format="transformers"),
    "sbw selfhash": caw.KGW(key=5, delta=2.0, gamma=0.5, seeding="selfhash", format="sbw"),
}
WEIGHTED = [name for name in MARKS if name not in ("dual", "synthid")]


def table(vocab_size: int) -> TokenWeights:
    levels = np.arange(vocab_size - 40) * 7 % 16
    return TokenWeights(levels * (np.arange(levels.size) % 3 > 0), default=3)


class Watched:
    def __init__(self, model: Any, watermark: Any, policy: Any, weights: TokenWeights | None, **settings: Any) -> None:
        self.decoder = make_decoder(
            model, watermark, policy, settings.pop("batch", 2), 60, max_new_tokens=30, return_trace=False,
            eos_token_ids=(2,), **settings,
        )  # fmt: skip
        self.weights, self.counted, self.repeated = weights, 0, 0
        self.keys: set[str] = set()
        self.detector = Detector(None, self.decoder.plan.watermark, weights=weights)
        self.decode, self.decoder.step.decode = self.decoder.step.decode, self.step  # type: ignore[method-assign]

    def step(self, state: Any, cache: Any) -> Any:
        done = self.decode(state, cache)
        texts = self.decoder.choosing.texts
        ids = [row[row >= 0].numpy() for row in texts.made]
        marks = [mark or self.detector.watermark for mark in texts.marks]
        each = [dataclasses.replace(self.detector, watermark=mark) for mark in marks]
        results = [detector.detect_ids([text])[0] for detector, text in zip(each, ids, strict=True)]
        self.keys |= {mark.key_id for mark in marks}
        for row, (text, result) in enumerate(zip(ids, results, strict=True)):
            kept = np.array([score is not None for score in result.token_scores], dtype=bool)
            levels = np.ones(len(text), np.int64) if self.weights is None else self.weights.of(text)
            assert texts.evidence is not None
            assert texts.evidence.trials[row].tolist() == np.bincount(levels[kept], minlength=LEVELS).tolist()
            self.counted, self.repeated = self.counted + int(kept.sum()), self.repeated + result.num_repeated
        scores = torch.tensor([result.score for result in results], dtype=torch.float64)
        if self.detector.watermark.null == "binomial":
            assert torch.equal(texts.evidence.score, scores)
        else:
            assert_close(texts.evidence.score, scores, "float64")
        return done

    def run(self, budgets: list[int], keys: list[Any]) -> dict[int, list[int]]:
        row = RowSettings.of(self.decoder.plan.settings)
        requests = requests_for(PROMPTS, budgets, [dataclasses.replace(row, key=key) for key in keys])
        return {sequence.index: sequence.tokens for sequence in self.decoder.run(requests)}


def watch(model: Any, name: str, policy: Any, weighted: bool = False, keys: Any = None, **settings: Any) -> Watched:
    weights = table(model.config.vocab_size) if weighted else None
    target = Target(0.01, weights=weights)
    watched = Watched(model, MARKS[name], policy(model, target), weights, **settings)
    texts = watched.run(BUDGETS, keys or [None] * len(PROMPTS))
    assert len(texts) == len(PROMPTS) and watched.counted > 0
    return watched


POLICIES = {
    "fixed": lambda model, target: caw.FixedStrength(1.0, target),
    "capacity": lambda model, target: caw.CapacityPolicy(capacity_policy(model).network, 1.0, 1.5, target),
}


@pytest.mark.parametrize("name, policy, sampling, fixed", pairwise(MARKS, POLICIES, SAMPLING, [False, True]))
def test_evidence_is_the_detectors(llama: Any, name: str, policy: str, sampling: str, fixed: bool) -> None:
    """Five texts through two places: refills, ends, budgets, overflows of two slots."""
    watch(llama, name, POLICIES[policy], slots=2, fixed=fixed, **SAMPLING[sampling])


@pytest.mark.parametrize("name, sampling, fixed", pairwise(WEIGHTED, SAMPLING, [False, True]))
def test_evidence_with_weights(llama: Any, name: str, sampling: str, fixed: bool) -> None:
    watch(llama, name, POLICIES["capacity"], weighted=True, slots=2, fixed=fixed, **SAMPLING[sampling])


@pytest.mark.parametrize("name", MARKS)
def test_evidence_under_keys_of_their_own(llama: Any, name: str) -> None:
    keys = [None, 77, 2**62 + 12345, 77, None]
    limits = RowLimits.of([RowSettings(max_new_tokens=30), RowSettings(max_new_tokens=30, key=77)], (2,))
    assert len(watch(llama, name, POLICIES["fixed"], keys=keys, limits=limits, batch=3).keys) == 3


def test_repeats_are_met(llama: Any) -> None:
    """The texts of these tests repeat themselves, and rows are dropped on the way."""
    assert watch(llama, "unigram", POLICIES["fixed"], batch=5).repeated > 0
