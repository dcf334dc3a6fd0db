"""Steps that read nothing back give the tokens, traces and ends of those that do."""

import contextlib
import copy
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from decoding.architectures import GQA, RAGGED, build, from_config, policy_of, prompt
from decoding.running import Run, make_decoder, run
from decoding.test_step import POLICIES, PROMPTS, SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.capture import run_ahead
from caw.decoding.capture.run_ahead import ROUND, WARM_UP, CapturedStep, RunAhead
from caw.decoding.eager_step import EagerStep
from caw.decoding.request import ActiveSequence
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


KERNELS = {"references": ops.references(), "operators": None}  # as on a GPU: every op through torch.ops, fused ones too


@pytest.mark.parametrize(
    "watermark, policy, sampling, kernels", pairwise([None, *WATERMARKS], POLICIES, SAMPLING, KERNELS)
)
def test_fixed_steps_give_the_same(llama: Any, watermark: str | None, policy: str, sampling: str, kernels: str) -> None:
    chosen, how = (WATERMARKS[watermark], POLICIES[policy](llama)) if watermark else (None, None)
    given: dict[str, Any] = {"eos_token_ids": (2,), "return_trace": watermark != "scale", **SAMPLING[sampling]}
    fixed, _ = both(llama, PROMPTS, chosen, how, kernels=KERNELS[kernels], **given)
    assert fixed.changed > 0 or policy == "delta" or watermark in (None, "scale")


def test_fixed_steps_on_every_architecture(model: Any) -> None:
    both(model, RAGGED, WATERMARKS["top_k"], policy_of(model), max_new_tokens=6)


def test_a_host_that_stops_a_text_gets_nothing_more_of_it(llama: Any) -> None:
    """What ran on after a stop string, up to two rounds, is dropped, and the slot goes to the next prompt."""
    prompts = [prompt(3 + i, i) for i in range(5)]
    seen: list[list[tuple[int, int]]] = [[], []]

    def stop(log: list[tuple[int, int]]) -> Any:
        def on_token(sequence: ActiveSequence) -> bool:
            log.append((sequence.index, sequence.tokens[-1]))
            return len(sequence.tokens) == 3 + 4 * sequence.index

        return on_token

    given: dict[str, Any] = {"batch": 2, "max_new_tokens": 40}
    whole = run(llama, prompts, caw.KGW(key=1), policy_of(llama), **given).tokens
    for log, how in zip(seen, ({}, {"fixed": True}), strict=True):
        done = run(llama, prompts, caw.KGW(key=1), policy_of(llama), on_token=stop(log), **given, **how)
        assert done.tokens == [tokens[: 3 + 4 * n] for n, tokens in enumerate(whole)]
        assert set(done.reasons) == {"stop"}
        assert sorted(log) == sorted(seen[0])


def test_no_round_starts_that_nobody_needs(llama: Any) -> None:
    done = run(llama, PROMPTS, caw.KGW(key=1), policy_of(llama), max_new_tokens=2 * ROUND + 3, fixed=True)
    assert len(done.steps) == 2 * ROUND + 3


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_half_precision(name: str) -> None:
    """Steps that read back carry other rows; a row has the same bits all the same."""
    model = copy.deepcopy(build(name)).to(torch.bfloat16)
    fixed, _ = both(model, RAGGED, caw.EXP(key=3, top_k=20), policy_of(build(name)), slots=2, kernels=None)
    assert fixed.changed > 0
    assert fixed.mixed_steps > 0, "steps that read back must have carried other rows"


# what dynamo is asked by these is what all others ask: absolute and rotary places, experts, windows, softcaps, sinks,
# parallel blocks, fused projections, layers without places
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma3", "gpt_oss", "phi3", "cohere", "smollm3"])
def test_a_compiled_body(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's graph of the model, run as it is (Inductor takes a minute): one for all steps, refills included."""
    model, made, inner = build(name), list[dict[str, Any]](), torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **k: (made.append(k), inner(f, backend="eager", **k))[1])
    prompts = [prompt(3 + i, i) for i in range(5)]
    settings: dict[str, Any] = {"batch": 2, "slots": 2, "max_new_tokens": 9, "eos_token_ids": (2,)}
    policy = capacity_policy(model)
    expected = run(model, prompts, WATERMARKS["top_k"], policy, **settings)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = run(model, prompts, WATERMARKS["top_k"], policy, compile=True, **settings)
    assert compiled.tokens == expected.tokens
    assert made == [{"fullgraph": True, "dynamic": False}]


def test_a_compiled_body_serves_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call compiled the body again, and the ninth died of torch's limit."""
    inner, prompts = torch.compile, [prompt(3), prompt(4, 1)]
    model = from_config("llama", {**GQA, "num_hidden_layers": 1})
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


def test_what_needs_the_host_is_not_captured(llama: Any) -> None:
    """transformers' own processors may read back in every step; what watermarks need: test_formats.py."""
    assert isinstance(make_decoder(llama, caw.KGW(key=1)).steps(), EagerStep), "a CPU"
    assert isinstance(make_decoder(llama, caw.KGW(key=1), fixed=True).steps(), RunAhead)
    own = make_decoder(llama, caw.KGW(key=1), fixed=True, processors=lambda logits, state: logits)
    assert isinstance(own.steps(), EagerStep)


def test_capture_comes_after_the_warm_up_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real steps, one capture, replays from then on; both ends of it are told."""
    calls, told, graph = [], [], Mock()
    step = CapturedStep(lambda: calls.append("step"), "batch 8, 2 candidates", told.append)
    monkeypatch.setattr(step, "_side_stream", lambda run: run())
    monkeypatch.setattr(step, "_record", lambda: graph)
    for _ in range(6):
        step()
    assert calls == ["step"] * WARM_UP
    assert graph.replay.call_count == 6 - WARM_UP
    assert told == ["capturing a CUDA graph (batch 8, 2 candidates)", ""]


def test_all_warm_ups_of_a_device_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took a new one, for which cuBLAS then kept memory."""
    made: list[int] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext())
    monkeypatch.setattr(CapturedStep, "_record", lambda self: Mock())
    run_ahead._warm_up_stream.cache_clear()
    for device in (0, 0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda device=device: device)
        step = CapturedStep(lambda: None, "batch 1, 2 candidates")
        for _ in range(WARM_UP + 1):
            step()
    run_ahead._warm_up_stream.cache_clear()
    assert made == [0, 1]


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    step = CapturedStep(lambda: calls.append("step"), "batch 1, 2 candidates")
    monkeypatch.setattr(step, "_side_stream", lambda run: run())
    refuse = Mock(side_effect=RuntimeError("operation not permitted when stream is capturing\nmore"))
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
