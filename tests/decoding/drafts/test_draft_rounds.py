"""Captured steps with drafts: the tokens of those without, in fewer forwards."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from decoding.architectures import EOS, build
from decoding.brute_force import BruteForce
from decoding.capturing import Replayed, seen_by_fakes, started
from decoding.drafts.guessing import MISTAKES, Knowing
from decoding.mixing import FOREIGN, PROMPTS, ROWS, rows_for, texts
from decoding.running import Run, make_decoder, run, same_texts
from decoding.test_step import POLICIES, SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.capture.cuda_graph import CapturedStep
from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.drafts.chained_step import ChainedFixedStep, ChainedFusedStep, ChainedStep
from caw.decoding.drafts.draft_rounds import DraftedStep, DraftRounds
from caw.decoding.forward.fused_layers import GPU_ROWS
from caw.decoding.row_settings import RowSettings
from caw.testing import assert_close

MARKS = {name: WATERMARKS[name] for name in ("lefthash", "unigram", "top_k")}
MARKS |= {name: FOREIGN[name] for name in ("transformers", "synthid")}
MIXED = ["right", "right", *(name for name in MISTAKES if name != "right")]
RULES: dict[str, Any] = {
    "fixed": lambda model: caw.FixedStrength(1.0),
    "entropy": POLICIES["entropy"],
    "window21": POLICIES["window21"],
    "target": lambda model: caw.CapacityPolicy(capacity_policy(model).network, theta=0.8, beta=1.5, target=0.05),
}


def same(
    model: Any, watermark: Any, policy: Any, mistakes: list[str] = MIXED, batch: int = 3, rows: Any = ROWS,
    drafts: int | None = None, **options: Any,
) -> Run:  # fmt: skip
    """Decode with drafts and compare with decoding without them, token by token; returns the run with them."""
    rows, prompts = rows_for(watermark, rows), PROMPTS[: len(rows)]
    given = {"rows": rows, "batch": batch, "eos_token_ids": (EOS,), "max_new_tokens": 14, "slots": 2, "fixed": True,
             **options}  # fmt: skip
    plain = run(model, prompts, watermark, policy, **given)
    drafter = Knowing(list(zip(prompts, plain.tokens, strict=True)), mistakes)
    done = run(model, prompts, watermark, policy, speculate=drafts or drafter, **given)
    assert texts(done) == texts(plain)
    for ours, theirs in zip(done.traces, plain.traces, strict=True):
        assert (ours.candidates, ours.choice) == (theirs.candidates, theirs.choice)
        assert_close(ours.strength, theirs.strength, "capacity")
        assert_close(ours.capacity, theirs.capacity, "capacity")
        assert ours.drafts.why_not == ""
    if not drafts:
        forwards = sum(trace.drafts.passes for trace in done.traces)
        assert forwards < sum(sum(active) for active, *_ in plain.steps), "drafts save forwards and cost none"
        assert sum(trace.drafts.accepted for trace in done.traces) > 0
        assert sorted(drafter.learned) == sorted(done.tokens), "a drafter is told every finished text"
    return done


@pytest.mark.parametrize("watermark, policy, batch, sampling", pairwise([None, *MARKS], RULES, [1, 3], SAMPLING))
def test_drafts_change_nothing(llama: Any, watermark: str | None, policy: str, batch: int, sampling: str) -> None:
    """Texts end at different times and their places are filled again."""
    chosen = MARKS[watermark] if watermark else None
    rows = [RowSettings(max_new_tokens=n, **SAMPLING[sampling]) for n in ((12, 9) if batch == 1 else (12, 5, 9, 12))]
    if policy == "target" and (chosen is None or chosen.native is None):
        policy = "entropy"  # a target is not captured there
    same(llama, chosen, RULES[policy](llama) if chosen else None, batch=batch, rows=rows)


@pytest.mark.parametrize(("watermark", "policy"), [("selfhash", "window21"), ("scale", "target")])
def test_rows_that_differ_in_everything(llama: Any, watermark: str, policy: str) -> None:
    """Keys, strengths, sampling and budgets of their own; slots overflow."""
    same(llama, WATERMARKS[watermark], RULES[policy](llama))


def test_without_this_librarys_kernels(llama: Any) -> None:
    same(llama, WATERMARKS["top_k"], capacity_policy(llama), rows=ROWS[:1] * 3, kernels=ops.references())


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "qwen2-window"])
def test_other_architectures(name: str) -> None:
    """Learned positions, soft caps, sinks, windows; and layers of their own."""
    model = build(name)
    same(model, WATERMARKS["lefthash"], capacity_policy(model), rows=ROWS[:1] * 2)


def test_right_drafts_save_forwards(llama: Any) -> None:
    """Plain decoding, four drafts each time: after the first step five tokens a forward."""
    done = same(llama, None, None, ["right"], rows=ROWS[:1] * 2)
    assert [trace.drafts.passes for trace in done.traces] == [4, 4]  # 1 + 5 + 5 + 3 tokens
    assert all(trace.drafts.acceptance == 1.0 for trace in done.traces)


def test_a_number_asks_for_looked_up_drafts(llama: Any) -> None:
    done = same(llama, None, None, rows=ROWS[:1] * 2, drafts=7, max_new_tokens=40)
    assert all(trace.drafts.rows == 8 * trace.drafts.passes or trace.drafts.drafted for trace in done.traces)
    assert sum(trace.drafts.drafted for trace in done.traces) > 0


def test_a_host_that_stops_a_text_gets_nothing_more_of_it(llama: Any) -> None:
    prompts = PROMPTS[:3]
    plain = run(llama, prompts, caw.KGW(key=1), fixed=True, max_new_tokens=14).tokens
    drafter = Knowing(list(zip(prompts, plain, strict=True)))
    done = run(llama, prompts, caw.KGW(key=1), fixed=True, max_new_tokens=14, batch=2, speculate=drafter,
               on_token=lambda sequence: len(sequence.tokens) == 3 + sequence.index)  # fmt: skip
    assert done.tokens == [tokens[: 3 + n] for n, tokens in enumerate(plain)]
    assert set(done.reasons) == {"stop"}


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
    done = same(llama, caw.KGW(key=1, delta=8.0), Fickle(1.0), rows=ROWS[:1] * 3, kernels=kernels)
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


# A capture ---------------------------------------------------------------------------------------------------------


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
    made: list[Replayed] = []

    def recorded(self: DraftRounds) -> None:
        prepare(self)
        self.step = Replayed(self.step)
        made.append(self.step)

    expected = run(llama, PROMPTS[:3], MARKS[watermark], RULES[policy](llama), fixed=True, max_new_tokens=24, slots=2)
    drafter = Knowing(list(zip(PROMPTS[:3], expected.tokens, strict=True)), ["right", "last wrong", "empty"])
    prepare = DraftRounds._prepare
    monkeypatch.setattr(DraftRounds, "_prepare", recorded)
    done = run(llama, PROMPTS[:3], MARKS[watermark], RULES[policy](llama), fixed=True, max_new_tokens=24, slots=2,
               speculate=drafter, watched=False)  # fmt: skip
    assert done.tokens == expected.tokens
    assert any(replayed.graph is not None for replayed in made)
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
    graphs: list[Any] = []
    record = CapturedStep._record
    monkeypatch.setattr(CapturedStep, "_record", lambda self: (graphs.append(record(self)), graphs[-1])[1])
    done = run(model, PROMPTS[:3], chosen, policy, speculate=drafter, **settings)
    assert graphs, "nothing was captured"
    same_texts(done, plain, [BruteForce(llama, chosen, policy)] * 3, PROMPTS[:3])
    assert sum(trace.drafts.accepted for trace in done.traces) > 20


# Which steps carry drafts -------------------------------------------------------------------------------------------


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
     ({"speculate": 2, "compile": True}, "compile=True")],
)  # fmt: skip
def test_what_a_capture_cannot_draft_is_named(llama: Any, options: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=rf"^speculate=.* needs .* found {found}; leave speculate out$"):
        make_decoder(llama, caw.KGW(key=1), fixed=True, **options)


@pytest.mark.parametrize("drafts", [4, 5])
def test_drafts_stay_on_the_kernels_of_few_rows(llama: Any, drafts: int) -> None:
    """Eight candidates and four drafts of six texts are 72 rows, of five texts 60; with five drafts 65."""
    options: dict[str, Any] = {"fixed": True, "slots": 8, "speculate": drafts}
    policy = capacity_policy(llama)
    with pytest.raises(ValueError, match=f"found captured steps of {6 * (8 + drafts)} rows for 6 texts, of at most 64"):
        make_decoder(llama, caw.EXP(key=1), policy, batch=6, **options)
    if drafts == 4:
        plan = make_decoder(llama, caw.EXP(key=1), policy, batch=5, **options).plan
        assert plan.batch * (plan.slots + plan.drafts) == 60 <= GPU_ROWS
    else:
        with pytest.raises(ValueError, match="65 rows for 5 texts"):
            make_decoder(llama, caw.EXP(key=1), policy, batch=5, **options)
    make_decoder(llama, caw.EXP(key=1), policy, batch=6, **{**options, "fixed": False})  # no kernels of few rows there
