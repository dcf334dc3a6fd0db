"""Batches, refill and branching change no token: identities 2 and 5."""

import copy
import random
from typing import Any

import pytest
import torch
from decoding.architectures import RAGGED, build, policy_of, prompt
from decoding.brute_force import BruteForce, agree
from decoding.running import Run, make_decoder, run

import caw
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings

SAMPLING = {"greedy": {}, "sampled": {"do_sample": True, "temperature": 1.2, "top_k": 60, "top_p": 0.95, "seed": 5}}


def check(runs: dict[str, list[list[int]]], prompts: list[list[int]], reference: BruteForce) -> None:
    (_, expected), *others = runs.items()
    for what, tokens in others:
        for ids, actual, wanted in zip(prompts, tokens, expected, strict=True):
            agree(actual, wanted, reference, ids, what)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_branchings_and_batches_agree(model: Any, name: str, sampling: str) -> None:
    """Tree == sequential == batch, and a ragged batch == each prompt alone."""
    watermark = caw.EXP(key=3, top_k=20) if sampling == "greedy" else caw.KGW(key=3, delta=3.0)
    policy, settings = policy_of(model), {**SAMPLING[sampling], "eos_token_ids": (2,), "max_new_tokens": 9}
    together: dict[str, Run] = {
        branching: run(model, RAGGED, watermark, policy, branching=branching, **settings)
        for branching in ("tree", "sequential", "batch")
    }
    runs = {f"{name} {branching} {sampling}": done.tokens for branching, done in together.items()}
    runs[f"{name} alone {sampling}"] = [run(model, [p], watermark, policy, **settings).tokens[0] for p in RAGGED]
    settings.pop("max_new_tokens")
    reference = BruteForce(model, watermark, policy, eos=settings.pop("eos_token_ids"), **settings)
    check(runs, RAGGED, reference)
    assert together["tree"].changed > 0
    assert together["tree"].mixed_steps > 0


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(("name", "branching"), [("llama", "tree"), ("gemma3", "batch"), ("gpt2", "sequential")])
def test_refill_in_any_order(name: str, branching: str, sampling: str) -> None:
    """Nine prompts through 1, 2, 4 or 9 slots and shuffled, with budgets and ends of their own: the same texts; also by
    steps that read nothing back, some ended while the next round is under way."""
    model = build(name)
    watermark, policy = caw.EXP(key=9, top_k=30, context_width=2), policy_of(model, theta=1.0)
    prompts = [prompt(1 + 2 * (i % 5), i) for i in range(9)]
    budgets = [3, 12, 1, 7, 12, 5, 12, 2, 9]
    settings = {"branching": branching, "slots": 2, **SAMPLING[sampling]}
    free = run(model, prompts, watermark, policy, batch=9, budgets=budgets, **settings).tokens
    settings["eos_token_ids"] = (free[1][4], free[4][6])
    expected = run(model, prompts, watermark, policy, batch=9, budgets=budgets, **settings)
    assert {"eos", "length"} == set(expected.reasons)
    assert expected.overflows > 0
    names = ("do_sample", "temperature", "top_k", "top_p", "seed")
    reference = BruteForce(model, watermark, policy, eos=settings["eos_token_ids"],
                           **{k: settings[k] for k in names if k in settings})  # fmt: skip
    runs = {"all at once": expected.tokens}
    for batch in (1, 2, 4):
        runs[f"{name} {batch} slots"] = run(
            model, prompts, watermark, policy, batch=batch, budgets=budgets, **settings
        ).tokens
    for batch, trace in ((2, False), (9, True)) if branching == "tree" else ():
        fixed = run(model, prompts, watermark, policy, batch=batch, budgets=budgets, fixed=True, return_trace=trace,
                    **settings)  # fmt: skip
        assert fixed.overflows > 0 and fixed.reasons == expected.reasons
        runs[f"{name} {batch} slots, fixed"] = fixed.tokens
    order = random.Random(1).sample(range(9), 9)
    shuffled = run(
        model, [prompts[i] for i in order], watermark, policy, batch=2, budgets=[budgets[i] for i in order], **settings
    )
    runs[f"{name} shuffled"] = [tokens for _, tokens in sorted(zip(order, shuffled.tokens, strict=True))]
    check(runs, prompts, reference)


def test_equal_prompts_sample_apart(llama: Any) -> None:
    """The same prompt given twice: equal when greedy, two samples when sampling, and the first one as alone."""
    twice = [RAGGED[0], RAGGED[0]]
    greedy = run(llama, twice).tokens
    assert greedy[0] == greedy[1]
    sampled = run(llama, twice, **SAMPLING["sampled"]).tokens
    assert sampled[0] != sampled[1]
    assert sampled[0] == run(llama, twice[:1], **SAMPLING["sampled"]).tokens[0]
    other = requests_for(twice, [9, 9], [RowSettings(), RowSettings(seed=1)])
    assert [request.occurrence for request in other] == [0, 0], "only equal requests count"


def test_a_generous_maximum_costs_no_memory(llama: Any) -> None:
    decoder = make_decoder(llama, caw.EXP(key=1), batch=2, max_new_tokens=1 << 24)
    assert decoder.choosing.texts.padded_tokens.shape == (2, 4 + 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "gpt_oss"])
def test_half_precision_decodes(name: str, dtype: torch.dtype) -> None:
    """Equal tokens are claimed for float32 only; here every part of a step has to take the dtype."""
    model = copy.deepcopy(build(name)).to(dtype)
    for branching in ("tree", "sequential", "batch"):
        done = run(model, RAGGED, caw.EXP(key=3, top_k=20), policy_of(build(name)), branching=branching, slots=2)
        assert all(len(tokens) == 12 for tokens in done.tokens)
        assert done.changed > 0
    plain = run(model, RAGGED, max_new_tokens=1).tokens
    own = [[int(model(torch.tensor([ids])).logits[0, -1].argmax())] for ids in RAGGED]
    assert sum(a == b for a, b in zip(plain, own, strict=True)) >= 3


def poisoned(model: Any, token: int, position: int) -> Any:
    """The model, whose logits are NaN once it has read `token` at `position`."""
    positions: list[torch.Tensor] = []

    def look(module: Any, given: Any, named: dict[str, Any]) -> None:
        positions[:] = [named["position_ids"]]

    def spoil(module: Any, given: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        return torch.where(((given[0] == token) & (positions[0] == position))[..., None], torch.nan, out)

    model.register_forward_pre_hook(look, with_kwargs=True)
    model.get_input_embeddings().register_forward_hook(spoil)
    return model


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("watermark", [None, caw.KGW(key=3, delta=3.0), caw.EXP(key=3, top_k=20)])
def test_logits_that_are_not_finite_end_that_text_alone(watermark: Any, fixed: bool) -> None:
    model, at, hit = build("llama"), 5, 0
    policy, settings = policy_of(model), {"max_new_tokens": 24, "fixed": fixed}
    before = run(model, RAGGED, watermark, policy, **settings)
    token, position = before.tokens[hit][at], len(RAGGED[hit]) + at
    for batch in (len(RAGGED), 2):
        broken = poisoned(copy.deepcopy(model), token, position)
        after = run(broken, RAGGED, watermark, policy, batch=batch, **settings)
        for row, (tokens, reason) in enumerate(zip(after.tokens, after.reasons, strict=True)):
            assert (tokens, reason) == (([], "error") if row == hit else (before.tokens[row], "length"))
        assert after.errors[hit] == (
            f"expected finite logits from the float32 model, got NaN or infinity at new token {at + 2}; "
            "check its weights"
        )
