"""Guards of the captured step that need no GPU: nothing is read back, one graph holds it, its memory stays, a replay
at other lengths is right."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import CONFIGS, build, prompt
from decoding.brute_force import BruteForce
from decoding.capturing import (
    HostData,
    Recording,
    Replayed,
    fake_step,
    newest,
    reading_back,
    refill,
    seen_by_fakes,
    started,
    tensors,
)
from decoding.running import run, same_texts
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import caw
from caw import ops
from caw.decoding.capture import run_ahead
from caw.decoding.capture.cuda_graph import CapturedStep
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
STEPS = 12


def kept(watermark: str | None) -> Any:
    return WATERMARKS[watermark] if watermark else None


# Nothing is read back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watermark, policy, sampling", pairwise([None, *WATERMARKS], POLICIES, SAMPLING))
def test_no_host_read(llama: Any, watermark: str | None, policy: str, sampling: str) -> None:
    """Under fake tensors a read raises, and data of the host is seen."""
    decoder, step = started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), slots=2, min_new_tokens=3,
                            eos_token_ids=(2,), **SAMPLING[sampling])  # fmt: skip
    seen = seen_by_fakes(decoder, step, calls=2)
    assert {ops.sibling_attention, ops.commit_step, ops.topk_softmax} <= seen


def test_whole_layers_read_nothing_back(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: each layer is one operator."""
    monkeypatch.setattr(fused_layers, "plain", lambda weight: True)  # fake ones are
    monkeypatch.setattr(fused_stack, "runs_as_one", lambda body, layers: False)  # all of them as one are a CPU's
    decoder, step = started(llama, PROMPTS, kept("lefthash"), capacity_policy(llama))
    mode = FakeTensorMode()
    fake = fake_step(decoder, step, mode)
    with mode, HostData() as watched, decoder.attention, FusedForwards(step.step.model, enabled=True):
        fake()
        fake()
    assert not watched.moves
    assert {ops.decoder_layer, ops.commit_step} <= watched.seen and ops.sibling_attention not in watched.seen


OPEN = RowLimits(max_new_tokens=30, top_k=60, ends=2, strength_factor=1.25)


@pytest.mark.parametrize("watermark, policy", pairwise([None, *WATERMARKS], POLICIES))
def test_no_host_read_where_texts_differ(llama: Any, watermark: str | None, policy: str) -> None:
    """The step that does what any text may ask for."""
    decoder, step = started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), slots=2, limits=OPEN,
                            eos_token_ids=(2,), mark_eos=False)  # fmt: skip
    seen_by_fakes(decoder, step)


@pytest.mark.parametrize("sampling", SAMPLING)
def test_penalties_read_nothing_back(llama: Any, sampling: str) -> None:
    decoder, step = started(llama, PROMPTS, kept("lefthash"), capacity_policy(llama), repetition_penalty=1.2,
                            frequency_penalty=0.3, logit_bias={3: 2.0}, **SAMPLING[sampling])  # fmt: skip
    assert ops.penalise_logits in seen_by_fakes(decoder, step, calls=2)


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


# One graph -----------------------------------------------------------------------------------------------------------

# every mark and every policy; `test_no_host_read` takes their pairs
GRAPHS = [("lefthash", "target", "greedy"), ("top_k", "capacity", "sampled"), ("scale", "fixed to a target", "greedy"),
          ("unigram", "entropy", "sampled"), ("selfhash", "delta", "greedy"), (None, "fixed", "greedy"),
          ("scale", "target", "sampled")]  # fmt: skip


@pytest.mark.parametrize(("watermark", "policy", "sampling"), GRAPHS)
def test_one_dynamo_graph_holds_the_step(llama: Any, watermark: str | None, policy: str, sampling: str) -> None:
    """fullgraph, no recompilation, same results as the plain call in every step."""
    settings = {"slots": 2, "min_new_tokens": 3, "eos_token_ids": (2,), "mark_eos": False, **SAMPLING[sampling]}
    made = [started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), **settings) for _ in range(2)]
    one_graph(*made, steps=STEPS)


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", None])
def test_one_dynamo_graph_holds_texts_that_differ(llama: Any, watermark: str | None) -> None:
    settings = {"slots": 2, "eos_token_ids": (2,), "mark_eos": False, "limits": OPEN}
    policy = POLICIES["capacity" if watermark else "fixed"](llama)
    made = [started(llama, PROMPTS, kept(watermark), policy, **settings) for _ in range(2)]
    one_graph(*made, steps=4)


# what a forward of these asks of dynamo is what the others ask: absolute and rotary places, experts, windows, softcaps,
# sinks, parallel blocks, fused projections, layers without places
GRAPHED = {"gpt2", "gpt_neox", "gemma3", "gpt_oss", "phi3", "cohere", "smollm3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in GRAPHED else pytest.mark.gate("rehearsal")) for n in sorted(CONFIGS)]
)
def test_one_graph_for_every_architecture(name: str) -> None:
    model = build(name)
    made = [started(model, PROMPTS, kept("top_k"), capacity_policy(model), slots=2) for _ in range(2)]
    one_graph(*made, steps=4)


def one_graph(reference: Any, other: Any, *, steps: int) -> None:
    """Two (decoder, step) that began alike: the second, traced, goes on as the first does."""
    (plain_decoder, plain), (_, traced) = reference, other
    torch._dynamo.reset()
    compiled = torch.compile(lambda: traced(), fullgraph=True, backend="eager")
    with torch.inference_mode(), plain_decoder.attention, torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(steps):
            plain()
            compiled()
            same_results(plain, traced)


def same_results(a: Any, b: Any) -> None:
    for one, other in zip(*(dataclasses.astuple(newest(step)) for step in (a, b)), strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0))


# Memory and replay ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watermark", [None, *WATERMARKS])
def test_addresses_stay(llama: Any, watermark: str | None) -> None:
    decoder, step = started(llama, PROMPTS, kept(watermark), capacity_policy(llama), slots=2)
    before = {name: (t.data_ptr(), t.shape, t.stride()) for name, t in tensors(step).items()}
    with torch.inference_mode(), decoder.attention:
        for _ in range(5):
            step()
    assert before == {name: (t.data_ptr(), t.shape, t.stride()) for name, t in tensors(step).items()}


@pytest.mark.parametrize("watermark, policy, sampling", pairwise([None, *WATERMARKS], POLICIES, SAMPLING))
def test_replay_at_other_lengths(llama: Any, watermark: str | None, policy: str, sampling: str) -> None:
    """Recorded at the prompts' lengths, replayed at all later ones, refilled with other prompts and replayed again."""
    settings = {"slots": 2, "eos_token_ids": (2,), "min_new_tokens": 2, "mark_eos": False, **SAMPLING[sampling]}
    made = [started(llama, PROMPTS, kept(watermark), POLICIES[policy](llama), **settings) for _ in range(2)]
    (decoder, plain), (other, recorded) = made
    with torch.inference_mode(), other.attention, Recording() as graph:
        recorded()
    with torch.inference_mode(), decoder.attention:
        plain()
    same_results(plain, recorded)
    for _ in range(2):  # past a round's end
        for _ in range(STEPS):
            graph.replay()
            with torch.inference_mode(), decoder.attention:
                plain()
            same_results(plain, recorded)
        for one in (decoder, other):
            one.rows = [None] * len(PROMPTS)
            refill(one, [prompt(2, 7), prompt(13, 8), prompt(5, 9)])


def test_a_number_baked_in_is_found(llama: Any) -> None:
    """The step that reads back, recorded and replayed, goes wrong: the model of a replay can fail."""
    decoder, step = started(llama, PROMPTS, kept("top_k"), capacity_policy(llama), slots=2)
    _, plain = started(llama, PROMPTS, kept("top_k"), capacity_policy(llama), slots=2)
    step.step = reading_back(decoder, step)  # type: ignore[assignment]
    with torch.inference_mode(), decoder.attention, Recording() as graph:
        step()
    with torch.inference_mode(), decoder.attention:
        plain()
    with pytest.raises((AssertionError, RuntimeError)):
        for _ in range(STEPS):
            graph.replay()
            with torch.inference_mode(), decoder.attention:
                plain()
            same_results(plain, step)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "qwen3", "phi3"])
def test_replay_of_other_architectures(name: str) -> None:
    model = build(name)
    (decoder, plain), (other, recorded) = (
        started(model, PROMPTS, kept("top_k"), capacity_policy(model), kernels=ops.references()) for _ in range(2)
    )
    with torch.inference_mode(), other.attention, Recording() as graph:
        recorded()
    with torch.inference_mode(), decoder.attention:
        plain()
        for _ in range(STEPS):
            plain()
            graph.replay()
            same_results(plain, recorded)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_whole_texts_by_replays(
    llama: Any, watermark: str | None, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder as on a GPU, replays for a graph: refills, ends, overflow, smaller batches recorded anew."""
    made: list[Replayed] = []
    prepare = RunAhead._prepare

    def prepared(self: RunAhead) -> None:
        prepare(self)
        made.append(Replayed(self.step))
        self.captured = made[-1]  # type: ignore[assignment]

    policy = capacity_policy(llama, theta=1.0) if watermark else None
    prompts = [prompt(3 + 2 * (i % 5), i) for i in range(9)]
    settings: dict[str, Any] = {"max_new_tokens": 33, "slots": 2, "batch": 4, **SAMPLING[sampling]}
    budgets = [20, 7, 14, 20, 3, 19, 8, 33, 12]
    free = run(llama, prompts, kept(watermark), policy, budgets=budgets, **settings)
    early = next(t for t in free.tokens[0][3:] if t not in free.tokens[7])
    settings["eos_token_ids"] = (early,)
    eager = run(llama, prompts, kept(watermark), policy, budgets=budgets, **settings)
    monkeypatch.setattr(RunAhead, "_prepare", prepared)
    monkeypatch.setattr(run_ahead, "WORTH_CAPTURING", 5)
    replayed = run(llama, prompts, kept(watermark), policy, budgets=budgets, fixed=True, watched=False, **settings)
    assert replayed.tokens == eager.tokens
    assert replayed.reasons == eager.reasons
    assert "eos" in eager.reasons
    assert sum(step.graph is not None for step in made) > 1, "no smaller batch was recorded"


class FakeAllocator:
    """torch's bookkeeping of graph memory: a pool whose graphs are all gone cannot be opened again."""

    def __init__(self) -> None:
        self.graphs: dict[int, int] = {}
        self.handles = 0

    def handle(self) -> int:
        self.handles += 1
        return self.handles

    @contextlib.contextmanager
    def graph(self, graph: Any, pool: int | None = None, **settings: Any) -> Iterator[None]:
        pool = self.handle() if pool is None else pool
        if self.graphs.get(pool) == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        self.graphs[pool] = self.graphs.get(pool, 0) + 1
        yield
        weakref.finalize(graph, self.release, pool)

    def release(self, pool: int) -> None:
        self.graphs[pool] -= 1


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


@pytest.mark.gpu
def test_smaller_batches_are_captured_on_a_gpu(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = copy.deepcopy(llama).to("cuda"), [prompt(3 + i, i) for i in range(4)]
    settings: dict[str, Any] = {"max_new_tokens": 100, "slots": 2, "budgets": [100, 2, 50, 2]}
    eager = run(model, prompts, kept("top_k"), capacity_policy(llama), fixed=False, **settings)
    graphs: list[int] = []
    record = CapturedStep._record
    monkeypatch.setattr(CapturedStep, "_record", lambda self: (graphs.append(1), record(self))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a refused capture only warns
        captured = run(model, prompts, kept("top_k"), capacity_policy(llama), watched=False, **settings)
    assert len(graphs) > 1
    reference = BruteForce(llama, kept("top_k"), capacity_policy(llama))
    same_texts(captured, eager, [reference] * len(prompts), prompts)


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("watermark", [None, *WATERMARKS])
def test_captured_on_a_gpu(llama: Any, watermark: str | None, sampling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph itself: refilled slots, ends, overflow; the tokens of steps that read back (float32)."""
    policy = capacity_policy(llama, theta=1.0) if watermark else None
    model = copy.deepcopy(llama).to("cuda")
    prompts = [prompt(3 + 2 * (i % 5), i) for i in range(9)]
    settings: dict[str, Any] = {"max_new_tokens": 50, "slots": 2, "batch": 4, **SAMPLING[sampling]}
    budgets = [50, 7, 44, 50, 3, 29, 50, 18, 41]
    eager = run(model, prompts, kept(watermark), policy, fixed=False, budgets=budgets, **settings)
    settings["eos_token_ids"] = (eager.tokens[0][40], eager.tokens[2][35])
    eager = run(model, prompts, kept(watermark), policy, fixed=False, budgets=budgets, **settings)
    graphs: list[Any] = []
    record = CapturedStep._record
    monkeypatch.setattr(CapturedStep, "_record", lambda self: (graphs.append(record(self)), graphs[-1])[1])
    captured = run(model, prompts, kept(watermark), policy, budgets=budgets, watched=False, **settings)
    assert graphs, "nothing was captured"
    ends = settings["eos_token_ids"]
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
