"""Captured steps of formats whose numbers no kernel of this library makes: other systems', SynthID, payloads."""

import dataclasses
from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.capture.test_fixed_step import both
from decoding.capturing import replays_go_on_as, seen_by_fakes, started
from decoding.running import make_decoder, run
from decoding.test_step import SAMPLING, capacity_policy
from docs.test_examples import WATERMARK

import caw
from caw import ops
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.policies import Target
from caw.watermarks import green_list

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]
FORMATS: dict[str, Any] = {
    "transformers": caw.KGW(key=2**40 + 1, delta=2.5, format="transformers"),
    "transformers selfhash": caw.KGW(key=3, delta=2.5, seeding="selfhash", format="transformers"),
    "minhash": caw.KGW(key=4, delta=2.5, seeding="minhash", format="lm-watermarking"),
    "skip": caw.KGW(key=5, delta=2.5, seeding="skip", context_width=2, format="markllm"),
    "sweet": caw.KGW(key=2**62 + 5, delta=2.5, seeding="sweet", format="markllm"),
    "sbw": caw.KGW(key=6, gamma=0.5, delta=2.5, seeding="simple_4", format="sbw"),
    "sbw selfhash": caw.KGW(key=6, gamma=0.5, delta=2.5, seeding="selfhash", format="sbw"),
    "mask": caw.Unigram(key=7, gamma=0.4, delta=2.5, format="markllm"),
    "uniforms": caw.EXP(key=8, top_k=9, context_width=2, format="markllm"),
    "dual": caw.EXP(key=9, top_k=12, context_width=2, alpha=0.4, format="vllm-dual"),
    "temperature": caw.EXP(key=10, strength="scale", context_width=2, temperature=0.7),
    "payload": caw.KGW(key=11, delta=2.5, payload=5, payload_bits=4),
    "payload race": caw.EXP(key=12, top_k=9, context_width=2, payload=5, payload_bits=4),
    "synthid": caw.SynthID(key=13, depth=5, ngram_len=3),
    # no green token in a record of 100: the whole vocabulary counts
    "transformers, few": caw.KGW(key=19, gamma=0.01, delta=9.0, format="transformers"),
    "sbw, few": caw.KGW(key=17, gamma=0.01, delta=9.0, seeding="simple_4", format="sbw"),
    "an own": WATERMARK.DiPmark(key=14, context_width=2),
}
POLICIES = {
    "fixed": lambda model: caw.FixedStrength(1.0),
    "delta": lambda model: caw.LogitDeltaThreshold(0.7, value=1.2),
    "capacity": capacity_policy,
}
SCANNED = {"transformers, few", "sbw, few"}
# each format under one policy and one way to sample, so that all of these meet
CASES = [(name, list(POLICIES)[i % 3], list(SAMPLING)[i // 3 % 2]) for i, name in enumerate(FORMATS)]


@pytest.mark.parametrize(("name", "policy", "sampling"), CASES)
def test_no_host_read(llama: Any, name: str, policy: str, sampling: str) -> None:
    decoder, step = started(llama, PROMPTS, FORMATS[name], POLICIES[policy](llama), slots=2, min_new_tokens=3,
                            eos_token_ids=(2,), mark_eos=False, **SAMPLING[sampling])  # fmt: skip
    seen = seen_by_fakes(decoder, step)
    assert {ops.decision_step, ops.commit_step} <= seen
    drawn = {ops.permutation_contains, ops.generator_words} & seen
    assert bool(drawn) == (name in {"transformers", "transformers selfhash", "minhash", "skip", "sweet", "uniforms",
                                    "transformers, few"})  # fmt: skip


@pytest.mark.parametrize(("name", "policy", "sampling"), CASES)
def test_tokens_of_the_step_that_reads_back(llama: Any, name: str, policy: str, sampling: str) -> None:
    fixed, _ = both(llama, PROMPTS, FORMATS[name], POLICIES[policy](llama), kernels=None, eos_token_ids=(2,), slots=2,
                    **SAMPLING[sampling])  # fmt: skip
    assert fixed.changed > 0 or policy != "fixed"


def test_some_of_these_look_beyond_the_record(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the cases above would not show that the vocabulary is asked where the record has no green token."""
    found = []
    inner = green_list.greatest_green

    def noted(*arguments: Any) -> Any:
        found.append(1)
        return inner(*arguments)

    monkeypatch.setattr(green_list, "greatest_green", noted)
    for name in SCANNED:
        found.clear()
        run(llama, PROMPTS, FORMATS[name], fixed=False)
        assert found, name


def test_a_scheme_keeps_no_table_unless_it_is_placed() -> None:
    """A detector may hold thousands of keys; a table of transformers' is 8 MB."""
    for name in ("transformers selfhash", "mask"):
        watermark = FORMATS[name].with_vocabulary(131)
        watermark.green_tokens(torch.zeros(1, watermark.window, dtype=torch.int64), torch.arange(9)[None])
        for made, kept in ((watermark, False), (watermark.placed(torch.device("cpu")), True)):
            found = [value for value in vars(made.scheme).values() if isinstance(value, torch.Tensor)]
            assert bool(found) == kept, name


@pytest.mark.parametrize("name", ["transformers", "temperature", "synthid", "payload"])
def test_replay_at_other_lengths(llama: Any, name: str) -> None:
    replays_go_on_as([started(llama, PROMPTS, FORMATS[name], capacity_policy(llama), slots=2) for _ in range(2)])


class Own(green_list.GreenList):
    name = "own"
    window = 1

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return (context + tokens) % 3 == 0

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.green_tokens(context, torch.arange(vocab_size)[None])

    def score_tokens(self, ids: torch.Tensor) -> Any:
        raise NotImplementedError


LIMITS = RowLimits.of([RowSettings()], [])
REFUSED: dict[str, Any] = {
    "a user's own": (Own(key=3), None, LIMITS, "found ladders of 'own', which are made on the host"),
    "keys": (FORMATS["transformers"], None, dataclasses.replace(LIMITS, keys=True),
             "found texts with keys of their own in format 'transformers'"),
    "target": (FORMATS["transformers"], caw.FixedStrength(1.0, Target(0.01)), LIMITS,
               "found a target, for which texts in format 'transformers' are scored on the host"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_captured_says_why(llama: Any, case: str) -> None:
    watermark, policy, limits, message = REFUSED[case]
    assert not make_decoder(llama, watermark, policy, fixed=True, limits=limits).plan.captured
    with pytest.raises(ValueError, match=message):
        make_decoder(llama, watermark, policy, limits=limits, compile=True)
