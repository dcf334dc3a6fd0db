"""Captured steps with drafts: the tokens of those without, in fewer forwards."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from decoding.brute_force import BruteForce
from decoding.capturing import Replayed, graphs_of, seen_by_fakes, started
from decoding.drafts.guessing import Knowing
from decoding.drafts.test_step import MIXED, same
from decoding.mixing import FOREIGN, PROMPTS, ROWS
from decoding.running import make_decoder, run, same_texts
from decoding.test_step import POLICIES, SAMPLING, WATERMARKS, capacity_policy

import caw
from caw import ops
from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.drafts.chained_step import ChainedFixedStep, ChainedFusedStep, ChainedStep
from caw.decoding.drafts.draft_rounds import DraftedStep, DraftRounds
from caw.decoding.forward.fused_layers import GPU_ROWS

MARKS = {name: WATERMARKS[name] for name in ("lefthash", "unigram", "top_k")}
MARKS |= {name: FOREIGN[name] for name in ("transformers", "synthid")}
RULES: dict[str, Any] = {
    "fixed": lambda model: caw.FixedStrength(1.0),
    "entropy": POLICIES["entropy"],
    "window21": POLICIES["window21"],
    "target": lambda model: caw.CapacityPolicy(capacity_policy(model).network, theta=0.8, beta=1.5, target=0.05),
}


def test_without_this_librarys_kernels(llama: Any) -> None:
    same(llama, WATERMARKS["top_k"], capacity_policy(llama), rows=ROWS[:1] * 3, fixed=True, kernels=ops.references())


def test_a_number_asks_for_looked_up_drafts(llama: Any) -> None:
    plain, done = (run(llama, PROMPTS[:2], fixed=True, max_new_tokens=40, speculate=most) for most in (None, 7))
    assert done.tokens == plain.tokens
    assert all(trace.drafts.rows == 8 * trace.drafts.passes or trace.drafts.drafted for trace in done.traces)
    assert sum(trace.drafts.drafted for trace in done.traces) > 0


class Fickle(caw.FixedStrength):
    """Strength 0 where a draft decides, and what was asked for elsewhere."""

    behind_a_draft = False

    def strength(self, signals: Any) -> torch.Tensor:
        return super().strength(signals) * (0.0 if Fickle.behind_a_draft else 1.0)


@pytest.mark.parametrize("fused", [True, False])
def test_a_decision_that_would_differ_takes_what_was_peeked_at(
    llama: Any, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a text would hold one token and the cache the keys and values of another."""
    inside = ChainedStep.behind

    @contextlib.contextmanager
    def behind(self: ChainedStep, cache: Any, draft: int) -> Iterator[None]:
        with inside(self, cache, draft):
            Fickle.behind_a_draft = True
            try:
                yield
            finally:
                Fickle.behind_a_draft = False

    monkeypatch.setattr(ChainedStep, "behind", behind)
    kernels = None if fused else ops.references()
    done = same(llama, caw.KGW(key=1, delta=8.0), Fickle(1.0), rows=ROWS[:1] * 3, fixed=True, kernels=kernels)
    assert done.changed > 8
    assert all(strength == 1.0 for trace in done.traces for strength in trace.strength)


@pytest.mark.parametrize("fused", [True, False])
def test_a_call_after_one_that_failed(llama: Any, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture may fail before a peeked ladder is used, or in a decision behind a draft; steps then run plainly."""
    decoder, step = started(llama, PROMPTS[:3], caw.KGW(key=1, delta=8.0), caw.FixedStrength(1.0), slots=2, speculate=3,
                            kernels=None if fused else ops.references())  # fmt: skip
    assert isinstance(step, DraftedStep)
    texts = step.step.choosing.texts
    active, first, calls = texts.active, step.decide, []

    def failing() -> Any:
        calls.append(step.chained.picked)
        if len(calls) == 2:
            raise RuntimeError("no capture")
        return first()

    with monkeypatch.context() as patch, torch.inference_mode(), decoder.attention:
        patch.setattr(step, "decide", failing)
        with pytest.raises(RuntimeError, match="no capture"):
            step()
    assert calls[0] is None and calls[1] is not None
    assert texts.active is active
    step.chained.peeked = step.chained.picked = "another step's"
    with torch.inference_mode(), decoder.attention:
        step()
    assert step.chained.peeked is None and step.chained.picked is None


@pytest.mark.parametrize("fused", [True, False])
def test_all_results_tell_of_the_forward_that_was_made(
    llama: Any, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two candidates of each text, also for the tokens that are decided behind drafts."""
    told: list[int] = []
    read = OutputRing.read

    def noting(self: OutputRing, *given: Any) -> Any:
        results = read(self, *given)
        told.extend(result.forwarded for result in results)
        return results

    monkeypatch.setattr(OutputRing, "read", noting)
    run(llama, PROMPTS[:2], MARKS["lefthash"], capacity_policy(llama), fixed=True, slots=2, speculate=3,
        kernels=None if fused else ops.references())  # fmt: skip
    assert set(told) == {2}


@pytest.mark.parametrize(
    ("watermark", "policy", "sampling"),
    [(None, "fixed", "greedy"), ("lefthash", "window21", "sampled"), ("top_k", "target", "greedy"),
     ("synthid", "entropy", "sampled")],
)  # fmt: skip
def test_no_host_read(llama: Any, watermark: str | None, policy: str, sampling: str) -> None:
    """Under fake tensors a read raises, and data of the host is seen."""
    chosen = MARKS[watermark] if watermark else None
    decoder, step = started(llama, PROMPTS[:3], chosen, RULES[policy](llama), slots=2, min_new_tokens=3,
                            eos_token_ids=(2,), speculate=3, **SAMPLING[sampling])  # fmt: skip
    assert isinstance(step.step, ChainedFixedStep if "target" in policy else ChainedFusedStep)
    seen = seen_by_fakes(decoder, step, calls=2)
    assert {ops.drafted_attention, ops.commit_step, ops.topk_softmax} <= seen


@pytest.mark.parametrize(("watermark", "policy"), [("lefthash", "window21"), ("top_k", "fixed"), ("unigram", "target")])
def test_a_replay_reads_new_drafts(llama: Any, watermark: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One recording serves all steps: whatever was drafted when it was made."""
    made: list[int] = []

    def recorded(self: DraftRounds) -> None:
        prepare(self)
        self.step = Replayed(self.step, made)

    expected = run(llama, PROMPTS[:3], MARKS[watermark], RULES[policy](llama), fixed=True, max_new_tokens=24, slots=2)
    drafter = Knowing(list(zip(PROMPTS[:3], expected.tokens, strict=True)), ["right", "last wrong", "empty"])
    prepare = DraftRounds._prepare
    monkeypatch.setattr(DraftRounds, "_prepare", recorded)
    done = run(llama, PROMPTS[:3], MARKS[watermark], RULES[policy](llama), fixed=True, max_new_tokens=24, slots=2,
               speculate=drafter, watched=False)  # fmt: skip
    assert done.tokens == expected.tokens
    assert made
    assert sum(trace.drafts.accepted for trace in done.traces) > 8


@pytest.mark.gpu
@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k"])
def test_captured_on_a_gpu(llama: Any, watermark: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph itself, with other drafts in every replay."""
    chosen = MARKS[watermark] if watermark else None
    model, policy = copy.deepcopy(llama).to("cuda"), RULES["window21"](llama) if chosen else None
    settings: dict[str, Any] = {"max_new_tokens": 60, "slots": 2, "batch": 2, "watched": False}
    plain = run(model, PROMPTS[:3], chosen, policy, **settings)
    drafter = Knowing(list(zip(PROMPTS[:3], plain.tokens, strict=True)), MIXED)
    graphs = graphs_of(monkeypatch)
    done = run(model, PROMPTS[:3], chosen, policy, speculate=drafter, **settings)
    assert graphs, "nothing was captured"
    same_texts(done, plain, [BruteForce(llama, chosen, policy)] * 3, PROMPTS[:3])
    assert sum(trace.drafts.accepted for trace in done.traces) > 20


def test_what_is_captured_drafts_only_when_asked(llama: Any) -> None:
    for speculate in ("auto", "own", None):
        decoder = make_decoder(llama, caw.KGW(key=1), fixed=True, speculate=speculate)
        assert decoder.plan.drafts == 0 and decoder.undrafted
    decoder = make_decoder(llama, caw.KGW(key=1), fixed=True, speculate=5)
    assert decoder.plan.drafts == 5 and isinstance(decoder.steps(), DraftRounds)
    assert decoder.plan.slots + 5 == decoder.cache.slots


@pytest.mark.parametrize(
    ("options", "found"),
    [({"speculate": 32}, "captured steps of 33 rows for each text, of at most 32"),
     ({"speculate": 31, "batch": 3}, "captured steps of 96 rows for 3 texts, of at most 64"),
     ({"speculate": 2, "branching": "batch"}, "branching='batch'"),
     ({"speculate": 2, "compile": True}, "compile=True"),
     ({"speculate": 4, "batch": 6, "slots": 8}, "captured steps of 72 rows for 6 texts, of at most 64"),
     ({"speculate": 5, "batch": 5, "slots": 8}, "captured steps of 65 rows for 5 texts, of at most 64")],
)  # fmt: skip
def test_what_a_capture_cannot_draft_is_named(llama: Any, options: dict[str, Any], found: str) -> None:
    """Slots are a look-ahead's; the steps of 64 rows are those that the kernels of few rows take."""
    mark, policy = (caw.EXP(key=1), capacity_policy(llama)) if "slots" in options else (caw.KGW(key=1), None)
    with pytest.raises(ValueError, match=rf"^speculate=.* needs .* found {found}; leave speculate out$"):
        make_decoder(llama, mark, policy, fixed=True, **options)
    if "slots" in options:
        plan = make_decoder(llama, mark, policy, fixed=True, **{**options, "batch": 5, "speculate": 4}).plan
        assert plan.batch * (plan.slots + plan.drafts) == 60 <= GPU_ROWS
        make_decoder(llama, mark, policy, **options)  # no kernels of few rows there
