"""The step against decoding by definition, and what its trace says."""

from typing import Any

import pytest
from decoding.architectures import prompt, spread_evaluator
from decoding.brute_force import BruteForce, agree
from decoding.running import run
from pairwise import pairwise

import caw
from caw import ops
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
SAMPLING = {"greedy": {}, "sampled": {"do_sample": True, "temperature": 1.2, "top_k": 60, "top_p": 0.9, "seed": 11}}


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
    prompts = PROMPTS[:2]
    done = run(model, prompts, watermark, policy, max_new_tokens=NEW, eos_token_ids=(2,), **settings)
    names = ("do_sample", "temperature", "top_k", "top_p", "seed", "min_new_tokens")
    reference = BruteForce(model, watermark, policy, eos=(2,), **{k: settings[k] for k in names if k in settings})
    for ids, tokens, trace in zip(prompts, done.tokens, done.traces, strict=True):
        decisions = reference.decisions(ids, NEW)
        assert trace.tokens == tokens == [row.candidates[row.choice] for row in trace]
        assert all(len(set(row.candidates)) == len(row.candidates) for row in trace)
        if not agree(tokens, [each.token for each in decisions], reference, ids, what) and watermark is not None:
            assert [row.candidates[0] for row in trace] == [each.original for each in decisions]
            assert_close(trace.capacity, [each.capacity for each in decisions], "capacity")
            assert_close(trace.strength, [each.strength for each in decisions], "capacity")
    return done


@pytest.mark.parametrize("watermark, policy, sampling", pairwise(WATERMARKS, POLICIES, SAMPLING))
def test_step_is_the_definition(llama: Any, watermark: str, policy: str, sampling: str) -> None:
    compare_with_definition(
        llama, WATERMARKS[watermark], POLICIES[policy](llama), f"{watermark} {policy} {sampling}", **SAMPLING[sampling]
    )


@pytest.mark.parametrize("watermark, sampling", pairwise(["selfhash", "top_k", None], SAMPLING))
def test_step_is_the_definition_on_every_architecture(
    model: Any, name: str, watermark: str | None, sampling: str
) -> None:
    settings = {"min_new_tokens": NEW - 1, **SAMPLING[sampling]}
    if watermark is None:
        compare_with_definition(model, None, None, name, **settings)
        return
    done = compare_with_definition(model, WATERMARKS[watermark], capacity_policy(model, beta=1.0), name, **settings)
    assert 0 < done.changed < sum(map(len, done.tokens)), "the policy must mark some tokens and protect others"


def test_definition_would_notice(llama: Any) -> None:
    """Another theta, key, seed or a forgotten look-ahead gives other tokens."""
    watermark, policy = WATERMARKS["top_k"], capacity_policy(llama)
    settings = SAMPLING["sampled"]
    base = run(llama, PROMPTS, watermark, policy, **settings).tokens
    assert base != run(llama, PROMPTS, watermark, capacity_policy(llama, theta=0.5), **settings).tokens
    assert base != run(llama, PROMPTS, watermark, capacity_policy(llama, (1, 0)), **settings).tokens
    assert base != run(llama, PROMPTS, caw.EXP(key=9, top_k=20, context_width=2), policy, **settings).tokens
    assert base != run(llama, PROMPTS, watermark, policy, **{**settings, "seed": 12}).tokens


@pytest.mark.parametrize(
    "watermark, sampling, way", pairwise(["top_k", "scale"], SAMPLING, ["tree", "sequential", "batch", "fixed"])
)
def test_slots_change_no_token(llama: Any, watermark: str, sampling: str, way: str) -> None:
    """One or two candidate slots give the tokens and the trace of a forward that carries the whole ladder."""
    mark, policy = WATERMARKS[watermark], capacity_policy(llama, theta=1.0, beta=1.0)
    how: dict[str, Any] = {"fixed": True, "kernels": ops.references()} if way == "fixed" else {"branching": way}
    uncapped = run(llama, PROMPTS, mark, policy, slots=32, **SAMPLING[sampling])
    assert uncapped.overflows == 0
    assert max(forwarded for *_, forwarded in uncapped.steps) > 2
    for slots in (1, 2, 3):
        capped = run(llama, PROMPTS, mark, policy, slots=slots, **how, **SAMPLING[sampling])
        carried = {forwarded for *_, forwarded in capped.steps}
        assert carried == {slots} if way == "fixed" else max(carried) <= slots
        assert capped.overflows > 0 or slots == 3
        assert capped.tokens == uncapped.tokens
        for a, b in zip(capped.traces, uncapped.traces, strict=True):
            assert (a.candidates, a.choice) == (b.candidates, b.choice)
            assert_close(a.strength, b.strength, "capacity")


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


@pytest.mark.parametrize("theta", [0.0, None])
def test_one_token_is_forwarded_where_nothing_is_looked_at(llama: Any, theta: float | None) -> None:
    policy = caw.FixedStrength(1.0) if theta is None else capacity_policy(llama, theta=theta)
    done = run(llama, PROMPTS, WATERMARKS["top_k"], policy)
    assert {forwarded for *_, forwarded in done.steps} == {1}
    assert (done.changed > 0) == (theta is None)
