"""Models that accelerate spread: here over memory and a folder on disk, which takes the same road as several GPUs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import RAGGED, build, policy_of, prompt, tokenizer
from decoding.running import make_decoder, run
from transformers import AutoModelForCausalLM

import caw
from caw.decoding.eager_step import EagerStep
from caw.decoding.forward.sibling_cache import SpreadCache
from caw.models.facts import main_device


@pytest.fixture
def spread(tmp_path: Path) -> Any:
    build("llama").save_pretrained(tmp_path / "model")
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu",
              "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=str(tmp_path / "weights"), dtype=torch.float32
    )
    assert any(p.is_meta for p in model.parameters()), "nothing was spread"
    return model.eval()


@pytest.mark.parametrize("branching", ["tree", "sequential"])
def test_a_spread_model_gives_the_same_tokens(llama: Any, spread: Any, branching: str) -> None:
    watermark, policy = caw.EXP(key=9, top_k=30, context_width=2), policy_of(llama, theta=1.0)
    prompts = [*RAGGED, prompt(5, 7), prompt(2, 8)]
    settings: dict[str, Any] = {"batch": 3, "slots": 2, "branching": branching, "budgets": [3, 12, 5, 12, 7, 12]}
    expected = run(llama, prompts, watermark, policy, **settings)
    actual = run(spread, prompts, watermark, policy, fixed=True, **settings)
    assert actual.tokens == expected.tokens
    assert expected.overflows > 0
    assert len(actual.steps[-1][0]) < 3, "the batch shrinks"


def test_the_public_way_in_takes_it(llama: Any, spread: Any) -> None:
    out = [caw.generate(m, tokenizer(), RAGGED, watermark=caw.KGW(key=1), max_new_tokens=5) for m in (llama, spread)]
    assert out[0].sequences == out[1].sequences


def test_each_layer_has_its_own_cache(llama: Any, spread: Any) -> None:
    assert main_device(llama) is None
    assert main_device(spread) == torch.device("cpu")
    decoder = make_decoder(spread, batch=2, fixed=True)
    assert isinstance(decoder.cache, SpreadCache)
    assert isinstance(decoder.steps(), EagerStep), "no graph spans devices"


def test_a_spread_model_reads_prompts_once(llama: Any, spread: Any) -> None:
    prompts, kept = [*RAGGED, *[prompt(40, 50) + prompt(3, i) for i in range(2)]], caw.PromptCache()
    expected = run(llama, prompts).tokens
    assert run(spread, prompts[4:], batch=1).tokens == expected[4:], "their beginning is shared"
    for _ in range(2):
        assert run(spread, prompts, batch=3, prompt_cache=kept).tokens == expected
    assert (kept.found, kept.missed) == (len(prompts), len(prompts))
