"""The whole step by Triton kernels: what it asks of their launchers, and its tokens in Triton's interpreter."""

import copy
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, RAGGED, build, from_config, prompt
from decoding.capturing import started, tensors
from decoding.drafts.guessing import Knowing
from decoding.running import Run, run
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from models.packing import packed_pair
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding import eager_step, plan
from caw.decoding.capture import fused_step
from caw.decoding.capture.fused_step import FusedStep
from caw.decoding.forward import fused_layers, fused_stack
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.row_settings import RowSettings

REHEARSAL = pytest.mark.gate("rehearsal")
SYNTHID = caw.SynthID(key=9, depth=12, ngram_len=3)
EVERY = {**WATERMARKS, "synthid": SYNTHID}
POLICIES = {"capacity": capacity_policy, "fixed": lambda model: caw.FixedStrength(1.0)}


def launchers() -> ops.Ops:
    from caw.triton_kernels import commit_kv, evaluator_step, sibling_attention, topk_softmax

    return ops.Ops(
        topk_softmax=topk_softmax.topk_softmax,
        sibling_attention=sibling_attention.sibling_attention,
        sibling_attention_packed=sibling_attention.sibling_attention_packed,
        commit_kv=commit_kv.commit_kv,
        commit_step=commit_kv.commit_step,
        select_candidate=evaluator_step.select_candidate,
        evaluator_step=evaluator_step.evaluator_step,
    )


def one_layer(name: str) -> Any:
    """A model of an architecture, as small as the interpreter likes it."""
    kind, config = CONFIGS[name]
    return from_config(kind, config | {"num_hidden_layers": 1})


# the ops that are launches of kernels on a GPU, by the module of each
KERNELS = {
    "enumerate_candidates": ["enumerate_candidates"], "ladder_step": ["ladder_step"],
    "warp_logits": ["warp_logits", "warp_recorded"],
    "decision_step": ["decision_step"], "sampling_noise": ["sampling_noise"], "tournament": ["tournament"],
    "penalise_logits": ["penalise_logits"], "small_linear": ["small_linear", "packed_linear"],
    "packed_weights": ["unpack_weight"], "decoder_layer": ["decoder_layer"], "rms_norm": ["rms_norm"],
}  # fmt: skip


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> ops.Ops:
    """As on a GPU: ladders, noise, products and whole layers by their kernels too."""
    from caw.triton_kernels import launching

    if not (launching.INTERPRETED or torch.cuda.is_available()):
        pytest.fail("expected Triton in its interpreter; run pytest with TRITON_INTERPRET=1")
    for name, operators in KERNELS.items():
        module = importlib.import_module(f"caw.triton_kernels.{name}")
        for operator in operators:
            monkeypatch.setattr(ops, operator, getattr(module, operator))
    kernels = launchers()
    monkeypatch.setattr(ops, "sibling_attention", kernels.sibling_attention)  # whose place a layer may take
    return kernels


def launched(model: Any, kernels: ops.Ops, watermark: str | None, policy: str, **settings: Any) -> list[Any]:
    """The launches of a step. On meta tensors nothing runs: dtypes, shapes, strides and limits are checked."""
    from caw.triton_kernels.launching import recorded

    chosen = EVERY[watermark] if watermark else None
    decoder, step = started(model, RAGGED, chosen, POLICIES[policy](model), slots=2, **settings)
    assert isinstance(step.step, FusedStep)
    to_meta(decoder, step, kernels)
    linears = FusedForwards(step.step.model, enabled=True)
    with torch.inference_mode(), decoder.attention, linears, recorded() as launches:
        step()
    return launches


@pytest.mark.parametrize(
    "watermark, policy, sampling",
    pairwise([None, "lefthash", "selfhash", "unigram", "top_k", "scale", "synthid"], POLICIES, SAMPLING),
)
def test_launchers_take_what_the_step_gives(
    llama: Any, by_kernels: ops.Ops, watermark: str | None, policy: str, sampling: str
) -> None:
    launches = launched(llama, by_kernels, watermark, policy, eos_token_ids=(2,), **SAMPLING[sampling])
    kernels = [launch.kernel.__name__ for launch in launches]
    layers = llama.config.num_hidden_layers
    assert kernels.count("_layer_attention_kernel") == layers and "_split_kernel" not in kernels
    assert kernels.count("_product_kernel") == 4 * layers + 1 and kernels.count("_norm_kernel") == 2 * layers + 1
    assert kernels.count("_commit_kernel") == 1, "keys, values, logits and records move in one launch"
    assert kernels.count("_decision_kernel") == 1, "evaluation, selection, what was emitted and the ring are one launch"
    assert not {"_evaluator_kernel", "_select_kernel"} & set(kernels)
    whole = watermark == "scale" and policy == "fixed"  # always at full strength: a race over the whole vocabulary
    # those of all candidates, the sampler's, and what a free beginning takes its surprisals from
    assert kernels.count("_part_kernel") == 1 + (sampling == "sampled") * (1 + whole)
    # the record of what was drawn from says where it is cut; the rows that it cannot tell are for the second search
    cut = {"_divide_kernel": 1, "_border_kernel": 2, "_list_kernel": 1, "_cut_kernel": 1}
    assert {name: kernels.count(name) for name in cut} == {name: (sampling == "sampled") * n for name, n in cut.items()}
    assert kernels.count("_race_ladder_kernel") == (watermark in ("top_k", "scale") and not whole)
    assert kernels.count("_green_ladder_kernel") == (watermark in ("lefthash", "selfhash", "unigram"))
    assert kernels.count("_bins_kernel") == (2 if watermark == "synthid" else 0), "one for ten layers"


def test_penalties_are_launches_of_the_step(llama: Any, by_kernels: ops.Ops) -> None:
    """A part of a step only where a text may have some."""
    for own, count in (({}, 0), ({"presence_penalty": 0.5}, 1), ({"repetition_penalty": 1.2}, 1)):
        launches = launched(llama, by_kernels, "lefthash", "capacity", **own)
        kernels = [launch.kernel.__name__ for launch in launches]
        assert {kernels.count(name) for name in ("_bias_kernel", "_count_kernel", "_penalty_kernel")} == {count}
        arguments = next((launch.arguments for launch in launches if launch.kernel.__name__ == "_bias_kernel"), {})
        assert arguments.get("REPEATS", False) == ("repetition_penalty" in own) and not arguments.get("BIASED", False)


def to_meta(decoder: Any, step: Any, kernels: ops.Ops) -> None:
    with torch.inference_mode(False):
        step.step.model = copy.deepcopy(step.step.model).to("meta")
        decoder.attention = caw_attention(step.step.model)
        if step.step.choosing.evaluator is not None:
            step.step.choosing.evaluator = copy.deepcopy(step.step.choosing.evaluator).to("meta")
    step.step.choosing.plan = dataclasses.replace(step.step.plan, kernels=kernels)
    step.cache.kernels = kernels
    step.step.choosing.native_noise = True
    texts = step.step.choosing.texts
    owners = [step.state, texts, step.cache, step.ring, step.state.current, *step.state.history]
    for owner in (*owners, *([] if texts.penalties is None else [texts.penalties])):
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                setattr(owner, name, value.to("meta"))
    assert all(t.is_meta for t in tensors(step).values())


def compare(
    kernels: ops.Ops, model: Any, prompts: Any, watermark: str | None, policy: Any, *, other: Any = None,
    mistakes: Any = (), between: Callable[[], Any] = list, **settings: Any,
) -> Run:  # fmt: skip
    """The run by kernels against the references. other: a model of these numbers. between: done before the former."""
    chosen = EVERY[watermark] if watermark else None
    expected = run(other or model, prompts, chosen, policy, fixed=False, kernels=ops.references(), **settings)
    between()
    if mistakes:
        settings["speculate"] = Knowing(list(zip(prompts, expected.tokens, strict=True)), mistakes)
    actual = run(model, prompts, chosen, policy, fixed=True, kernels=kernels, **settings)
    assert actual.tokens == expected.tokens
    assert [(t.candidates, t.choice) for t in actual.traces] == [(t.candidates, t.choice) for t in expected.traces]
    return actual


interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here; test_cuda_graph runs them"
)
SHORT = [prompt(7, 1), prompt(2, 2)]


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(
    ("name", "watermark", "sampling"),
    [
        ("llama", "top_k", "sampled"),
        ("qwen2", "selfhash", "sampled"),
        ("mistral", "scale", "greedy"),
        ("qwen2", None, "sampled"),
        ("gemma2", "lefthash", "greedy"),
        ("qwen2", "synthid", "sampled"),
        # what they have of their own (fused projections, sinks) is asked of each kernel alone as well
        pytest.param("qwen2", "lefthash", "greedy", marks=REHEARSAL),
        pytest.param("phi3", "unigram", "greedy", marks=REHEARSAL),
        pytest.param("gpt_oss", "top_k", "greedy", marks=REHEARSAL),
    ],
)
def test_tokens_of_kernels_in_the_interpreter(
    by_kernels: ops.Ops, name: str, watermark: str | None, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every op of every step by its kernel, packed candidates and other families too; slots overflow."""
    model = build(name) if name in ("gemma2", "phi3", "gpt_oss") else one_layer(name)
    if name == "llama":
        monkeypatch.setattr(fused_stack, "runs_as_one", lambda body, layers: False)
        monkeypatch.setattr(fused_step, "row_budget", lambda batch, width: min(3, batch * width))
    policy = capacity_policy(model, theta=1.0, beta=1.0) if watermark else None
    settings: dict[str, Any] = {"max_new_tokens": 2 if name == "llama" else 4, "slots": 2, **SAMPLING[sampling]}
    families = {"gemma2": {"gemma2"}, "phi3": {"llama"}}.get(name, set())
    calls = set[str]()
    between = partial(as_on_a_gpu, monkeypatch, calls) if families else list
    compare(by_kernels, model, SHORT, watermark, policy, between=between, **settings)
    assert calls == families, "layers run whole"


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize("watermark", ["lefthash", pytest.param(None, marks=REHEARSAL)])
def test_tokens_of_penalties_in_the_interpreter(by_kernels: ops.Ops, watermark: str | None) -> None:
    """Rows with all kinds of them, and without."""
    model = one_layer("qwen2")
    rows = [
        RowSettings(max_new_tokens=3, logit_bias={3: 9.0}, frequency_penalty=2.0, repetition_penalty=1.3),
        RowSettings(max_new_tokens=3),
        RowSettings(max_new_tokens=3, logit_bias={5: 99.0, 6: 98.0}, presence_penalty=2.0),
    ]
    policy = capacity_policy(model) if watermark else None
    done = compare(by_kernels, model, [*SHORT, prompt(5)], watermark, policy, rows=rows, max_new_tokens=3, slots=2)
    assert done.tokens[0][0] == 3 and {5, 6} == set(done.tokens[2])


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, families: set[str]) -> None:
    """Layers run whole from now on; families of those that have run so."""
    whole = ops.decoder_layer
    monkeypatch.setattr(fused_layers, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(fused_stack, "runs_as_one", lambda body, layers: False)  # all layers as one are a CPU's
    monkeypatch.setattr(ops, "decoder_layer", lambda *given: families.add(given[15]) or whole(*given))


@pytest.mark.slow
@interpreted
@pytest.mark.parametrize(("weights", "name", "watermark"), [
    pytest.param("int4", "qwen2", "lefthash", marks=REHEARSAL), pytest.param("fp8", "llama", "top_k", marks=REHEARSAL),
    ("int8", "qwen3", None),
])  # fmt: skip
def test_tokens_of_packed_weights_in_the_interpreter(
    by_kernels: ops.Ops, weights: str, name: str, watermark: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where whole layers take such weights: the tokens of the dense model of the same numbers."""
    kind, config = CONFIGS[name]
    sizes = {"intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16 if name == "qwen3" else 8}
    packed, dense = packed_pair(from_config(kind, config | sizes), weights)
    policy = capacity_policy(dense, theta=1.0, beta=1.0) if watermark else None
    calls, whole = [], ops.decoder_layer
    monkeypatch.setattr(ops, "decoder_layer", lambda *given: calls.append(given[9][1].dtype) or whole(*given))
    between, prompts = partial(as_on_a_gpu, monkeypatch, set()), [prompt(7, 1), prompt(70, 2)]
    compare(by_kernels, packed, prompts, watermark, policy, other=dense, between=between, max_new_tokens=2, slots=2)
    assert set(calls) == {packed.model.layers[0].mlp.up_proj.packed.dtype}, "layers run whole"


@functools.cache
def compilable(kernel: Any, general: tuple[str, ...] | None) -> Any:
    """What `triton.jit` makes of an interpreted kernel elsewhere. general: arguments whose values it is not told."""
    from triton.runtime.jit import JITFunction

    return JITFunction(kernel.fn, do_not_specialize=general)


def variant(launch: Any) -> tuple[str, ...]:
    """What Triton would compile for it: types, constants, what is known of numbers, options."""
    import aot

    general = launch.kernel.kwargs["do_not_specialize"]
    kernel = compilable(launch.kernel, general if general is None else tuple(general))
    made = aot.source(dataclasses.replace(launch, kernel=kernel))
    return tuple(map(str, (launch.kernel.fn.__name__, made.signature, made.constants, made.attrs, launch.options)))


def variants(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    from caw.triton_kernels import launching

    found: set[Any] = set()

    def launch(kernel: Any, grid: Any, arguments: dict[str, Any], **options: Any) -> None:
        found.add(variant(launching.Launch(kernel, tuple(grid), arguments, options)))
        original(kernel, grid, arguments, **options)

    original = launching.launch
    for name, module in list(sys.modules.items()):
        if name.startswith("caw.triton_kernels.") and getattr(module, "launch", None) is original:
            monkeypatch.setattr(module, "launch", launch)
    return found


@REHEARSAL
@interpreted
@pytest.mark.parametrize(("fixed", "planted"), [(True, None), (False, None), (True, "_layer_attention_kernel")])
def test_nothing_is_compiled_in_mid_generation(
    by_kernels: ops.Ops, monkeypatch: pytest.MonkeyPatch, fixed: bool, planted: str | None
) -> None:
    """After two tokens of texts of which one waits for a place no more variants: longer texts, past the end of a block,
    in a cache of more parts, and others in their places. planted: a kernel that is compiled for each number anew."""
    from caw.triton_kernels import decoder_layer

    model = one_layer("qwen2")
    as_on_a_gpu(monkeypatch, set())
    places = [256, 512]
    monkeypatch.setattr(plan, "cache_places", lambda longest, device, compiled: places[0])
    # sixteen are a number that Triton would compile for, where it may
    monkeypatch.setattr(decoder_layer, "num_splits", lambda batch, heads, tiles, size, block: {256: 4, 512: 16}[size])
    monkeypatch.setattr(eager_step, "on_gpu", lambda tensor: True)
    if planted is not None:
        monkeypatch.setitem(getattr(decoder_layer, planted).kwargs, "do_not_specialize", ())
    found, settings = variants(monkeypatch), {"fixed": fixed, "kernels": by_kernels, "batch": 2, "slots": 2}
    run(model, [prompt(60), prompt(9), prompt(5)], WATERMARKS["lefthash"], None, max_new_tokens=2, **settings)
    before = set(found)
    del places[0]
    run(model, [prompt(63), prompt(11), prompt(7)], WATERMARKS["lefthash"], None, max_new_tokens=3, **settings)
    last = "_decision_kernel" if fixed else "_commit_kernel"
    assert {name for name, *_ in before} >= {"_layer_attention_kernel", "_product_kernel", "_part_kernel", last}
    assert {name for name, *_ in found - before} == ({planted} if planted else set())


@interpreted
@pytest.mark.parametrize("planted", [False, True])
def test_any_number_of_rows_takes_the_same_kernels(by_kernels: ops.Ops, monkeypatch: Any, planted: bool) -> None:
    """Those of steps whose candidates differ in number. planted: one that is compiled for each number anew."""
    from caw.triton_kernels import topk_softmax
    from caw.triton_kernels.launching import recorded

    if planted:
        monkeypatch.setitem(topk_softmax._part_kernel.kwargs, "do_not_specialize", ())
    found: list[set[tuple[str, ...]]] = []
    for rows in (1, 3, 16):
        with recorded() as launches:
            by_kernels.topk_softmax(torch.empty(rows, 500, device="meta"), 100)
        found.append({variant(launch) for launch in launches})
    assert len(found[0]) == 2 and len(set.union(*found)) == (4 if planted else 2)
