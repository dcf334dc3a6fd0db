"""How much memory decoding needs, how much there is, and how many texts fit."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import policy_of, prompt
from decoding.running import make_decoder, run
from transformers import AutoConfig, AutoModelForCausalLM

import caw
from caw import ops
from caw.decoding import memory
from caw.decoding.decoder import Decoder
from caw.decoding.memory import Needs, decoding_needs, fitting_batch, free_memory, memory_budget
from caw.decoding.request import Request
from caw.decoding.row_settings import RowSettings
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec
from caw.models import packed
from caw.models.facts import ModelFacts, vocabulary_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plan_covers_what_is_held(model: Any, dtype: torch.dtype) -> None:
    """All tensors that live between steps, and no more than twice that for one more sequence."""
    policy = policy_of(model)
    model = copy.deepcopy(model).to(dtype)
    sizes = []
    for batch in (2, 12):
        decoder = make_decoder(model, caw.EXP(key=1), policy, batch=batch, capacity=60, max_new_tokens=20)
        run_one_step(decoder, [prompt(5, i) for i in range(batch)])
        held = [decoder.cache.store, decoder.cache.scratch, decoder.state.logits, decoder.choosing.texts.padded_tokens,
                *decoder.state.records]  # fmt: skip
        sizes.append(sum(t.numel() * t.element_size() for t in held))
    slots = decoder.plan.slots
    needs = decoding_needs(decoder.plan.facts, 60, slots, 1)
    one_more = (sizes[1] - sizes[0]) / 10
    assert one_more <= needs.per_sequence <= 2 * one_more + slots * vocabulary_size(model) * 8


def allocated(run: Any, file: Path) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    profile.export_chrome_trace(str(file))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    levels = [e["args"]["Total Allocated"] for e in sorted(events, key=lambda e: e["ts"])]
    return max(levels) - levels[0]


WIDE = {"vocab_size": 20_000, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8,
        "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 2048}  # fmt: skip


@pytest.mark.parametrize(("kind", "vocab", "lengths"),
                         [("llama", 20_000, range(5, 29, 3)), ("gemma2", 500, [300] * 8)])  # fmt: skip
@pytest.mark.parametrize("history", [0, 1, 2])
def test_plan_covers_the_prefill(kind: str, vocab: int, lengths: Any, history: int, tmp_path: Path) -> None:
    """Ragged prompts, whose last positions all differ; attention that writes its scores down."""
    config = AutoConfig.for_model(kind, **{**WIDE, "vocab_size": vocab})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    prompts = [[3 + (i + n) % 90 for i in range(length)] for n, length in enumerate(lengths)]  # no shared beginning
    policy = caw.CapacityPolicy(Evaluator(FeatureSpec(previous=history), hidden=4).eval(), theta=1.0)
    capacity = max(lengths) + 2
    decoder = make_decoder(model, caw.KGW(key=1), policy, len(prompts), capacity, max_new_tokens=2)
    compiled = not ops.missing_extension()
    needs = decoding_needs(decoder.plan.facts, capacity, 2, history, compiled=compiled)
    peak = allocated(
        lambda: list(decoder.run([Request(ids, 2, RowSettings(max_new_tokens=2)) for ids in prompts])),
        tmp_path / "trace.json",
    )
    assert peak <= needs.fixed + len(prompts) * needs.per_sequence < 5 * peak


def test_plan_covers_packed_weights_made_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest part that a forward of many rows makes, which needs to be there once."""
    monkeypatch.setattr(packed, "AT_ONCE", 3000)  # 93 rows of a matrix of 32 inputs, and 46 of one of 64
    config = AutoConfig.for_model("llama", **{**WIDE, "vocab_size": 200})
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    dense = ModelFacts.of(model)
    facts = ModelFacts.of(packed.pack_model(model, "int8", torch.device("cpu")))
    made, unpack = [], ops.unpack_weight
    monkeypatch.setattr(ops, "unpack_weight", lambda *given: made.append(unpack(*given)) or made[-1])
    with torch.inference_mode():
        model(torch.zeros(1, packed.FEW_ROWS + 1, dtype=torch.int64))
    sizes = {part.nbytes for part in made}
    assert facts.dense_bytes == max(sizes) == 4 * 32 * 93 and len(sizes) > 2 and dense.dense_bytes == 0
    needs = [decoding_needs(of, 60, 2, 1) for of in (facts, dense)]
    assert needs[0].fixed - needs[1].fixed == facts.dense_bytes
    assert needs[0].per_sequence == needs[1].per_sequence


class Reached(Exception):
    """The first step is done."""


def run_one_step(decoder: Decoder, prompts: list[list[int]]) -> None:
    inner = decoder.step.decode

    def step(*args: Any) -> Any:
        inner(*args)
        raise Reached

    decoder.step.decode = step  # type: ignore[method-assign]
    decoder._release = lambda: None  # type: ignore[method-assign]
    with pytest.raises(Reached):
        next(decoder.run([Request(ids, 20, RowSettings(max_new_tokens=20)) for ids in prompts]))


def test_batches_that_fit() -> None:
    needs = Needs(per_sequence=100, fixed=1000)
    assert fitting_batch(8, needs, None) == 8
    assert fitting_batch(8, needs, 1800) == 8
    with pytest.warns(UserWarning, match="8 sequences at once need 1.8 KiB and 1.4 KiB may be used: 3 are decoded"):
        assert fitting_batch(8, needs, 1399) == 3
    with pytest.raises(ValueError, match=r"max_memory must be at least 1.1 KiB for the longest prompt.*got 1.1 KiB"):
        fitting_batch(8, needs, 1099)


def test_a_small_budget_changes_no_text(llama: Any) -> None:
    """Six sequences planned, two at once: the same tokens."""
    prompts = [prompt(3 + i, i) for i in range(6)]
    settings: dict[str, Any] = {"max_new_tokens": 8}
    expected = run(llama, prompts, caw.KGW(key=1), policy_of(llama), **settings)
    needs = decoding_needs(ModelFacts.of(llama), 8 + 8, 2, 1)
    budget = needs.fixed + 2 * needs.per_sequence
    with pytest.warns(UserWarning, match="2 are decoded at once"):
        cut = run(llama, prompts, caw.KGW(key=1), policy_of(llama), max_memory=budget, **settings)
    assert cut.tokens == expected.tokens
    assert {len(active) for active, *_ in cut.steps} <= {1, 2}


CPU = torch.device("cpu")


@pytest.mark.parametrize(("given", "expected"), [
    (1000, 1000), ("8GiB", 8 << 30), ("1.5 mb", 1_500_000), ("2K", 2000), ("64 kib", 65536), ("77", 77),
])  # fmt: skip
def test_sizes(given: Any, expected: int) -> None:
    assert memory_budget(given, CPU) == expected


@pytest.mark.serial
def test_shares_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (free_memory(CPU) or 0) > 1 << 20
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    assert memory_budget(None, CPU) == 900
    assert memory_budget(0.5, CPU) == memory_budget("0.5", CPU) == 500
    monkeypatch.setattr(memory, "free_memory", lambda device: None)
    assert memory_budget(None, CPU) is None, "a system that does not say sets no limit"


@pytest.mark.serial
def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    host = free_memory(CPU)
    assert host is not None
    for name, text in (("max", "5000\n"), ("current", "3500\n"), ("stat", "anon 7\ninactive_file 200\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(CPU) == 1700
    (tmp_path / "memory.max").write_text("max\n")
    assert abs((free_memory(CPU) or 0) - host) < host // 2
