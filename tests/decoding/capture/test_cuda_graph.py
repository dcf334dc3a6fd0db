"""Guards of the captured step that need no GPU: nothing is read back, its memory stays, a replay at other lengths is
right; and the graph itself on a GPU."""

import contextlib
import copy
import dataclasses
import itertools
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import build, prompt
from decoding.brute_force import BruteForce
from decoding.capturing import (
    HostData,
    by_replays,
    fake_step,
    graphs_of,
    reading_back,
    replays_go_on_as,
    seen_by_fakes,
    started,
)
from decoding.running import run, same_texts
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import caw
from caw import ops
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.forward import fused_layers, fused_stack
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.row_settings import RowLimits
from caw.detection.weights import TokenWeights
from caw.policies import Target

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]
# marks until 1 % is reached, tokens of weight 0 never
TARGET = Target(0.01, margin=0, weights=TokenWeights(np.arange(500) % 4))
POLICIES = {
    "fixed": lambda model: caw.FixedStrength(1.0),
    "entropy": lambda model: caw.EntropyThreshold(3.6),
    "delta": lambda model: caw.LogitDeltaThreshold(0.7, value=1.2),
    "capacity": capacity_policy,
    "target": lambda model: caw.CapacityPolicy(capacity_policy(model).network, 0.8, 1.5, TARGET),
    "fixed to a target": lambda model: caw.FixedStrength(0.7, Target(0.2, margin=0)),
}


def kept(watermark: str | None) -> Any:
    return WATERMARKS[watermark] if watermark else None


# what texts may ask for beside their policies
ASKED: dict[str, dict[str, Any]] = {
    **SAMPLING,
    "different": {"limits": RowLimits(max_new_tokens=30, top_k=60, ends=2, minimum=True, strength_factor=1.25)},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {3: 2.0}},
}


@pytest.mark.parametrize("watermark, policy, asked", pairwise([None, *WATERMARKS], POLICIES, ASKED))
def test_no_host_read(llama: Any, watermark: str | None, policy: str, asked: str) -> None:
    """Under fake tensors a read raises, and data of the host is seen."""
    decoder, step = started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), slots=2, min_new_tokens=3,
                            eos_token_ids=(2,), mark_eos=asked == "greedy", **ASKED[asked])  # fmt: skip
    seen = seen_by_fakes(decoder, step, calls=2)
    assert {ops.sibling_attention, ops.commit_step, ops.topk_softmax} <= seen
    assert (ops.penalise_logits in seen) == (asked == "penalties")


def test_whole_layers_read_nothing_back(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: each layer is one operator."""
    monkeypatch.setattr(fused_layers, "plain", lambda weight: True)  # fake ones are
    monkeypatch.setattr(fused_stack, "runs_as_one", lambda body, layers: False)  # all of them as one are a CPU's
    decoder, step = started(llama, PROMPTS, kept("lefthash"), capacity_policy(llama))
    mode = FakeTensorMode()
    fake = fake_step(decoder, step, mode)
    monkeypatch.setattr(fused_layers, "on_gpu", lambda tensor: True)
    with mode, HostData() as watched, decoder.attention, FusedForwards(step.step.model, enabled=True):
        fake()
        fake()
    assert not watched.moves
    assert {ops.decoder_layer, ops.commit_step} <= watched.seen and ops.sibling_attention not in watched.seen


EXPERTS = {"gpt_oss", "mixtral", "qwen3_moe"}


def test_no_architecture_reads_back(model: Any, name: str) -> None:
    """Mixtures of experts in bfloat16: torch's grouped product has no fake for other types."""
    policy = capacity_policy(model)
    if name in EXPERTS:
        model = copy.deepcopy(model).bfloat16()
    decoder, step = started(model, PROMPTS, kept("top_k"), policy, slots=2)
    seen_by_fakes(decoder, step)


def test_a_host_read_is_found(llama: Any) -> None:
    """The step that reads back fails the same test: the guard can fail."""
    decoder, step = started(llama, PROMPTS, kept("top_k"), capacity_policy(llama))
    step.step = reading_back(decoder, step)  # type: ignore[assignment]
    mode = FakeTensorMode()
    fake = fake_step(decoder, step, mode)
    with mode, decoder.attention, pytest.raises(DataDependentOutputException):
        fake()


def test_data_of_the_host_is_found() -> None:
    with HostData() as watched:
        torch.tensor([1, 2]) + 1
        torch.ones(2)[0] = 3  # a number is an argument of a kernel
    assert watched.moves == ["aten.lift_fresh.default"]


@pytest.mark.parametrize("watermark, policy, asked", pairwise([None, *WATERMARKS], POLICIES, ASKED))
def test_replay_at_other_lengths(llama: Any, watermark: str | None, policy: str, asked: str) -> None:
    """Recorded at the prompts' lengths, replayed at all later ones, refilled with other prompts and replayed again."""
    settings = {"slots": 2, "eos_token_ids": (2,), "min_new_tokens": 2, "mark_eos": False, **ASKED[asked]}
    made = [started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), **settings) for _ in range(2)]
    replays_go_on_as(made, [prompt(2, 7), prompt(13, 8), prompt(5, 9)])


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "qwen3", "phi3"])
def test_replay_of_other_architectures(name: str) -> None:
    model = build(name)
    policy, kernels = capacity_policy(model), ops.references()
    replays_go_on_as([started(model, PROMPTS, kept("top_k"), policy, kernels=kernels) for _ in range(2)])


def test_a_number_baked_in_is_found(llama: Any) -> None:
    """The step that reads back, recorded and replayed, goes wrong: the model of a replay can fail."""
    made = [started(llama, PROMPTS, kept("top_k"), capacity_policy(llama), slots=2) for _ in range(2)]
    decoder, step = made[1]
    step.step = reading_back(decoder, step)  # type: ignore[assignment]
    with pytest.raises((AssertionError, RuntimeError)):
        replays_go_on_as(made)


@pytest.mark.parametrize("watermark, sampling", pairwise([None, "lefthash", "top_k", "scale"], SAMPLING))
def test_whole_texts_by_replays(
    llama: Any, watermark: str | None, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder as on a GPU, replays for a graph: refills, ends, overflow, smaller batches recorded anew."""
    policy = capacity_policy(llama, theta=1.0) if watermark else None
    prompts = [prompt(3 + 2 * (i % 5), i) for i in range(9)]
    settings: dict[str, Any] = {"max_new_tokens": 33, "slots": 2, "batch": 4, **SAMPLING[sampling]}
    settings["budgets"] = [20, 7, 14, 20, 3, 19, 8, 33, 12]
    free = run(llama, prompts, kept(watermark), policy, **settings)
    settings["eos_token_ids"] = (next(t for t in free.tokens[0][3:] if t not in free.tokens[7]),)
    eager = run(llama, prompts, kept(watermark), policy, **settings)
    made = by_replays(monkeypatch)
    replayed = run(llama, prompts, kept(watermark), policy, fixed=True, watched=False, **settings)
    assert replayed.tokens == eager.tokens
    assert replayed.reasons == eager.reasons
    assert "eos" in eager.reasons
    assert len(made) > 1, "no smaller batch was recorded"


class FakeAllocator:
    """torch's bookkeeping of graph memory: a pool whose graphs are all gone cannot be opened again."""

    def __init__(self) -> None:
        self.graphs: dict[int, int] = {}
        self.handle = itertools.count().__next__

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: int | None = None, **settings: Any) -> Iterator[None]:
        pool = self.handle() if pool is None else pool
        if self.graphs.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.graphs[pool] = self.graphs.get(pool, 0) + 1
        yield
        weakref.finalize(graph, lambda: self.graphs.update({pool: self.graphs[pool] - 1}))


def test_the_graph_of_a_smaller_batch_gets_memory(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of one batch is dropped before the next is captured: both captures have to succeed."""
    allocator = FakeAllocator()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", allocator.handle)
    monkeypatch.setattr(torch.cuda, "graph", allocator.graph)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (), {}))
    decoder, _ = started(llama, PROMPTS, kept("top_k"), capacity_policy(llama))
    on_cuda = types.SimpleNamespace(batch=3, pending=types.SimpleNamespace(is_cuda=True, device=torch.device("cpu")))
    captured = RunAhead(decoder.step, on_cuda, decoder.cache)  # type: ignore[arg-type]
    for batch in (3, 2, 1):
        on_cuda.batch = batch
        captured._prepare()
        step = captured.captured
        assert step is not None
        step.step = lambda: None
        step._capture()
        assert not step.refused
        del step


# of texts in four places: refilled, with ends; smaller and smaller batches
BUDGETS = {"refilled": [50, 7, 44, 50, 3, 29, 50, 18, 41], "smaller": [100, 2, 50, 2]}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("watermark", "sampling", "kind"),
    [*((name, sampling, "refilled") for name in (None, *WATERMARKS) for sampling in SAMPLING),
     ("top_k", "greedy", "smaller")],
)  # fmt: skip
def test_captured_on_a_gpu(
    llama: Any, watermark: str | None, sampling: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph itself, overflow too; the tokens of steps that read back (float32)."""
    policy, ends = capacity_policy(llama, theta=1.0) if watermark else None, ()
    model, graphs = copy.deepcopy(llama).to("cuda"), graphs_of(monkeypatch)
    prompts = [prompt(3 + 2 * (i % 5), i) for i in range(len(BUDGETS[kind]))]
    settings: dict[str, Any] = {"max_new_tokens": 100, "slots": 2, "batch": 4, **SAMPLING[sampling]}
    settings["budgets"] = BUDGETS[kind]
    eager = run(model, prompts, kept(watermark), policy, fixed=False, **settings)
    if kind == "refilled":
        settings["eos_token_ids"] = ends = (eager.tokens[0][40], eager.tokens[2][35])
        eager = run(model, prompts, kept(watermark), policy, fixed=False, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a refused capture only warns
        captured = run(model, prompts, kept(watermark), policy, watched=False, **settings)
    assert len(graphs) > (kind == "smaller"), "too little was captured"
    reference = BruteForce(llama, kept(watermark), policy, eos=ends, **SAMPLING[sampling])
    same_texts(captured, eager, [reference] * len(prompts), prompts)


def test_a_clear_decision_must_be_the_same(llama: Any) -> None:
    """What the tests on a GPU compare by can fail: for a wrong token, and for a wrong end."""
    prompts, references = PROMPTS[:1], [BruteForce(llama)]
    wanted = run(llama, prompts, max_new_tokens=3)
    same_texts(wanted, wanted, references, prompts)
    tokens = wanted.tokens[0]
    for other in (dataclasses.replace(wanted, tokens=[[*tokens[:2], tokens[2] ^ 1]]),
                  dataclasses.replace(wanted, reasons=["eos"])):  # fmt: skip
        with pytest.raises(AssertionError):
            same_texts(other, wanted, references, prompts)
