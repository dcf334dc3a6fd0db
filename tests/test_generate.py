"""The public way in: identity 1, ends, stops, streams, interruptions, and one sentence for each bad input."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import CONFIGS, POSITIONS, VOCAB, build, character, prompt, spread_evaluator, tokenizer
from decoding.brute_force import BruteForce, agree
from scipy import stats
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import caw
from caw.decoding import slots
from caw.decoding.kv_cache import SiblingCache
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec

PROMPTS = [prompt(9), prompt(1, 2), prompt(14, 1)]
WATERMARKS = {"kgw": caw.KGW(key=1), "unigram": caw.Unigram(key=2, gamma=0.5), "exp": caw.EXP(key=3)}


@pytest.fixture
def model() -> Any:
    return build("llama")


def generate(model: Any, prompts: Any = PROMPTS, **options: Any) -> caw.GenerationOutput:
    return caw.generate(model, tokenizer(), prompts, **{"max_new_tokens": 12, **options})


def text_of(tokens: list[int]) -> str:
    return "".join(map(character, tokens))


def ends_of(model: Any, *ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.generation_config, "eos_token_id", list(ends))


def stock_greedy(model: Any, ids: list[int], **options: Any) -> list[int]:
    """What transformers' own generate adds to one prompt."""
    out = model.generate(torch.tensor([ids]), do_sample=False, pad_token_id=0, **options)
    return out[0, len(ids) :].tolist()


# Identity 1 --------------------------------------------------------------------------------------------------------


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


def test_minimum_is_transformers_minimum(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = stock_greedy(model, PROMPTS[0], max_new_tokens=12)
    ends_of(model, first[2], first[4], monkeypatch=monkeypatch)
    for ids, tokens in zip(PROMPTS, generate(model, min_new_tokens=4).sequences, strict=True):
        assert tokens == stock_greedy(model, ids, max_new_tokens=12, min_new_tokens=4)


# Results -----------------------------------------------------------------------------------------------------------


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


def test_id_prompts_may_be_tensors(model: Any) -> None:
    expected = generate(model).sequences
    assert generate(model, [torch.tensor(p) for p in PROMPTS]).sequences == expected
    assert generate(model, [np.array(p) for p in PROMPTS]).sequences == expected
    assert generate(model, tuple(map(tuple, PROMPTS))).sequences == expected


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


def test_model_is_left_as_it_was(model: Any) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config, generation = model.config.to_dict(), model.generation_config.to_dict()
    generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(spread_evaluator(model)))
    assert (model.config.to_dict(), model.generation_config.to_dict()) == (config, generation)
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


# Ends and stops -----------------------------------------------------------------------------------------------------


def test_any_end_token_ends_a_text(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends in the middle: the ending token is in the sequence but not in the text; others decode on."""
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


def test_the_earliest_of_several_stops_counts(model: Any) -> None:
    tokens = generate(model).sequences[0]
    stops = [text_of(tokens[6:8]), text_of(tokens[3:5]), "not in any text"]
    ends = [text_of(tokens).find(s) + len(s) for s in stops[:2]]
    out = generate(model, stop=stops)
    assert out.sequences[0] == tokens[: min(ends)]
    assert out.texts[0] == text_of(tokens[: min(text_of(tokens).find(s) for s in stops[:2])])


def test_stop_counts_only_new_text(model: Any) -> None:
    """The prompt may hold the stop string."""
    stop = text_of(PROMPTS[0][-2:])
    assert stop not in generate(model).texts[0]
    assert generate(model, PROMPTS[:1], stop=stop).finish_reasons == ["length"]


# Streams and interruptions ------------------------------------------------------------------------------------------


class Recorder(BaseStreamer):
    """Keeps what it is given; raises `error` when the token number `at` comes."""

    def __init__(self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.given: list[Any] = []
        self.ended, self.at, self.error = 0, at, error

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())
        if len(self.given) - 1 == self.at:
            raise self.error

    def end(self) -> None:
        self.ended += 1


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


def test_an_error_in_the_model_restores_attention(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, calls = Recorder(), []
    inner = model.model.layers[1].forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return inner(*args, **kwargs)

    monkeypatch.setattr(model.model.layers[1], "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(model, PROMPTS[:1], streamer=recorder)
    assert (model.config._attn_implementation, recorder.ended) == ("sdpa", 1)


def test_bad_input_ends_the_stream_too(model: Any) -> None:
    """Whoever waits in another thread for the text must not wait for ever."""
    streamer = TextIteratorStreamer(tokenizer(), timeout=1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate(model, PROMPTS[:1], streamer=streamer, max_new_tokens=0)
    assert list(streamer) == [""]


def test_closing_early_frees_the_model(model: Any) -> None:
    recorder = Recorder()
    iterator = caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3, streamer=recorder)
    assert next(iterator).index == 0
    iterator.close()
    assert (model.config._attn_implementation, recorder.ended) == ("sdpa", 1)


def test_a_stream_ends_though_nobody_asked_for_a_result(model: Any) -> None:
    for drop in (lambda iterator: iterator.close(), lambda iterator: None):
        streamer = TextIteratorStreamer(tokenizer(), timeout=1)
        drop(caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3, streamer=streamer))
        assert list(streamer) == [""]


def test_the_coldest_sample_is_greedy(model: Any) -> None:
    cold = generate(model, do_sample=True, temperature=1e-6, seed=5)
    assert cold.sequences == generate(model).sequences


@pytest.mark.parametrize("native", [True, False])
def test_a_model_cast_after_loading_is_read_anew(native: bool) -> None:
    """No packed or fused weight outlives the tensors it was made from."""
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
    with pytest.raises(RuntimeError, match=r"expected the model as it was .*float32 on cpu\), found torch.bfloat16"):
        next(iterator)


def test_model_is_its_own_between_results(model: Any) -> None:
    """Two iterators over one model, and its own generate in between, disturb nothing."""
    options: dict[str, Any] = {"max_new_tokens": 6, "batch_size": 1}
    alone = [r.tokens for r in caw.iter_generate(model, tokenizer(), PROMPTS, **options)]
    stock = stock_greedy(model, PROMPTS[0], max_new_tokens=6)
    pairs = zip(*(caw.iter_generate(model, tokenizer(), PROMPTS, **options) for _ in range(2)), strict=True)
    for index, (a, b) in enumerate(pairs):
        assert model.config._attn_implementation == "sdpa"
        assert stock_greedy(model, PROMPTS[0], max_new_tokens=6) == stock
        assert a.tokens == b.tokens == alone[index]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_models_own_attention_comes_back(model: Any, implementation: str) -> None:
    model.set_attn_implementation(implementation)
    try:
        generate(model)
        assert model.config._attn_implementation == implementation
    finally:
        model.set_attn_implementation("sdpa")


# Sampling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.7, "top_k": 20}, {"temperature": 1.5, "top_p": 0.8, "top_k": 50}]
)
def test_samples_follow_transformers_distribution(model: Any, settings: dict[str, Any]) -> None:
    """Chi-square test of 3000 first tokens against transformers' warpers; false alarms: 1 in 10 000."""
    ids, draws = PROMPTS[0], 3000
    out = generate(
        model, [ids] * draws, max_new_tokens=1, do_sample=True, batch_size=500, return_trace=False, **settings
    )
    processed = model.generate(
        torch.tensor([ids]), do_sample=True, max_new_tokens=1, output_scores=True, return_dict_in_generate=True,
        pad_token_id=0, **{"top_k": 0, **settings},
    ).scores[0][0]  # fmt: skip
    expected = draws * processed.double().softmax(0)
    observed = torch.bincount(torch.tensor([s[0] for s in out.sequences]), minlength=VOCAB).double()
    assert not observed[expected == 0].any(), "a token that the warpers exclude was drawn"
    rare = expected < 5
    pooled = [torch.cat([x[~rare], x[rare].sum()[None]]).numpy() for x in (observed, expected)]
    if pooled[1][-1] == 0:
        pooled = [x[:-1] for x in pooled]
    assert stats.chisquare(*pooled).pvalue > 1e-4


def test_seed_and_prompt_decide_the_sample(model: Any) -> None:
    first = generate(model, do_sample=True, seed=1).sequences
    assert first == generate(model, do_sample=True, seed=1, batch_size=1).sequences
    assert first != generate(model, do_sample=True, seed=2).sequences
    assert first[::-1] == generate(model, PROMPTS[::-1], do_sample=True, seed=1).sequences


def test_repeated_contexts_stay_unmarked(model: Any) -> None:
    """deduplicate=True leaves every token after a context that occurred before to the model."""
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


# Bad input ----------------------------------------------------------------------------------------------------------

TOO_LONG = prompt(POSITIONS)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a number of prompts": ({"prompts": 5}, TypeError, "prompts must be a str, a list"),
    "bytes": ({"prompts": b"text"}, TypeError, "prompts must be a str, a list"),
    "flat ids": ({"prompts": [1, 2]}, TypeError, "wrap it in a list"),
    "floats": ({"prompts": [[1.5]]}, TypeError, "prompt 0 must be a str or a list of token ids"),
    "None prompts": ({"prompts": [None, None]}, TypeError, "prompt 0 must be a str or a list of token ids"),
    "empty prompts": ({"prompts": [[], []]}, ValueError, "prompt 0 must have at least one token"),
    "empty text": ({"prompts": ""}, ValueError, "prompt 0 must have at least one token"),
    "foreign id": ({"prompts": [[3, VOCAB]]}, ValueError, f"vocabulary size {VOCAB}, got {VOCAB}"),
    "negative id": ({"prompts": [[3, -1]]}, ValueError, "got -1"),
    "too long": ({"prompts": [TOO_LONG]}, ValueError, f"the model's {POSITIONS} positions, got {POSITIONS}"),
    "no new tokens": ({"max_new_tokens": 0}, ValueError, "max_new_tokens must be an integer in"),
    "half a token": ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens must be an integer"),
    "minimum above maximum": ({"min_new_tokens": 13}, ValueError, "min_new_tokens must be an integer in [0, 12]"),
    "branching": ({"branching": "forest"}, ValueError, "branching must be one of tree, sequential, batch"),
    "temperature": ({"temperature": 0.0, "do_sample": True}, ValueError, "temperature must be a number in [1e-06"),
    "cold": ({"temperature": 1e-7}, ValueError, "temperature must be a number in [1e-06, 10000], got 1e-07"),
    "compile of reference": ({"compile": True, "backend": "reference"}, ValueError, "compile=True needs"),
    "compile of a foreign format": (
        {"compile": True, "watermark": caw.KGW(key=1, format="transformers")}, ValueError,
        "leave compile out",
    ),
    "nan temperature": ({"temperature": float("nan")}, ValueError, "temperature must be a number"),
    "top_k": ({"top_k": -1}, ValueError, "top_k must be an integer in [0"),
    "top_p": ({"top_p": 0.0}, ValueError, "top_p must be in (0, 1]"),
    "top_p above 1": ({"top_p": 1.1}, ValueError, "top_p must be a number in [0, 1]"),
    "seed": ({"seed": -1}, ValueError, "seed must be an integer in [0"),
    "seed type": ({"seed": "7"}, TypeError, "seed must be an integer"),
    "batch size": ({"batch_size": 0}, ValueError, "batch_size must be an integer in [1"),
    "batch size type": ({"batch_size": "4"}, TypeError, "batch_size must be an integer"),
    "slots": ({"slots": 0}, ValueError, "slots must be an integer in [1"),
    "empty stop": ({"stop": [""]}, ValueError, "stop must be a non-empty string"),
    "stop type": ({"stop": 5}, ValueError, "stop must be a non-empty string"),
    "memory": ({"max_memory": "8 apples"}, ValueError, "max_memory must be a size such as '8GiB'"),
    "no memory": ({"max_memory": 1000}, ValueError, "max_memory must be at least "),
    "memory share": ({"max_memory": 1.5}, ValueError, "in (0, 1], got 1.5"),
    "memory type": ({"max_memory": [1]}, TypeError, "got list"),
    "prefill attention": ({"prefill_attention": "flash"}, ValueError, "prefill_attention must be one of sdpa, "),
    "flash attention": ({"prefill_attention": "flash_attention_2"}, ImportError, "needs the flash-attn package"),
    "backend": ({"backend": "cuda"}, ValueError, "backend must be None, 'reference' or 'flash-attn'"),
    "watermark": ({"watermark": "kgw"}, TypeError, "watermark must be a caw watermark or None, got str"),
    "policy": ({"policy": 0.5}, TypeError, "policy must be a caw policy, got float"),
    "streamer": ({"streamer": Recorder()}, ValueError, "needs one prompt, got 3"),
    "tokenizer": ({"tokenizer": None}, TypeError, "tokenizer must be the model's tokenizer, got NoneType"),
    "chat of a plain model": ({"prompts": ["!"], "chat": True}, ValueError, "needs a tokenizer with a chat template"),
    "chat of ids": ({"chat": True}, TypeError, "chat=True needs prompts of text, prompt 0 is list"),
    "strength beyond the record": (
        {"watermark": caw.EXP(key=1, top_k=60), "policy": caw.FixedStrength(2.0)}, ValueError,
        "strength * top_k must be at most 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence(model: Any, what: str) -> None:
    """Said at once, also by the iterator, and nothing is left behind."""
    options, error, message = BAD[what]
    options = {"tokenizer": tokenizer(), "prompts": PROMPTS, "max_new_tokens": 12, **options}
    args = [options.pop("tokenizer"), options.pop("prompts")]
    for call in (caw.generate, caw.iter_generate):
        with pytest.raises(error, match=re.escape(message)) as caught:
            call(model, *args, **options)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "seed": 3}])
def test_prompts_that_cannot_be_continued_are_reported_and_the_rest_finishes(
    model: Any, sampling: dict[str, Any]
) -> None:
    """Too long, unknown ids, empty: each by its place; the others' texts are those of a call without them."""
    prompts = [PROMPTS[0], TOO_LONG, [3, VOCAB], PROMPTS[1], [], PROMPTS[2], None, [0.5]]
    expected = generate(model, watermark=caw.EXP(key=1), **sampling)
    with pytest.warns(UserWarning, match=r"5 of 8 prompts are left out, the rest goes on; the first: prompt 1 must be"):
        out = generate(model, prompts, watermark=caw.EXP(key=1), batch_size=2, **sampling)
    assert [out.sequences[i] for i in (0, 3, 5)] == expected.sequences
    assert [out.texts[i] for i in (0, 3, 5)] == expected.texts
    assert set(out.errors) == {1, 2, 4, 6, 7}
    assert [out.finish_reasons[i] for i in out.errors] == ["error"] * 5
    assert [out.sequences[i] for i in out.errors] == [[]] * 5
    assert "prompt 2 must hold token ids below" in out.errors[2]
    assert "prompt 4 must have at least one token" in out.errors[4]
    assert "prompt 6 must be a str or a list of token ids, got NoneType" in out.errors[6]
    assert out.trace is not None
    assert [t.tokens for t in out.trace] == out.sequences


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_an_interruption_gives_the_cache_back_at_once(
    model: Any, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while somebody keeps the traceback, or the generator that was closed."""
    made: list[SiblingCache] = []
    monkeypatch.setattr(slots, "SiblingCache", lambda *a, **k: made.append(SiblingCache(*a, **k)) or made[-1])
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


@pytest.mark.parametrize("how", ["eager", "sdpa"])
def test_attention_of_prompts_changes_no_text(model: Any, how: str) -> None:
    assert generate(model, prefill_attention=how).sequences == generate(model).sequences


@pytest.mark.parametrize("previous", [3, 0])
def test_windows_that_decoding_cannot_supply(model: Any, previous: int) -> None:
    evaluator = Evaluator(FeatureSpec(previous=previous, next=1 if previous else 2), hidden=4).eval()
    with pytest.raises(ValueError, match=r"windows up to \(2, 1\) of 100 values"):
        generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(evaluator))


def test_evaluator_of_fewer_values_is_used(model: Any) -> None:
    """K below the record's is a smaller evaluator, not a mistake."""
    evaluator = Evaluator(FeatureSpec(k=7), hidden=4).eval()
    policy = caw.CapacityPolicy(evaluator, theta=1.0)
    out = generate(model, watermark=caw.KGW(key=1), policy=policy)
    reference = BruteForce(model, caw.KGW(key=1), policy, eos=(2,))
    for ids, tokens in zip(PROMPTS, out.sequences, strict=True):
        agree(tokens, reference.decode(ids, 12), reference, ids, "seven values")


def test_evaluator_of_another_model_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = spread_evaluator(model)
    evaluator.provenance["model"] = "someone/else-7b"
    monkeypatch.setattr(model.config, "_name_or_path", "tiny/llama")
    with pytest.warns(UserWarning, match="trained on someone/else-7b and will read tiny/llama"):
        generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(evaluator))


def test_prompt_that_leaves_little_room(model: Any) -> None:
    ids = prompt(POSITIONS - 3)
    with pytest.warns(UserWarning, match=f"prompt 1 has {POSITIONS - 3} tokens .* 3 new tokens instead of 12"):
        out = generate(model, [PROMPTS[0], ids])
    assert out.finish_reasons == ["length", "length"]
    assert list(map(len, out.sequences)) == [12, 3]
    assert out.sequences[0] == generate(model, PROMPTS[:1]).sequences[0]


def test_settings_of_the_model_that_are_left_out_are_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model)
    monkeypatch.setattr(model.generation_config, "repetition_penalty", 1.3)
    with pytest.warns(UserWarning, match=r"sets repetition_penalty=1.3.*custom_generate=caw.decode"):
        generate(model)


# The demo model -----------------------------------------------------------------------------------------------------

QUESTIONS = ["The capital of France is", "Write a short poem about the sea.\n", "Once", "def fibonacci(n):\n    ",
             "Q: A train travels 60 km in 40 minutes. How fast is it?\nA:"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("watermark", WATERMARKS)
def test_demo_model_theta_zero_is_its_own_text(demo_model: Any, demo_tokenizer: Any, watermark: str) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(demo_model), theta=0.0)
    out = caw.generate(
        demo_model, demo_tokenizer, QUESTIONS, watermark=WATERMARKS[watermark], policy=policy, max_new_tokens=40
    )
    ends = tuple(demo_model.generation_config.eos_token_id)
    cases = 0
    for text, tokens in zip(QUESTIONS, out.sequences, strict=True):
        ids = demo_tokenizer(text)["input_ids"]
        stock = stock_greedy(demo_model, ids, max_new_tokens=40)
        cases += agree(tokens, stock, BruteForce(demo_model, eos=ends), ids, f"demo theta 0 {watermark} {text!r}")
    assert cases <= 1


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [False, True])
def test_demo_model_branchings_and_batches_agree(demo_model: Any, demo_tokenizer: Any, sampled: bool) -> None:
    watermark = caw.EXP(key=3, top_k=20) if sampled else caw.KGW(key=3, gamma=0.5, seeding="selfhash")
    policy = caw.CapacityPolicy(spread_evaluator(demo_model), theta=1.0, beta=1.5)
    sampling: dict[str, Any] = {"do_sample": True, "temperature": 1.1, "top_p": 0.9, "seed": 2} if sampled else {}
    options = {"watermark": watermark, "policy": policy, "max_new_tokens": 25, **sampling}
    expected = caw.generate(demo_model, demo_tokenizer, QUESTIONS, **options)
    assert expected.trace is not None
    assert sum(c > 0 for t in expected.trace for c in t.choice) > 10
    runs = {f"batch of {size}": {"batch_size": size} for size in (1, 2)}
    runs |= {branching: {"branching": branching} for branching in ("sequential", "batch")}
    ends = tuple(demo_model.generation_config.eos_token_id)
    cases = 0
    for what, change in runs.items():
        out = caw.generate(demo_model, demo_tokenizer, QUESTIONS, **options, **change)
        for text, tokens, wanted in zip(QUESTIONS, out.sequences, expected.sequences, strict=True):
            ids = demo_tokenizer(text)["input_ids"]
            reference = BruteForce(demo_model, watermark, policy, eos=ends, **sampling)
            cases += agree(tokens, wanted, reference, ids, f"demo {what} {text!r}")
    assert cases <= 1


def test_arguments_of_other_kinds_are_named(model: Any) -> None:
    with pytest.raises(TypeError, match="model must be a transformers causal LM, got dict; see"):
        caw.generate({}, tokenizer(), ["a"])
    with pytest.raises(TypeError, match="streamer must have put and end as transformers' do, got object; leave"):
        caw.generate(model, tokenizer(), ["a"], streamer=object())


def spoiled(model: Any, length: int) -> Any:
    """A copy of the model with infinite embeddings at position `length`."""
    positions, model = [], copy.deepcopy(model)

    def look(module: Any, given: Any, named: dict[str, Any]) -> None:
        positions[:] = [named["position_ids"]]

    def spoil(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        return torch.where((positions[0] == length)[..., None], torch.inf, out)

    model.register_forward_pre_hook(look, with_kwargs=True)
    model.get_input_embeddings().register_forward_hook(spoil)
    return model


def test_a_prompt_whose_logits_are_not_finite_is_reported(model: Any) -> None:
    prompts = [prompt(4), prompt(30, 1), prompt(6, 2)]
    expected = generate(model, prompts, max_new_tokens=9)
    model = spoiled(model, 31)
    with pytest.warns(UserWarning, match="^prompt 1: expected finite logits from the float32 model, got NaN"):
        out = generate(model, prompts, max_new_tokens=9)
    assert list(out.errors) == [1] and "at new token 3; check its weights" in out.errors[1]
    assert out.finish_reasons == [expected.finish_reasons[0], "error", expected.finish_reasons[2]]
    assert out.sequences == [expected.sequences[0], [], expected.sequences[2]]
    assert (out.texts[1], len(out.trace[1].tokens)) == ("", 0)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"^prompt 0: expected finite logits"):
        generate(model, prompts[1:2], max_new_tokens=9)


def test_what_to_do_about_half_precision(model: Any) -> None:
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"bfloat16 model.*load it with dtype='float32'$"):
        generate(spoiled(copy.deepcopy(model).bfloat16(), 4), [prompt(4)], max_new_tokens=9)
