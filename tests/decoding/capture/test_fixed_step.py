"""Steps that read nothing back give the tokens, traces and ends of those that do."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import RAGGED, build, policy_of, prompt
from decoding.running import Run, make_decoder, run
from decoding.test_step import POLICIES, PROMPTS, SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.capture import cuda_graph
from caw.decoding.capture.cuda_graph import WARM_UP, CapturedStep
from caw.decoding.capture.run_ahead import ROUND, RunAhead
from caw.decoding.eager_step import StepByStep
from caw.decoding.sequence import ActiveSequence
from caw.testing import assert_close

NEW = 11


def both(model: Any, prompts: list[list[int]], watermark: Any, policy: Any, **settings: Any) -> tuple[Run, Run]:
    """The run of fixed steps, checked against the one of steps that read back."""
    settings = {"max_new_tokens": NEW, "kernels": ops.references(), **settings}
    eager = run(model, prompts, watermark, policy, fixed=False, **settings)
    fixed = run(model, prompts, watermark, policy, fixed=True, **settings)
    assert fixed.tokens == eager.tokens
    assert fixed.reasons == eager.reasons
    for a, b in zip(fixed.traces, eager.traces, strict=True):
        assert (a.tokens, a.candidates, a.choice) == (b.tokens, b.candidates, b.choice)
        assert_close(a.strength, b.strength, "capacity")
        assert_close(a.capacity, b.capacity, "capacity")
    return fixed, eager


@pytest.mark.parametrize("watermark, policy, sampling", pairwise(WATERMARKS, POLICIES, SAMPLING))
def test_fixed_steps_give_the_same(llama: Any, watermark: str, policy: str, sampling: str) -> None:
    fixed, _ = both(
        llama, PROMPTS, WATERMARKS[watermark], POLICIES[policy](llama), eos_token_ids=(2,), **SAMPLING[sampling]
    )
    assert fixed.changed > 0 or policy == "delta"


@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_fixed_steps_give_the_same_through_the_dispatcher(llama: Any, watermark: str | None) -> None:
    """As on a GPU: every op through torch.ops, the fused ones too."""
    chosen = WATERMARKS[watermark] if watermark else None
    both(
        llama,
        PROMPTS,
        chosen,
        capacity_policy(llama) if watermark else None,
        kernels=None,
        return_trace=watermark != "scale",
    )  # fmt: skip


@pytest.mark.parametrize("watermark", ["selfhash", "unigram", "top_k", "scale"])
def test_look_aheads(llama: Any, watermark: str) -> None:
    both(llama, RAGGED, WATERMARKS[watermark], capacity_policy(llama))


def test_fixed_steps_on_every_architecture(model: Any) -> None:
    both(model, RAGGED, WATERMARKS["top_k"], policy_of(model), max_new_tokens=6)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_overflow_of_the_slots(llama: Any, slots: int, sampling: str) -> None:
    """A chosen token that was not forwarded is carried by the next step, in the middle of a round."""
    policy = capacity_policy(llama, theta=1.0, beta=1.0)
    fixed, _ = both(llama, PROMPTS, WATERMARKS["top_k"], policy, slots=slots, max_new_tokens=20, **SAMPLING[sampling])
    assert {forwarded for *_, forwarded in fixed.steps} == {slots}
    assert fixed.overflows > 0 or slots == 3


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_refill_shrink_ends_and_budgets(llama: Any, sampling: str, trace: bool) -> None:
    """Nine prompts through 1 to 9 slots, some ended by tokens, some by budgets, while the next round is under way."""
    watermark, policy = caw.EXP(key=9, top_k=30, context_width=2), policy_of(llama, theta=1.0)
    prompts = [prompt(1 + 2 * (i % 5), i) for i in range(9)]
    budgets = [3, 17, 1, 12, 17, 5, 12, 2, 9]
    settings = {"slots": 2, "max_new_tokens": 17, "return_trace": trace, **SAMPLING[sampling]}
    free = run(llama, prompts, watermark, policy, batch=9, budgets=budgets, **settings).tokens
    ends = (free[1][4], free[4][6])
    for batch in (2, 9):
        fixed, _ = both(llama, prompts, watermark, policy, batch=batch, budgets=budgets, eos_token_ids=ends, **settings)
        assert {"eos", "length"} == set(fixed.reasons)
        assert fixed.overflows > 0


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", None])
def test_minimum_masks_end_tokens(llama: Any, watermark: str | None) -> None:
    wm = WATERMARKS[watermark] if watermark else None
    policy = capacity_policy(llama, theta=1.0) if watermark else None
    free = run(llama, PROMPTS, wm, policy, max_new_tokens=16).tokens
    ends = tuple(sorted({free[0][1], free[1][2], free[2][0]}))
    fixed, _ = both(llama, PROMPTS, wm, policy, max_new_tokens=16, min_new_tokens=5, eos_token_ids=ends)
    assert all(not set(tokens[:5]) & set(ends) for tokens in fixed.tokens)


@pytest.mark.parametrize("watermark", ["lefthash", "top_k"])
def test_kept_ends(llama: Any, watermark: str) -> None:
    policy = capacity_policy(llama, theta=1.0)
    free = run(llama, PROMPTS, WATERMARKS[watermark], policy, max_new_tokens=16)
    ends = tuple(sorted({row[1] for trace in free.traces for row in trace.candidates if len(row) > 1}))[:3]
    fixed, _ = both(llama, PROMPTS, WATERMARKS[watermark], policy, eos_token_ids=ends, mark_eos=False)
    rows = [row for trace in fixed.traces for row in trace.candidates]
    assert all(len(row) == 1 for row in rows if set(row) & set(ends))
    assert any(len(row) > 1 for row in rows)


def test_a_host_that_stops_a_text_gets_nothing_more_of_it(llama: Any) -> None:
    """What ran on after a stop string, up to two rounds, is dropped, and the slot goes to the next prompt."""
    prompts = [prompt(3 + i, i) for i in range(5)]
    seen: list[list[tuple[int, int]]] = [[], []]

    def stop(log: list[tuple[int, int]]) -> Any:
        def on_token(sequence: ActiveSequence) -> bool:
            log.append((sequence.index, sequence.tokens[-1]))
            return len(sequence.tokens) == 3 + 4 * sequence.index

        return on_token

    runs = [
        run(
            llama,
            prompts,
            caw.KGW(key=1),
            policy_of(llama),
            batch=2,
            max_new_tokens=40,
            fixed=fixed,
            on_token=stop(log),
        )
        for fixed, log in zip((False, True), seen, strict=True)
    ]
    assert runs[0].tokens == runs[1].tokens
    assert [len(tokens) for tokens in runs[1].tokens] == [3, 7, 11, 15, 19]
    assert set(runs[1].reasons) == {"stop"}
    assert sorted(seen[0]) == sorted(seen[1])


def test_no_round_starts_that_nobody_needs(llama: Any) -> None:
    done = run(llama, PROMPTS, caw.KGW(key=1), policy_of(llama), max_new_tokens=2 * ROUND + 3, fixed=True)
    assert len(done.steps) == 2 * ROUND + 3


def row_by_row(model: Any) -> Any:
    """The model, whose linear layers take each row alone: fixed steps carry more rows than those that read back, and a
    processor may add up the products of half-precision rows in another order where there are more of them."""
    for layer in [part for part in model.modules() if isinstance(part, torch.nn.Linear)]:
        inner = layer.forward
        layer.forward = lambda x, inner=inner: torch.stack([*map(inner, x.flatten(0, -2))]).view(*x.shape[:-1], -1)
    return model


def candidate_by_candidate(kernels: ops.Ops) -> ops.Ops:
    """`kernels`, whose attention takes each candidate alone, with no more of the cache than is committed."""

    def alone(one: Any, sequence: int, lengths: torch.Tensor, cache: Any, rest: Any) -> torch.Tensor:
        length = int(lengths[sequence])
        prefix = [x[sequence : sequence + 1, :, :length] for x in cache]
        q, k_own, v_own = (x[None, :, None] for x in one)
        return kernels.sibling_attention(q, *prefix, k_own, v_own, lengths[sequence : sequence + 1], *rest)[0, :, 0]

    def rectangle(q: Any, k_cache: Any, v_cache: Any, k_own: Any, v_own: Any, lengths: Any, *rest: Any) -> torch.Tensor:
        rows = torch.arange(len(q)).repeat_interleave(q.shape[2])
        own = [x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (q, k_own, v_own)]
        out = packed(own[0], k_cache, v_cache, *own[1:], lengths, rows, *rest)
        return out.view(len(q), -1, *q.shape[1::2]).transpose(1, 2)

    def packed(q: Any, k_cache: Any, v_cache: Any, k_own: Any, v_own: Any, lengths: Any, rows: Any, *rest: Any) -> Any:
        own = zip(q[:, :, 0], k_own[:, :, 0], v_own[:, :, 0], strict=True)
        cache = (k_cache, v_cache)
        found = [alone(one, row, lengths, cache, rest) for one, row in zip(own, rows.tolist(), strict=True)]
        return torch.stack(found)[:, :, None]

    return replace(kernels, sibling_attention=rectangle, sibling_attention_packed=packed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Equal tokens are claimed for float32 only; in half precision of arithmetic that knows one row at a time."""
    model = row_by_row(copy.deepcopy(build("llama")).to(dtype))
    kernels = candidate_by_candidate(ops.references())
    fixed, _ = both(model, RAGGED, caw.EXP(key=3, top_k=20), policy_of(build("llama")), slots=2, kernels=kernels)
    assert fixed.changed > 0
    assert fixed.mixed_steps > 0, "steps that read back must have carried other rows"


@pytest.mark.parametrize("watermark", ["lefthash", "top_k"])
def test_a_compiled_body(llama: Any, watermark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graph of the model, run as it is (Inductor takes a minute): one for all steps, refills included."""
    made: list[dict[str, Any]] = []
    inner = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: (made.append(k), inner(f, backend="eager", **k))[1])
    prompts = [prompt(3 + i, i) for i in range(5)]
    settings: dict[str, Any] = {"batch": 2, "slots": 2, "max_new_tokens": 9, "eos_token_ids": (2,)}
    policy = capacity_policy(llama)
    expected = run(llama, prompts, WATERMARKS[watermark], policy, **settings)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = run(llama, prompts, WATERMARKS[watermark], policy, compile=True, **settings)
    assert compiled.tokens == expected.tokens
    assert made == [{"fullgraph": True, "dynamic": False}]


def test_a_compiled_body_serves_later_calls(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call compiled the body again, and the ninth died of torch's limit."""
    inner, prompts, model = torch.compile, [prompt(3), prompt(4, 1)], copy.deepcopy(llama)
    monkeypatch.setattr(torch, "compile", lambda f, **k: inner(f, backend="eager", **k))
    expected = [run(model, prompts, max_new_tokens=n).tokens for n in (4, 5, 6)]
    torch._dynamo.reset()
    assert run(model, prompts, compile=True, max_new_tokens=4).tokens == expected[0]
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert [run(model, prompts, compile=True, max_new_tokens=n).tokens for n in (5, 6)] == expected[1:]
    with torch._dynamo.config.patch(recompile_limit=1):  # other batches are other code
        assert run(model, prompts[:1], compile=True, max_new_tokens=4).tokens == expected[0][:1]
    model.model.layers[0].mlp = copy.deepcopy(model.model.layers[0].mlp)  # somebody changes the model
    model.model.layers[0].mlp.down_proj.weight.zero_()
    assert run(model, prompts, compile=True, max_new_tokens=4).tokens == run(model, prompts, max_new_tokens=4).tokens


# Which steps are taken ---------------------------------------------------------------------------------------------


def test_a_cpu_reads_back(llama: Any) -> None:
    assert isinstance(make_decoder(llama, caw.KGW(key=1)).steps(), StepByStep)


def test_what_needs_the_host_is_not_captured(llama: Any) -> None:
    """transformers' own processors may read back in every step; what watermarks need: test_formats.py."""
    assert isinstance(make_decoder(llama, caw.KGW(key=1), fixed=True).steps(), RunAhead)
    own = make_decoder(llama, caw.KGW(key=1), fixed=True, processors=lambda logits, state: logits)
    assert isinstance(own.steps(), StepByStep)


class FakeGraph:
    """Stands for torch.cuda.CUDAGraph: counts replays."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


def test_capture_comes_after_the_warm_up_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real steps, one capture, replays from then on; both ends of it are told."""
    calls, told, graphs = [], [], []
    step = CapturedStep(lambda: calls.append("step"), "batch 8, 2 candidates", told.append)
    monkeypatch.setattr(step, "_side_stream", lambda run: run())
    monkeypatch.setattr(step, "_record", lambda: graphs.append(FakeGraph()) or graphs[0])
    for _ in range(6):
        step()
    assert calls == ["step"] * WARM_UP
    assert [g.replays for g in graphs] == [6 - WARM_UP]
    assert told == ["capturing a CUDA graph (batch 8, 2 candidates)", ""]


def test_all_warm_ups_of_a_device_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a new one, for which cuBLAS then kept memory."""
    made: list[int] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext())
    monkeypatch.setattr(CapturedStep, "_record", lambda self: FakeGraph())
    cuda_graph._warm_up_stream.cache_clear()
    for device in (0, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        step = CapturedStep(lambda: None, "batch 1, 2 candidates")
        for _ in range(WARM_UP + 1):
            step()
    cuda_graph._warm_up_stream.cache_clear()
    assert made == [0, 1]


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    step = CapturedStep(lambda: calls.append("step"), "batch 1, 2 candidates")
    monkeypatch.setattr(step, "_side_stream", lambda run: run())

    def refuse() -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(step, "_record", refuse)
    with pytest.warns(
        UserWarning, match=r"expected a step that a CUDA graph can hold \(batch 1, 2 candidates\), got: op"
    ):
        for _ in range(5):
            step()
    assert len(calls) == 5


def test_short_work_is_not_captured(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture costs a few steps: texts of a few tokens run uncaptured, until there were many of them."""
    captured: list[int] = []

    class Counting(CapturedStep):
        def __call__(self) -> None:
            captured.append(1)
            self.step()

    def prepare(self: RunAhead) -> None:
        inner(self)
        self.captured = Counting(self.step, "")

    inner = RunAhead._prepare
    monkeypatch.setattr(RunAhead, "_prepare", prepare)
    few, many = [prompt(3)] * 2, [prompt(3)] * 40
    run(llama, few, max_new_tokens=6, batch=2, fixed=True)
    assert not captured
    done = run(llama, many, max_new_tokens=6, batch=2, fixed=True)
    assert 0 < len(captured) < len(done.steps)
    captured.clear()
    done = run(llama, few, max_new_tokens=40, fixed=True)
    assert len(captured) == len(done.steps)
