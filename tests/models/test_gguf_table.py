"""Every served architecture and setting of .gguf files: the logits of the model that was written, on both paths."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models.gguf_writing import TOKENS, llama3_factors, model_of, write_model

import caw
from caw import ops
from caw.models.gguf_families import FAMILIES
from caw.models.gguf_file import FAMILIES as WITH_BLOCKS
from caw.testing import assert_close

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LONG = (1.0 + np.arange(8) / 3).astype(np.float32)
SHORT = (1.0 + np.arange(8) / 50).astype(np.float32)
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "long_factor": LONG.tolist(), "short_factor": SHORT.tolist(),
    "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.19,
}  # fmt: skip
FACTORS = {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT}


@dataclass(frozen=True)
class Case:
    """A model (its architecture in a file and its settings) and what a file has besides the usual of it."""

    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (200,)
    change: Callable[[Any], None] | None = None


def rope(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": ROPE | settings}


def yarn(**settings: Any) -> dict[str, Any]:
    return {"rope_parameters": YARN | settings}


YARN_FILE = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
    "rope.scaling.finetuned": True,
}  # fmt: skip
LINEAR_FILE = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
USUAL_SCALE = 1 + 0.1 * float(np.log(4.0))
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 32, "tie_word_embeddings": True}
GEMMA_FILE = {"attention.sliding_window": 32}
CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}


def gemma3_rope(local: float = 10000.0, **settings: Any) -> dict[str, Any]:
    full = {"rope_type": "default", "rope_theta": 1000000.0} | settings
    return {"rope_parameters": {"full_attention": full, "sliding_attention": LOCAL | {"rope_theta": local}}}


PATTERN = {"num_hidden_layers": 6}
CASES = {
    "llama": Case("llama", rope()),
    "llama, freq_base": Case("llama", rope(rope_theta=500000.0)),
    "llama, no freq_base": Case("llama", rope(), without=("rope.freq_base",)),
    "llama, no dimension_count": Case("llama", rope(), without=("rope.dimension_count",)),
    "llama, no vocab_size": Case("llama", rope(), without=("vocab_size",)),
    "llama, no head_count_kv": Case("llama", {"num_key_value_heads": 4}, without=("attention.head_count_kv",)),
    "llama, list of equal heads": Case("llama", rope(), {"attention.head_count_kv": [2, 2]}),
    "llama, tied": Case("llama", rope() | {"tie_word_embeddings": True}),
    "llama, wide heads": Case("llama", rope() | {"head_dim": 32}),
    "llama, no experts": Case("llama", rope(), {"expert_count": 0, "expert_used_count": 0}),
    "llama, causal": Case("llama", rope(), {"attention.causal": True}),
    "llama, biases": Case("llama", rope() | {"attention_bias": True, "mlp_bias": True}),
    "llama, biases of q, k and v alone": Case(
        "llama", rope() | {"attention_bias": True}, without=tuple(f"blk.{i}.attn_output.bias" for i in range(2)),
        change=lambda model: [layer.self_attn.o_proj.bias.zero_() for layer in model.model.layers],
    ),
    "llama, linear": Case("llama", rope(rope_type="linear", factor=4.0), LINEAR_FILE),
    "llama, linear by default": Case("llama", rope(rope_type="linear", factor=4.0), {"rope.scaling.factor": 4.0}),
    "llama, linear as once": Case("llama", rope(rope_type="linear", factor=4.0), {"rope.scale_linear": 4.0}),
    "llama, scaling none": Case("llama", rope(), {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "llama, rope_freqs": Case(
        "llama", rope(rope_type="llama3", **LLAMA3),
        tensors={"rope_freqs.weight": llama3_factors(16, 10000.0, 8.0, 1.0, 4.0, 64)},
    ),
    "llama, rope_freqs of 3.1": Case(
        "llama",
        rope(rope_type="llama3", **LLAMA3 | {"original_max_position_embeddings": 8192}, rope_theta=500000.0)
        | {"head_dim": 128},
        tensors={"rope_freqs.weight": llama3_factors(128, 500000.0, 8.0, 1.0, 4.0, 8192)},
    ),
    "llama, rope_freqs without a way between": Case(
        "llama", rope(rope_type="llama3", **LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 1.1}),
        tensors={"rope_freqs.weight": llama3_factors(16, 10000.0, 8.0, 1.0, 1.1, 64)},
    ),
    "llama, rope_freqs of ones": Case("llama", rope(), tensors={"rope_freqs.weight": np.ones(8, np.float32)}),
    "llama, yarn": Case("llama", yarn(), YARN_FILE),
    "llama, yarn, attn_factor": Case(
        "llama", yarn(attention_factor=1.5 * USUAL_SCALE), YARN_FILE | {"rope.scaling.attn_factor": 1.5}
    ),
    "llama, yarn, betas": Case(
        "llama", yarn(beta_fast=16.0, beta_slow=2.0),
        YARN_FILE | {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
    ),
    "llama, longrope": Case(
        "llama", {"rope_parameters": LONGROPE},
        {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 128,
         "rope.scaling.attn_factor": 1.19},
        FACTORS, lengths=(100, 200),
    ),
    "qwen2": Case("qwen2", rope(rope_theta=1000000.0)),
    "qwen2, tied": Case("qwen2", rope() | {"tie_word_embeddings": True}),
    "qwen2, yarn": Case("qwen2", yarn(), YARN_FILE),
    "qwen3": Case("qwen3", rope() | {"head_dim": 32}),
    "qwen3, biases": Case("qwen3", rope() | {"head_dim": 32, "attention_bias": True}),
    "qwen3, yarn": Case("qwen3", yarn() | {"head_dim": 16}, YARN_FILE),
    "granite": Case(
        "granite",
        rope() | {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
                  "logits_scaling": 5.0},
        {"attention.scale": 0.2, "embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 5.0},
    ),
    "granite, usual scales": Case("granite", rope() | {"attention_multiplier": 0.25}),
    "phi3": Case("phi3", rope()),
    "phi3, window": Case("phi3", rope() | {"sliding_window": 32}, {"attention.sliding_window": 32}),
    "phi3, partial rotary": Case("phi3", rope(partial_rotary_factor=0.75), {"rope.dimension_count": 12}),
    "phi3, longrope": Case(
        "phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128},
        {"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.19},
        FACTORS, lengths=(100, 200),
    ),
    "starcoder2": Case("starcoder2", rope()),
    "starcoder2, freq_base": Case("starcoder2", rope(rope_theta=999999.4375)),
    "gemma": Case("gemma", rope() | {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": Case("gemma2", rope() | GEMMA, GEMMA_FILE | CAPS),
    "gemma2, other caps": Case(
        "gemma2", rope() | GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
        GEMMA_FILE | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "gemma2, usual caps": Case("gemma2", rope() | GEMMA | CAPS, GEMMA_FILE),
    "gemma3": Case("gemma3", gemma3_rope() | GEMMA | PATTERN, GEMMA_FILE),
    "gemma3, local base": Case(
        "gemma3", gemma3_rope(local=3000.0) | GEMMA | PATTERN, GEMMA_FILE | {"rope.freq_base_swa": 3000.0}
    ),
    "gemma3, linear of global layers": Case(
        "gemma3", gemma3_rope(rope_type="linear", factor=8.0) | GEMMA | PATTERN,
        GEMMA_FILE | {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "gemma3, pattern": Case(
        "gemma3", gemma3_rope() | GEMMA | {"layer_types": ["full_attention", "sliding_attention"]},
        GEMMA_FILE | {"attention.sliding_window_pattern": [False, True]},
    ),
    "gemma3, pattern of two": Case(
        "gemma3", gemma3_rope() | GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
        GEMMA_FILE | {"attention.sliding_window_pattern": 2},
    ),
    "gemma3, scale and cap": Case(
        "gemma3", gemma3_rope() | GEMMA | PATTERN | {"query_pre_attn_scalar": 100, "final_logit_softcapping": 5.0},
        GEMMA_FILE | {"attention.scale": 0.1, "final_logit_softcapping": 5.0},
    ),
}  # fmt: skip
# both ways read one table, so each file is read in one of them, and the first of an architecture in both
FIRST = {case.architecture: name for name, case in reversed(CASES.items())}
PATHS = [(name, path) for i, (name, case) in enumerate(CASES.items()) for path in ("blocks", "numbers")
         if (name in FIRST.values() or i % 2 == (path == "blocks") or case.architecture not in WITH_BLOCKS)
         and (path == "numbers" or case.architecture in WITH_BLOCKS)]  # fmt: skip
OPTIONS = {"blocks": {"quantization": "file"}, "numbers": {"dtype": "float32"}}


@pytest.mark.parametrize(("name", "path"), PATHS)
def test_the_file_is_the_model(name: str, path: str, tmp_path: Path, cache: Path) -> None:
    case = CASES[name]
    model = model_of(FAMILIES[case.architecture].config, **case.settings)
    if case.change is not None:
        case.change(model)
    file = write_model(tmp_path / "a.gguf", model, case.architecture, case.extra, case.tensors, case.without)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loaded, _ = caw.load_model(file, device="cpu", **OPTIONS[path])
    for length in case.lengths:
        ids = torch.randint(3, len(TOKENS), (1, length), generator=torch.Generator().manual_seed(length))
        with torch.inference_mode():
            assert_close(loaded(ids).logits, model(ids).logits, "forward")


def test_every_architecture_is_in_the_table() -> None:
    assert {case.architecture for case in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
@pytest.mark.parametrize("architecture", WITH_BLOCKS)
def test_blocks_are_the_numbers(
    architecture: str, kind: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma and Granite scale what they look up, which a table of blocks has to do as well."""
    case = next(case for case in CASES.values() if case.architecture == architecture)
    model = model_of(FAMILIES[architecture].config, **case.settings)
    file = write_model(tmp_path / "a.gguf", model, architecture, case.extra, kinds=(kind,))
    blocks, numbers = (caw.load_model(file, device="cpu", **OPTIONS[path]) for path in ("blocks", "numbers"))
    ids = torch.randint(3, len(TOKENS), (1, 60), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert_close(blocks[0](ids).logits, numbers[0](ids).logits, "forward")
    layers, original = [], ops.decoder_stack
    monkeypatch.setattr(ops, "decoder_stack", lambda *given: layers.append(len(given[11])) or original(*given))
    texts = [caw.generate(*pair, [ids[0].tolist()], max_new_tokens=12, progress=False) for pair in (blocks, numbers)]
    assert texts[0].sequences == texts[1].sequences
    assert set(layers) == (set() if architecture == "starcoder2" else {model.config.num_hidden_layers}), "all in one"
