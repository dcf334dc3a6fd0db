"""The public way in: identity 1, and texts, ids and traces that belong together."""

import copy
import warnings
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, VOCAB, build, spread_evaluator, tokenizer
from decoding.brute_force import BruteForce, agree
from generating import PROMPTS, WATERMARKS, Recorder, generate, stock_greedy, text_of
from transformers import TextIteratorStreamer, TextStreamer

import caw
from caw.decoding.capture import graph_pool
from caw.decoding.forward.sibling_cache import SiblingCache
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
    assert f"{out!r}".startswith(f"GenerationOutput({len(out.texts)} texts, the first ") and len(repr(out)) < 300
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


def test_evaluator_of_fewer_values_is_used(model: Any) -> None:
    evaluator = Evaluator(FeatureSpec(k=7), hidden=4).eval()
    policy = caw.CapacityPolicy(evaluator, theta=1.0)
    out = generate(model, watermark=caw.KGW(key=1), policy=policy)
    reference = BruteForce(model, caw.KGW(key=1), policy, eos=(2,))
    for ids, tokens in zip(PROMPTS, out.sequences, strict=True):
        agree(tokens, reference.decode(ids, 12), reference, ids, "seven values")


QUESTIONS = ["The capital of France is", "Once",
             "Q: A train travels 60 km in 40 minutes. How fast is it?\nA:"]  # fmt: skip


@pytest.mark.slow
def test_demo_model_theta_zero_is_its_own_text(demo_model: Any, demo_tokenizer: Any) -> None:
    asked = [demo_tokenizer(text)["input_ids"] for text in QUESTIONS]
    stock = [stock_greedy(demo_model, ids, max_new_tokens=16) for ids in asked]
    policy = caw.CapacityPolicy(spread_evaluator(demo_model), theta=0.0)
    out = caw.generate(
        demo_model, demo_tokenizer, QUESTIONS, watermark=caw.EXP(key=3), policy=policy, max_new_tokens=16
    )
    reference = BruteForce(demo_model, eos=tuple(demo_model.generation_config.eos_token_id))
    cases = 0
    for ids, tokens, own in zip(asked, out.sequences, stock, strict=True):
        cases += agree(tokens, own, reference, ids, "demo theta 0")
    assert cases <= 1


def ends_of(model: Any, *ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.generation_config, "eos_token_id", list(ends))


def test_any_end_token_ends_a_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = generate(model).sequences
    ends_of(model, free[0][3], free[2][5], monkeypatch=monkeypatch)
    ends = {free[0][3], free[2][5], 2}
    out = generate(model)
    for tokens, whole, text, reason in zip(out.sequences, free, out.texts, out.finish_reasons, strict=True):
        at = next((i for i, t in enumerate(whole) if t in ends), len(whole) - 1)
        assert tokens == whole[: at + 1]
        assert reason == ("eos" if whole[at] in ends else "length")
        assert text == text_of([t for t in (tokens[:-1] if reason == "eos" else tokens) if t > 2])
    assert out.finish_reasons[0] == out.finish_reasons[2] == "eos"


def test_end_ids_beyond_the_vocabulary_are_ignored(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer may know end tokens that the model's logits do not have."""
    expected = generate(model).sequences
    ends_of(model, 2, VOCAB + 5, monkeypatch=monkeypatch)
    assert generate(model).sequences == expected
    generate(model, min_new_tokens=3)


def test_stop_string_over_several_tokens(model: Any) -> None:
    free = generate(model)
    tokens = free.sequences[0]
    stop = text_of(tokens[4:7])
    first = text_of(tokens).find(stop)
    out = generate(model, stop=stop)
    assert out.finish_reasons[0] == "stop"
    assert out.sequences[0] == tokens[: first + 3]
    assert out.texts[0] == text_of(tokens[:first])
    assert out.sequences[1:] == [s for s in free.sequences[1:] if stop not in text_of(s)]


def test_model_is_left_as_it_was(model: Any) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(spread_evaluator(model)))
    assert (model.config.to_dict(), model.generation_config.to_dict()) == (config, generation)
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


def test_model_is_its_own_between_results(model: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6, "batch_size": 1}
    alone = [r.tokens for r in caw.iter_generate(model, tokenizer(), PROMPTS, **options)]
    stock = stock_greedy(model, PROMPTS[0], max_new_tokens=6)
    pairs = zip(*(caw.iter_generate(model, tokenizer(), PROMPTS, **options) for _ in range(2)), strict=True)
    for index, (a, b) in enumerate(pairs):
        assert model.config._attn_implementation == "sdpa"
        assert stock_greedy(model, PROMPTS[0], max_new_tokens=6) == stock
        assert a.tokens == b.tokens == alone[index]


@pytest.mark.parametrize("native", [True, False])
def test_a_model_cast_after_loading_is_read_anew(native: bool) -> None:
    backend = None if native else "reference"
    model = copy.deepcopy(build("llama")).bfloat16()  # what `build` gives is shared by all tests
    rough = generate(model, backend=backend)
    model.float()
    expected = generate(copy.deepcopy(model), backend=backend)
    assert generate(model, backend=backend).sequences == expected.sequences
    assert [stock_greedy(model, ids, max_new_tokens=12) for ids in PROMPTS] == expected.sequences
    model.bfloat16()
    assert generate(model, backend=backend).sequences == rough.sequences


def test_a_model_cast_while_it_decodes_is_said(model: Any) -> None:
    model = copy.deepcopy(model)
    iterator = caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3)
    model.bfloat16()
    with pytest.raises(RuntimeError, match=r"must stay on its dtype and device .*float32 on cpu\), found torch"):
        next(iterator)


def dropping() -> Any:
    """GPT-2 as its config makes it, in train mode but for its first layer."""
    model = copy.deepcopy(build("gpt2")).train()
    assert model.config.resid_pdrop == 0.1
    model.transformer.h[0].eval()
    return model


def modes(model: Any) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "seed": 5}, {"branching": "batch"}, {"backend": "reference"}]
)
def test_train_mode_decodes_as_eval_mode(options: dict[str, Any]) -> None:
    model = dropping()
    before = modes(model)
    given: dict[str, Any] = {
        "watermark": caw.KGW(key=1),
        "policy": caw.CapacityPolicy(spread_evaluator(model)),
        **options,
    }
    with pytest.warns(UserWarning, match=r"in train mode and transformer\.drop would apply dropout.*mode is restored"):
        first = generate(model, **given).sequences
    assert modes(model) == before
    with pytest.warns(UserWarning):
        assert generate(model, **given).sequences == first
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(model.eval(), **given).sequences == first


def test_train_mode_without_dropout_is_no_reason_to_warn(model: Any) -> None:
    expected, model = generate(model).sequences, copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert generate(model.train(), PROMPTS).sequences == expected
    assert model.training


@pytest.mark.filterwarnings("ignore:the model is in train mode")
def test_train_mode_is_back_whatever_happens() -> None:
    model = dropping()
    before = modes(model)
    iterator = caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=6, batch_size=1)
    next(iterator)
    assert modes(model) == before
    iterator.close()
    assert modes(model) == before
    seen = []

    def fail(module: Any, given: Any, out: Any) -> None:
        seen.append(module.training)
        if len(seen) == 3:
            raise KeyboardInterrupt

    handle = model.lm_head.register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        generate(model)
    handle.remove()
    assert seen == [False] * 3
    assert modes(model) == before


def test_streamer_gets_prompt_tokens_and_end(model: Any) -> None:
    recorder = Recorder()
    out = generate(model, PROMPTS[:1], streamer=recorder, watermark=caw.EXP(key=1))
    assert recorder.given == [[PROMPTS[0]], *[[t] for t in out.sequences[0]]]
    assert recorder.ended == 1


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_transformers_streamers_show_the_text(model: Any, skip_prompt: bool, capsys: pytest.CaptureFixture) -> None:
    out = generate(model, PROMPTS[:1], streamer=TextStreamer(tokenizer(), skip_prompt=skip_prompt))
    shown = capsys.readouterr().out.rstrip("\n")
    assert shown == ("" if skip_prompt else text_of(PROMPTS[0])) + out.texts[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_inside_restores_attention_and_ends_the_stream(
    model: Any, at: int, error: type[BaseException]
) -> None:
    recorder = Recorder(at, error)
    with pytest.raises(error):
        generate(model, PROMPTS[:1], streamer=recorder)
    assert recorder.ended == 1
    assert model.config._attn_implementation == "sdpa"
    assert not torch.is_inference_mode_enabled()
    assert generate(model, PROMPTS[:1]).sequences == generate(model).sequences[:1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_an_interruption_gives_the_cache_back_at_once(
    model: Any, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SiblingCache] = []
    monkeypatch.setattr(graph_pool, "SiblingCache", lambda *a, **k: made.append(SiblingCache(*a, **k)) or made[-1])
    if error:
        iterator = caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=30, streamer=Recorder(3, error))
        with pytest.raises(error) as caught:
            next(iterator)
        assert caught.tb is not None
    else:
        iterator = caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=30, batch_size=1)
        next(iterator)
        assert made[-1].store is not None
        iterator.close()
    assert made[-1].store is None
    assert made[-1].scratch is None
    assert made[-1].layers[0].keys is None


def test_bad_input_ends_the_stream_too(model: Any) -> None:
    """Whoever waits in another thread for the text must not wait for ever."""
    streamer = TextIteratorStreamer(tokenizer(), timeout=1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate(model, PROMPTS[:1], streamer=streamer, max_new_tokens=0)
    assert list(streamer) == [""]


def test_a_stream_ends_though_nobody_asked_for_a_result(model: Any) -> None:
    for drop in (lambda iterator: iterator.close(), lambda iterator: None):
        streamer = TextIteratorStreamer(tokenizer(), timeout=1)
        drop(caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3, streamer=streamer))
        assert list(streamer) == [""]
