"""The public way in: identity 1, and texts, ids and traces that belong together."""

from __future__ import annotations

from typing import Any

import pytest
from decoding.architectures import CONFIGS, build, spread_evaluator, tokenizer
from decoding.brute_force import BruteForce, agree
from generating import PROMPTS, WATERMARKS, generate, stock_greedy, text_of

import caw
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec


@pytest.fixture
def model() -> Any:
    return build("llama")


@pytest.mark.parametrize("watermark", [None, *WATERMARKS])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_theta_zero_is_the_models_own_greedy_text(name: str, watermark: str | None) -> None:
    model = build(name)
    policy = caw.CapacityPolicy(spread_evaluator(model), theta=0.0) if watermark else None
    out = generate(model, watermark=WATERMARKS.get(watermark or ""), policy=policy)
    reference = BruteForce(model, eos=(2,))
    for ids, tokens in zip(PROMPTS, out.sequences, strict=True):
        agree(tokens, stock_greedy(model, ids, max_new_tokens=12), reference, ids, f"{name} {watermark}")
    assert out.trace is not None
    assert all(c == 0 for trace in out.trace for c in trace.choice)


def test_texts_sequences_and_trace_belong_together(model: Any) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(model), theta=0.9)
    texts = [text_of(ids) for ids in PROMPTS]
    out = generate(model, texts, watermark=caw.EXP(key=5), policy=policy, batch_size=2)
    assert out.sequences == generate(model, watermark=caw.EXP(key=5), policy=policy).sequences
    assert out.trace is not None
    assert [t.tokens for t in out.trace] == out.sequences
    assert out.num_tokens == sum(map(len, out.sequences)) > 0
    assert out.tokens_per_second > 0
    for tokens, text in zip(out.sequences, out.texts, strict=True):
        assert text == text_of([t for t in tokens if t > 2])


def test_one_string_is_one_prompt(model: Any) -> None:
    text = text_of(PROMPTS[0])
    assert (
        generate(model, text).sequences == generate(model, [text]).sequences == generate(model, PROMPTS[:1]).sequences
    )


def test_empty_list_gives_an_empty_result(model: Any) -> None:
    out = generate(model, [])
    assert (out.texts, out.sequences, out.trace, out.finish_reasons, out.num_tokens) == ([], [], [], [], 0)
    assert list(caw.iter_generate(model, tokenizer(), [])) == []


def test_no_trace_unless_asked_for(model: Any) -> None:
    assert generate(model, return_trace=False).trace is None
    assert all(r.trace is None for r in caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=2,
                                                          return_trace=False))  # fmt: skip


@pytest.mark.parametrize("watermark", [None, "exp"])
def test_one_new_token(model: Any, watermark: str | None) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(model, 2, 1), theta=1.0) if watermark else None
    options: dict[str, Any] = {"watermark": WATERMARKS.get(watermark or ""), "policy": policy}
    one, many = generate(model, max_new_tokens=1, **options), generate(model, max_new_tokens=12, **options)
    assert one.sequences == [s[:1] for s in many.sequences]
    assert one.finish_reasons == ["length"] * 3


def test_reference_backend_gives_the_same(model: Any) -> None:
    options: dict[str, Any] = {"watermark": caw.EXP(key=4), "do_sample": True, "seed": 3,
                               "policy": caw.CapacityPolicy(spread_evaluator(model), theta=1.0)}  # fmt: skip
    default, reference = (generate(model, backend=backend, **options) for backend in (None, "reference"))
    assert default.sequences == reference.sequences


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_attention_of_prompts_changes_no_text(model: Any, how: str) -> None:
    assert generate(model, prefill_attention=how).sequences == generate(model).sequences


def test_evaluator_of_fewer_values_is_used(model: Any) -> None:
    evaluator = Evaluator(FeatureSpec(k=7), hidden=4).eval()
    policy = caw.CapacityPolicy(evaluator, theta=1.0)
    out = generate(model, watermark=caw.KGW(key=1), policy=policy)
    reference = BruteForce(model, caw.KGW(key=1), policy, eos=(2,))
    for ids, tokens in zip(PROMPTS, out.sequences, strict=True):
        agree(tokens, reference.decode(ids, 12), reference, ids, "seven values")


def test_repeated_contexts_stay_unmarked(model: Any) -> None:
    watermark = caw.EXP(key=3, context_width=1, top_k=30)
    out = generate(model, PROMPTS, watermark=watermark, max_new_tokens=90)
    assert out.trace is not None
    repeats = marked = 0
    for trace in out.trace:
        seen: set[int] = set()
        for previous, row in zip([-1, *trace.tokens], trace, strict=False):
            if previous in seen:
                assert row.candidates == (row.token,)
                repeats += 1
            marked += row.choice > 0
            seen.add(previous)
    assert repeats > 10
    assert marked > 10
    twice = generate(model, PROMPTS, watermark=caw.EXP(key=3, context_width=1, top_k=30, deduplicate=False),
                     max_new_tokens=90)  # fmt: skip
    assert twice.sequences != out.sequences


QUESTIONS = ["The capital of France is", "Once",
             "Q: A train travels 60 km in 40 minutes. How fast is it?\nA:"]  # fmt: skip


@pytest.mark.slow
def test_demo_model_theta_zero_is_its_own_text(demo_model: Any, demo_tokenizer: Any) -> None:
    asked = [demo_tokenizer(text)["input_ids"] for text in QUESTIONS]
    stock = [stock_greedy(demo_model, ids, max_new_tokens=30) for ids in asked]
    policy = caw.CapacityPolicy(spread_evaluator(demo_model), theta=0.0)
    out = caw.generate(
        demo_model, demo_tokenizer, QUESTIONS, watermark=caw.EXP(key=3), policy=policy, max_new_tokens=30
    )
    reference = BruteForce(demo_model, eos=tuple(demo_model.generation_config.eos_token_id))
    cases = 0
    for ids, tokens, own in zip(asked, out.sequences, stock, strict=True):
        cases += agree(tokens, own, reference, ids, "demo theta 0")
    assert cases <= 1
