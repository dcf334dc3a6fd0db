"""Bias, penalties and min_p of `caw.generate`: texts as `model.generate` makes them, whatever else is asked for."""

from typing import Any

import pytest
import torch
from decoding.architectures import VOCAB, build
from generating import PROMPTS, WATERMARKS, generate, stock_greedy
from scipy import stats

import caw

BIAS = {3: 2.5, 8: -100.0}
STOCK: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"repetition_penalty": 0.8, "min_new_tokens": 6}, {"repetition_penalty": 0.8, "min_new_tokens": 6}),
    ({"logit_bias": BIAS}, {"sequence_bias": {(token,): bias for token, bias in BIAS.items()}}),
    ({"logit_bias": BIAS, "repetition_penalty": 1.7},
     {"sequence_bias": {(token,): bias for token, bias in BIAS.items()}, "repetition_penalty": 1.7}),
]  # fmt: skip
MANY = {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": -0.4, "logit_bias": BIAS}


@pytest.fixture
def model() -> Any:
    return build("llama")


@pytest.mark.parametrize(("own", "stock"), STOCK)
def test_greedy_texts_are_those_of_transformers(model: Any, own: dict[str, Any], stock: dict[str, Any]) -> None:
    out = generate(model, **own)
    assert out.sequences == [stock_greedy(model, ids, max_new_tokens=12, **stock) for ids in PROMPTS]
    assert out.sequences != generate(model).sequences


@pytest.mark.parametrize("settings", [
    {}, {"temperature": 1.5, "top_k": 40, "top_p": 0.8}, {"min_p": 0.3},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.95, "min_p": 0.1}, {"repetition_penalty": 1.5, "min_p": 0.1},
])  # fmt: skip
def test_samples_follow_transformers_distribution(model: Any, settings: dict[str, Any]) -> None:
    """Chi-square test of 3000 first tokens against transformers' processors; false alarms: 1 in 10 000."""
    ids, draws = PROMPTS[0], 3000
    out = generate(
        model, [ids] * draws, max_new_tokens=1, do_sample=True, batch_size=500, return_trace=False, **settings
    )
    processed = model.generate(
        torch.tensor([ids]), do_sample=True, max_new_tokens=1, output_scores=True, return_dict_in_generate=True,
        pad_token_id=0, **{"top_k": 0, **settings},
    ).scores[0][0]  # fmt: skip
    assert processed.isneginf().any() or not settings
    expected = draws * processed.double().softmax(0)
    observed = torch.bincount(torch.tensor([s[0] for s in out.sequences]), minlength=VOCAB).double()
    assert not observed[expected == 0].any(), "a token that is excluded was drawn"
    rare = expected < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]).numpy() for x in (observed, expected)]
    pooled = [x[:-1] for x in pooled] if pooled[1][-1] == 0 else pooled
    assert stats.chisquare(*pooled).pvalue > 1e-4


@pytest.mark.parametrize("watermark", WATERMARKS)
@pytest.mark.parametrize("sample", [False, True])
def test_inside_models_own_generate(model: Any, watermark: str, sample: bool) -> None:
    mark, how = WATERMARKS[watermark], {"repetition_penalty": 1.4, **({"min_p": 0.05} if sample else {})}
    ids = PROMPTS[0]
    own = generate(model, [ids], watermark=mark, do_sample=sample, seed=5, mark_eos=True, **how).sequences[0]
    inside = model.generate(
        torch.tensor([ids]), custom_generate=caw.decode, watermark=mark, do_sample=sample, max_new_tokens=12, seed=5,
        mark_eos=True, pad_token_id=0, **{**how, "top_k": 0},
    )  # fmt: skip
    assert inside[0, len(ids) :].tolist() == own


def test_the_original_token_is_the_best_of_the_processed_logits(model: Any) -> None:
    for mark in WATERMARKS.values():
        silent = generate(model, watermark=mark, policy=caw.FixedStrength(0.0), **MANY)
        assert silent.sequences == generate(model, **MANY).sequences


def test_values_out_of_range_are_refused(model: Any) -> None:
    for options, said in (
        ({"repetition_penalty": 0}, r"repetition_penalty must be a number in \[0.01, 100\], got 0"),
        ({"presence_penalty": 2.1}, r"presence_penalty must be a number in \[-2, 2\], got 2.1"),
        ({"frequency_penalty": float("nan")}, r"frequency_penalty must be a number in \[-2, 2\]"),
        ({"min_p": -0.1}, r"min_p must be a number in \[0, 1\]"),
        ({"logit_bias": {5: 101}}, r"logit_bias of token 5 must be a number in \[-100, 100\], got 101"),
        ({"logit_bias": {-1: 1}}, "a token id in logit_bias must be an integer in"),
        ({"logit_bias": {"5": 1}}, "a token id in logit_bias must be an integer"),
        ({"logit_bias": [5]}, "logit_bias must be a mapping of token ids to numbers, got list"),
        ({"logit_bias": 5}, "logit_bias must be a mapping of token ids to numbers, got int"),
        ({"logit_bias": {VOCAB: 1}}, f"logit_bias must name token ids below the model's vocabulary size {VOCAB}, got"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=said):
            generate(model, **options)
