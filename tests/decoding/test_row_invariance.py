"""A text is the same, bit for bit, alone and beside any others, in bfloat16 as in float32 (identity 10)."""

import copy
from typing import Any

import pytest
import torch

import caw
from caw import ops
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.prefill import prefill
from tests.decoding.architectures import build, prompt, tokenizer

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# fused, with a window, merged matrices or multipliers, and run as transformers has them. Capped logits are left out:
# torch computes tanh of a tensor's last few numbers otherwise than of the rest, unless a row is a multiple of 32
MODELS = pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3", "phi3", "granite", "gpt2"])
ROWS = (*range(1, 10), 16, 17, 31, 33, 64, 96)


def model_of(name: str, dtype: torch.dtype) -> Any:
    return copy.deepcopy(build(name)).to(dtype)


def first_logits(model: Any, prompts: list[list[int]], kept: Any = None, shared: int = 0) -> torch.Tensor:
    cache = SiblingCache(model.config.num_hidden_layers, len(prompts), 128, 2, torch.device("cpu"))
    with torch.inference_mode(), caw_attention(model), FusedForwards(model, enabled=True):
        return prefill(model, cache, list(range(len(prompts))), prompts, 0, shared, kept)[0]


@DTYPES
@MODELS
def test_a_prompt_alone_grouped_shared_and_kept(name: str, dtype: torch.dtype) -> None:
    model, start = model_of(name, dtype), prompt(37)
    prompts = [start + prompt(n, seed=n) for n in (5, 1, 40, 13)]
    alone = torch.cat([first_logits(model, [p]) for p in prompts])
    assert torch.equal(first_logits(model, prompts), alone)
    assert torch.equal(first_logits(model, prompts[::-1]), alone.flip(0))
    assert torch.equal(first_logits(model, prompts, shared=37), alone)
    kept = caw.PromptCache()
    kept.bind(model, torch.device("cpu"))
    for _ in range(2):
        assert torch.equal(first_logits(model, prompts, kept, shared=33), alone)
    assert kept.found == len(prompts)


@DTYPES
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "phi3", "granite"])
def test_texts_do_not_depend_on_the_batch(name: str, dtype: torch.dtype) -> None:
    model, prompts = model_of(name, dtype), [prompt(3 + 5 * n % 29, seed=n) for n in range(12)]
    watermark = caw.KGW(key=3, delta=3.0)

    def texts(batch: int, **options: Any) -> list[list[int]]:
        return caw.generate(
            model, tokenizer(), prompts, watermark=watermark, policy=caw.EntropyThreshold(0.5), max_new_tokens=8,
            batch_size=batch, seed=4, progress=False, **options,
        ).sequences  # fmt: skip

    alone = texts(1)
    for batch in (3, 12):
        assert texts(batch) == alone
    assert texts(8, branching="sequential") == alone
    assert texts(12, do_sample=True) == texts(1, do_sample=True)


@DTYPES
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "phi3", "granite"])
def test_what_torch_does_in_a_step_does_not_depend_on_the_rows(name: str, dtype: torch.dtype) -> None:
    """Rotation, the last norm and records: the only parts of a fused step that are not this library's operators."""
    model = model_of(name, dtype)
    types = [("sliding_attention",), ("full_attention",)] if name == "gemma3" else [()]
    hidden = torch.randn(96, 1, model.config.hidden_size).to(dtype)
    logits, positions = torch.randn(96, 5003), torch.randint(0, 100, (96, 1))

    def parts(rows: int) -> list[torch.Tensor]:
        rotary = [x for one in types for x in model.model.rotary_emb(hidden[:rows], positions[:rows], *one)]
        return [*rotary, model.model.norm(hidden[:rows]), *ops.topk_softmax(logits[:rows].clone(), 100)]

    with torch.inference_mode():
        together = parts(96)
        for rows in ROWS:
            for part, whole in zip(parts(rows), together, strict=True):
                assert torch.equal(part, whole[:rows])
