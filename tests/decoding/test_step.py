"""The step against decoding by definition, and what its trace says."""

from __future__ import annotations

import math
from typing import Any

import pytest
from decoding.architectures import prompt, spread_evaluator
from decoding.brute_force import BruteForce, agree
from decoding.running import run
from pairwise import pairwise

import caw
from caw.testing import assert_close

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]
NEW = 9
WATERMARKS = {
    "lefthash": caw.KGW(key=3, delta=2.0),
    "selfhash": caw.KGW(key=4, delta=3.0, gamma=0.4, seeding="selfhash"),
    "unigram": caw.Unigram(key=5, gamma=0.5, delta=2.5),
    "top_k": caw.EXP(key=6, top_k=20, context_width=2),
    "scale": caw.EXP(key=7, strength="scale", context_width=3),
    "repeating": caw.EXP(key=8, top_k=6, context_width=1, deduplicate=False),
}
WINDOWS = {(1, 1): "log", (2, 1): "gap", (0, 1): "raw", (0, 0): "log", (1, 0): "gap"}
SAMPLING = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.2, "top_k": 60, "top_p": 0.9, "seed": 11},
}


def capacity_policy(model: Any, window: tuple[int, int] = (1, 1), theta: float = 0.8, beta: float = 1.5) -> Any:
    # token classes in two of the windows
    evaluator = spread_evaluator(model, *window, WINDOWS[window], classes=window in ((1, 1), (0, 1)))
    return caw.CapacityPolicy(evaluator, theta=theta, beta=beta)


POLICIES = {
    "full": lambda model: caw.FixedStrength(1.0),
    "weak": lambda model: caw.FixedStrength(0.3),
    "entropy": lambda model: caw.EntropyThreshold(3.6),
    "delta": lambda model: caw.LogitDeltaThreshold(0.7, value=1.2),
    **{f"window{a}{b}": (lambda model, w=(a, b): capacity_policy(model, w)) for a, b in WINDOWS},
}


def compare_with_definition(model: Any, watermark: Any, policy: Any, what: str, **settings: Any) -> Any:
    """Decode the prompts together and each by definition; returns the run."""
    prompts = PROMPTS[:2]
    done = run(model, prompts, watermark, policy, max_new_tokens=NEW, eos_token_ids=(2,), **settings)
    names = ("do_sample", "temperature", "top_k", "top_p", "seed", "min_new_tokens")
    reference = BruteForce(model, watermark, policy, eos=(2,), **{k: settings[k] for k in names if k in settings})
    for ids, tokens in zip(prompts, done.tokens, strict=True):
        agree(tokens, reference.decode(ids, NEW), reference, ids, what)
    return done


@pytest.mark.parametrize("watermark, policy, sampling", pairwise(WATERMARKS, POLICIES, SAMPLING))
def test_step_is_the_definition(llama: Any, watermark: str, policy: str, sampling: str) -> None:
    compare_with_definition(
        llama, WATERMARKS[watermark], POLICIES[policy](llama), f"{watermark} {policy} {sampling}", **SAMPLING[sampling]
    )


@pytest.mark.parametrize(("watermark", "sampling"), [("selfhash", "greedy"), ("top_k", "sampled")])
def test_step_is_the_definition_on_every_architecture(model: Any, name: str, watermark: str, sampling: str) -> None:
    policy = capacity_policy(model, beta=1.0)
    done = compare_with_definition(
        model, WATERMARKS[watermark], policy, name, min_new_tokens=NEW - 1, **SAMPLING[sampling]
    )
    assert 0 < done.changed < sum(map(len, done.tokens)), "the policy must mark some tokens and protect others"


@pytest.mark.parametrize("sampling", SAMPLING)
def test_no_watermark_is_plain_decoding(model: Any, name: str, sampling: str) -> None:
    compare_with_definition(model, None, None, name, **SAMPLING[sampling])


def test_definition_would_notice(llama: Any) -> None:
    """Another theta, key, seed or a forgotten look-ahead gives other tokens."""
    watermark, policy = WATERMARKS["top_k"], capacity_policy(llama)
    settings = SAMPLING["sampled"]
    base = run(llama, PROMPTS, watermark, policy, **settings).tokens
    assert base != run(llama, PROMPTS, watermark, capacity_policy(llama, theta=0.5), **settings).tokens
    assert base != run(llama, PROMPTS, watermark, capacity_policy(llama, (1, 0)), **settings).tokens
    assert base != run(llama, PROMPTS, caw.EXP(key=9, top_k=20, context_width=2), policy, **settings).tokens
    assert base != run(llama, PROMPTS, watermark, policy, **{**settings, "seed": 12}).tokens


# Overflow: more rungs than slots ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "watermark, sampling, branching", pairwise(["top_k", "scale"], SAMPLING, ["tree", "sequential", "batch"])
)
def test_slots_change_no_token(llama: Any, watermark: str, sampling: str, branching: str) -> None:
    """One or two candidate slots give the tokens and the trace of a forward that carries the whole ladder."""
    policy = capacity_policy(llama, theta=1.0, beta=1.0)
    uncapped = run(llama, PROMPTS, WATERMARKS[watermark], policy, slots=32, branching="tree", **SAMPLING[sampling])
    assert uncapped.overflows == 0
    assert max(forwarded for *_, forwarded in uncapped.steps) > 2
    for slots in (1, 2, 3):
        capped = run(
            llama, PROMPTS, WATERMARKS[watermark], policy, slots=slots, branching=branching, **SAMPLING[sampling]
        )
        assert max(forwarded for *_, forwarded in capped.steps) <= slots
        assert capped.overflows > 0 or slots == 3
        assert capped.tokens == uncapped.tokens
        for a, b in zip(capped.traces, uncapped.traces, strict=True):
            assert (a.candidates, a.choice) == (b.candidates, b.choice)
            assert_close(a.strength, b.strength, "capacity")


def test_rows_with_and_without_a_choice_share_a_forward(llama: Any) -> None:
    done = run(llama, [prompt(5, s) for s in range(6)], WATERMARKS["lefthash"], capacity_policy(llama))
    assert done.mixed_steps > 3
    assert any(forwarded == 1 for *_, forwarded in done.steps) or done.mixed_steps < len(done.steps)


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", "scale"])
def test_only_reachable_candidates_go_through_the_model(llama: Any, watermark: str) -> None:
    """In the tree, each step's rows are the candidates of the sequences that go on, no more; the text stays."""
    prompts, budgets = [prompt(5, s) for s in range(6)], [3, 12, 12, 12, 7, 12]
    policy, rows = capacity_policy(llama), []
    hook = llama.lm_head.register_forward_hook(lambda module, given, out: rows.append(out.shape[:2].numel()))
    try:
        done = run(llama, prompts, WATERMARKS[watermark], policy, budgets=budgets)
    finally:
        hook.remove()
    slots = 2 if watermark == "lefthash" else 8
    expected = [
        sum(1 if waited else min(c, slots) for a, c, waited in zip(active, counts, waiting, strict=True) if a)
        for (active, _, counts, _), waiting in zip(done.steps, waiting_rows(done), strict=True)
    ]
    assert rows[-len(expected) :] == expected
    assert sum(expected) < sum(len(active) * forwarded for active, *_, forwarded in done.steps)
    alone = [run(llama, [ids], WATERMARKS[watermark], policy, max_new_tokens=new)
             for ids, new in zip(prompts, budgets, strict=True)]  # fmt: skip
    assert done.tokens == [one.tokens[0] for one in alone]


def waiting_rows(done: Any) -> list[list[bool]]:
    """Of each step, which sequences carry a token that the step before chose; only while the batch stays one size."""
    waiting, previous = [], None
    for active, emitted, _, _ in done.steps:
        waiting.append([False] * len(active) if previous is None or len(previous) != len(active) else previous)
        previous = [a and not e for a, e in zip(active, emitted, strict=True)]
    return waiting


def test_theta_zero_never_looks_ahead(llama: Any) -> None:
    done = run(llama, PROMPTS, WATERMARKS["top_k"], capacity_policy(llama, theta=0.0))
    assert {forwarded for *_, forwarded in done.steps} == {1}
    assert done.changed == 0


def test_policies_without_capacity_forward_one_token(llama: Any) -> None:
    done = run(llama, PROMPTS, WATERMARKS["top_k"], caw.FixedStrength(1.0))
    assert {forwarded for *_, forwarded in done.steps} == {1}
    assert done.changed > 0


# Ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", None])
def test_minimum_masks_end_tokens_before_the_ladder(llama: Any, watermark: str | None) -> None:
    """Frequent tokens as ends: none before the minimum, not even as a candidate; the next one ends the text."""
    wm = WATERMARKS[watermark] if watermark else None
    policy = capacity_policy(llama, theta=1.0) if watermark else None
    free = run(llama, PROMPTS, wm, policy, max_new_tokens=16).tokens
    ends = tuple(sorted({free[0][1], free[1][2], free[2][0]}))
    early = run(llama, PROMPTS, wm, policy, max_new_tokens=16, eos_token_ids=ends)
    assert "eos" in early.reasons
    assert any(len(t) < 5 for t in early.tokens)
    late = run(llama, PROMPTS, wm, policy, max_new_tokens=16, min_new_tokens=5, eos_token_ids=ends)
    reference = BruteForce(llama, wm, policy or caw.FixedStrength(1.0), eos=ends, min_new_tokens=5)
    for ids, tokens, reason, trace in zip(PROMPTS, late.tokens, late.reasons, late.traces, strict=True):
        assert not set(tokens[:5]) & set(ends)
        assert not {c for row in trace.candidates[:5] for c in row} & set(ends)
        assert reason == ("eos" if tokens[-1] in ends else "length")
        assert not set(tokens[:-1]) & set(ends)
        agree(tokens, reference.decode(ids, 16), reference, ids, f"minimum {watermark}")


@pytest.mark.parametrize(
    "watermark, policy, sampling", pairwise(["lefthash", "unigram", "top_k"], ["full", "window11"], SAMPLING)
)
def test_kept_ends_are_neither_marked_away_nor_in(llama: Any, watermark: str, policy: str, sampling: str) -> None:
    """Frequent tokens as ends: where one is a candidate there is no other, and no text ends but by its original."""
    wm, how, settings = WATERMARKS[watermark], POLICIES[policy](llama), SAMPLING[sampling]
    free = run(llama, PROMPTS, wm, how, max_new_tokens=16, **settings)
    rivals = [c for trace in free.traces for row in trace.candidates if len(row) > 1 for c in row]
    ends = tuple(sorted({rivals[0], rivals[len(rivals) // 2], rivals[-1]}))
    marked = run(llama, PROMPTS, wm, how, max_new_tokens=16, eos_token_ids=ends, **settings)
    kept = run(llama, PROMPTS, wm, how, max_new_tokens=16, eos_token_ids=ends, mark_eos=False, **settings)
    assert kept.tokens != marked.tokens
    assert kept.changed > 0
    reference = BruteForce(llama, wm, how, eos=ends, mark_eos=False, **settings)
    for ids, tokens, trace in zip(PROMPTS, kept.tokens, kept.traces, strict=True):
        assert all(len(row) == 1 for row in trace.candidates if set(row) & set(ends))
        assert tokens[-1] not in ends or trace.choice[-1] == 0
        agree(tokens, reference.decode(ids, 16), reference, ids, f"ends kept {watermark} {policy}")


# Trace -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("watermark", WATERMARKS)
def test_trace_says_what_happened(llama: Any, watermark: str, sampling: str) -> None:
    policy = capacity_policy(llama)
    done = run(llama, PROMPTS, WATERMARKS[watermark], policy, slots=2, eos_token_ids=(2,), **SAMPLING[sampling])
    reference = BruteForce(llama, WATERMARKS[watermark], policy, eos=(2,), **SAMPLING[sampling])
    capacities, strengths, expected = [], [], []
    for ids, tokens, trace in zip(PROMPTS, done.tokens, done.traces, strict=True):
        assert trace.tokens == tokens
        for i, row in enumerate(trace):
            decision = reference.decide(ids, tokens[:i])
            assert row.token == row.candidates[row.choice]
            assert row.candidates[0] == decision.original
            assert len(set(row.candidates)) == len(row.candidates)
            capacities.append(row.capacity)
            strengths.append(row.strength)
            expected.append((decision.capacity, decision.strength))
    assert_close(capacities, [c for c, _ in expected], "capacity")
    assert_close(strengths, [s for _, s in expected], "capacity")
    assert min(capacities) < 0.3 < 0.7 < max(capacities)


def test_trace_of_a_policy_that_does_not_ask(llama: Any) -> None:
    trace = run(llama, PROMPTS, WATERMARKS["lefthash"], caw.FixedStrength(0.7)).traces[0]
    assert all(math.isnan(c) for c in trace.capacity)
    assert_close(trace.strength, [0.7] * len(trace), "float32")
