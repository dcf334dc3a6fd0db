"""One sentence for each bad input of generate; what can go on goes on, with a warning."""

import copy
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import POSITIONS, VOCAB, build, prompt, spread_evaluator, tokenizer
from generating import PROMPTS, Recorder, generate

import caw
from caw.evaluator import Evaluator
from caw.evaluator.features import FeatureSpec
from caw.io.vocabulary import Vocabulary


@pytest.fixture
def model() -> Any:
    return build("llama")


TOO_LONG = prompt(POSITIONS)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "the class of a watermark": ({"watermark": caw.KGW}, TypeError, "a caw watermark or None, got the class KGW; use"),
    "the class of a policy": ({"policy": caw.FixedStrength}, TypeError, "a caw policy, got the class FixedStrength"),
    "a number of prompts": ({"prompts": 5}, TypeError, "prompts must be a str, a conversation, or a list"),
    "bytes": ({"prompts": b"text"}, TypeError, "prompts must be a str, a conversation, or a list"),
    "flat ids": ({"prompts": [1, 2]}, TypeError, "wrap it in a list"),
    "floats": ({"prompts": [[1.5]]}, TypeError, "prompt 0 must be a str or a list of token ids"),
    "empty text": ({"prompts": ""}, ValueError, "prompt 0 must have at least one token"),
    "foreign id": ({"prompts": [[3, VOCAB]]}, ValueError, f"vocabulary size {VOCAB}, got {VOCAB}"),
    "negative id": ({"prompts": [[3, -1]]}, ValueError, "got -1"),
    "too long": ({"prompts": [TOO_LONG]}, ValueError, f"the model's {POSITIONS} positions, got {POSITIONS}"),
    "ends of no kind": ({"mark_eos": "no"}, TypeError, "mark_eos must be True, False or None, got 'no'"),
    "minimum above maximum": ({"min_new_tokens": 13}, ValueError, "min_new_tokens must be an integer in [0, 12]"),
    "cold": ({"temperature": 1e-7}, ValueError, "temperature must be a number in [1e-06, 10000], got 1e-07"),
    "compile of reference": ({"compile": True, "backend": "reference"}, ValueError, "compile=True needs"),
    "compile of a foreign format with a target": (
        {"compile": True, "watermark": caw.KGW(key=1, format="transformers"), "policy": caw.FixedStrength(target=0.01)},
        ValueError, "scored on the host; leave compile out",
    ),
    "top_p": ({"top_p": 0.0}, ValueError, "top_p must be in (0, 1]"),
    "empty stop": ({"stop": [""]}, ValueError, "stop must be a non-empty string"),
    "half a surrogate": ({"prompts": ["\ud800"]}, ValueError, "prompt 0 must be valid Unicode, found half"),
    "bools": ({"prompts": [[3, True]]}, TypeError, "got a list with bool"),
    "generator with a streamer": (
        {"prompts": (p for p in "a"), "streamer": Recorder()}, TypeError, "prompts must be a str, a conversation, or",
    ),
    "name as tokenizer": ({"tokenizer": "x"}, TypeError, "tokenizer must be the model's tokenizer, got str; see"),
    "class as tokenizer": ({"tokenizer": type(tokenizer())}, TypeError, "tokenizer, got the class "),
    "stop type": ({"stop": 5}, ValueError, "stop must be a non-empty string"),
    "memory": ({"max_memory": "8 apples"}, ValueError, "max_memory must be a size such as '8GiB'"),
    "no memory": ({"max_memory": 1000}, ValueError, "max_memory must be at least "),
    "memory share": ({"max_memory": 1.5}, ValueError, "in (0, 1], got 1.5"),
    "memory type": ({"max_memory": [1]}, TypeError, "got list"),
    "prefill attention": ({"prefill_attention": "flash"}, ValueError, "prefill_attention must be one of sdpa, "),
    "flash attention": ({"prefill_attention": "flash_attention_2"}, ImportError, "needs the flash-attn package"),
    "backend": ({"backend": "cuda"}, ValueError, "backend must be None or 'reference'"),
    "watermark": ({"watermark": "kgw"}, TypeError, "watermark must be a caw watermark or None, got str"),
    "policy": ({"policy": 0.5}, TypeError, "policy must be a caw policy, got float"),
    "streamer": ({"streamer": Recorder()}, ValueError, "requires exactly one prompt, got 3"),
    "streamer of candidates": (
        {"streamer": Recorder(), "prompts": PROMPTS[:1], "watermark": caw.KGW(key=1),
         "detectable_at": 0.01, "best_of": 2},
        ValueError, "a streamer requires best_of=1, got best_of=2",
    ),
    "streamer of what may be dropped": (
        {"streamer": Recorder(), "prompts": PROMPTS[:1], "watermark": caw.KGW(key=1), "detectable_at": 0.01,
         "on_undetected": "drop"},
        ValueError, "shows the text before it is tested, so on_undetected='drop' is impossible",
    ),
    "tokenizer": ({"tokenizer": None}, TypeError, "tokenizer must be the model's tokenizer, got NoneType"),
    "chat of a plain model": ({"prompts": ["!"], "chat": True}, ValueError, "needs a tokenizer with a chat template"),
    "chat of ids": ({"chat": True}, TypeError, "prompt 0 must be a str or a list of messages with chat=True, got list"),
    "strength beyond the record": (
        {"watermark": caw.EXP(key=1, top_k=60), "policy": caw.FixedStrength(2.0)}, ValueError,
        "strength * top_k must be at most 100",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence(model: Any, what: str) -> None:
    options, error, message = BAD[what]
    options = {"tokenizer": tokenizer(), "prompts": PROMPTS, "max_new_tokens": 12, **options}
    args = [options.pop("tokenizer"), options.pop("prompts")]
    for call in (caw.generate, caw.iter_generate):
        with pytest.raises(error, match=re.escape(message)) as caught:
            call(model, *args, **options)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
    assert model.config._attn_implementation == "sdpa"


def test_weights_that_no_kernel_takes(model: Any) -> None:
    for change, message in (
        (lambda model: model.double(), "must be in float32, bfloat16 or float16, found float64 weights; convert it"),
        (lambda model: model.lm_head.double() and model, "found float64 weights; convert it with model.float()"),
        (lambda model: model.to("meta"), "must hold its weights, found some on the meta device; load it with from_"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            generate(change(copy.deepcopy(model)))


def test_ids_may_be_of_numpy(model: Any) -> None:
    expected = generate(model).sequences
    for kind in (np.array, lambda ids: [np.int64(i) for i in ids], torch.tensor, tuple):
        assert generate(model, [kind(ids) for ids in PROMPTS]).sequences == expected


def test_arguments_of_other_kinds_are_named(model: Any) -> None:
    with pytest.raises(TypeError, match="model must be a transformers causal LM, got dict; see"):
        caw.generate({}, tokenizer(), ["a"])
    with pytest.raises(TypeError, match="streamer must have put and end as transformers' do, got object; leave"):
        caw.generate(model, tokenizer(), ["a"], streamer=object())


@pytest.mark.parametrize("previous", [3, 0])
def test_windows_that_decoding_cannot_supply(model: Any, previous: int) -> None:
    evaluator = Evaluator(FeatureSpec(previous=previous, next=1 if previous else 2), hidden=4).eval()
    with pytest.raises(ValueError, match=r"windows up to \(2, 1\) of 100 values"):
        generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(evaluator))


def test_weights_that_became_no_numbers_are_refused(model: Any) -> None:
    """After the policy was made; decoding would leave every token unmarked in silence."""
    evaluator = spread_evaluator(model)
    policy = caw.CapacityPolicy(evaluator)
    evaluator.scale[0] = 0
    with pytest.raises(ValueError, match="evaluator scales must be positive, the evaluator holds 0; train again"):
        generate(model, watermark=caw.KGW(key=1), policy=policy)


@pytest.mark.parametrize("bad", [5, None, b"smollm2-135m", {}])
def test_evaluators_of_other_types_are_refused(bad: Any) -> None:
    with pytest.raises(TypeError, match="evaluator must be a name, a path or a caw Evaluator, got"):
        caw.CapacityPolicy(bad)


def test_evaluator_of_another_model_is_named(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = spread_evaluator(model)
    evaluator.provenance["model"] = "someone/else-7b"
    monkeypatch.setattr(model.config, "_name_or_path", "tiny/llama")
    with pytest.warns(UserWarning, match="trained on someone/else-7b, not on tiny/llama"):
        generate(model, watermark=caw.KGW(key=1), policy=caw.CapacityPolicy(evaluator))


def test_an_evaluator_of_another_vocabulary_is_refused(model: Any, recwarn: pytest.WarningsRecorder) -> None:
    evaluator = spread_evaluator(model)
    mark, policy = caw.KGW(key=1), caw.CapacityPolicy(evaluator)
    evaluator.vocabulary = Vocabulary(3, "0" * 64)
    with pytest.raises(ValueError, match=r"^the evaluator was made for a vocabulary of 3 tokens, .*tokens; train"):
        generate(model, watermark=mark, policy=policy)
    evaluator.universal, evaluator.provenance["model"] = True, "someone/else-7b"
    assert generate(model, watermark=mark, policy=policy).sequences
    assert not [w for w in recwarn if "trained on" in str(w.message)]


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "seed": 3}])
def test_prompts_that_cannot_be_continued_are_reported_and_the_rest_finishes(
    model: Any, sampling: dict[str, Any]
) -> None:
    prompts = [PROMPTS[0], TOO_LONG, [3, VOCAB], PROMPTS[1], [], PROMPTS[2], None, [0.5]]
    expected = generate(model, watermark=caw.EXP(key=1), **sampling)
    with pytest.warns(UserWarning, match=r"5 of 8 prompts get no text, the rest goes on; the first: prompt 1 must be"):
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
    with pytest.warns(UserWarning, match=r"sets repetition_penalty=1.3.*give \*\*caw.model_sampling\(model\)"):
        generate(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model, **caw.model_sampling(model))
    monkeypatch.setattr(model.generation_config, "no_repeat_ngram_size", 3)
    with pytest.warns(UserWarning, match=r"no_repeat_ngram_size=3.*custom_generate=caw.decode"):
        generate(model, **caw.model_sampling(model))


def test_arguments_without_effect_are_named(model: Any) -> None:
    with pytest.warns(UserWarning, match="marks nothing without a watermark, got FixedStrength and watermark=None"):
        generate(model, policy=caw.FixedStrength(0.5))
    with pytest.warns(UserWarning, match="does not depend on temperature and top_p, got do_sample=False; set do_sa"):
        generate(model, watermark=caw.KGW(1), temperature=0.7, top_p=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(model, watermark=caw.KGW(1), temperature=1.0, top_p=1.0, policy=caw.FixedStrength(0.5))
        generate(model, watermark=caw.KGW(1), temperature=0.7, do_sample=True)


def spoiled(model: Any, length: int) -> Any:
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


def test_a_report_that_cannot_be_called_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="report must be a function that takes a str, got str; leave it out"):
        list(caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=3, report="yes"))
