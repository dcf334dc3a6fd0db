"""Texts are made again, more strongly, until they are found; and each is what its strength alone gives."""

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt, spread_evaluator, tokenizer
from generating import Recorder

import caw
from caw.detectable.attempts import UndetectedError
from caw.detectable.receipts import text_digest
from caw.detectable.selection import Agreement
from caw.detection import Detector, TokenWeights
from caw.policies import Target
from caw.policies.target import MARGIN

PROMPTS = [prompt(9, seed) for seed in range(6)]
MARK, WEAK = caw.KGW(key=1, delta=2.0), caw.FixedStrength(0.2)
OPTIONS: dict[str, Any] = {"watermark": MARK, "policy": WEAK, "max_new_tokens": 30, "detectable_at": 1e-2}


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.fixture(scope="module")
def made(model: Any) -> caw.GenerationOutput:
    return caw.generate(model, tokenizer(), PROMPTS, **OPTIONS)


def test_every_text_is_found_and_its_receipt_is_the_detectors(made: caw.GenerationOutput) -> None:
    assert made.receipts is not None and len(made.receipts) == len(PROMPTS)
    for text, tokens, receipt in zip(made.texts, made.sequences, made.receipts, strict=True):
        result = caw.detect(text, tokenizer(), MARK, 1e-2)
        assert receipt.detected and result.is_watermarked and receipt.reason == ""
        assert (receipt.p_value, receipt.tokens) == (result.p_value, result.num_tokens)
        assert (receipt.key_id, receipt.level, receipt.digest) == (MARK.key_id, 1e-2, text_digest(text))
        assert receipt.weights is None and receipt.policy == "FixedStrength(value=0.2, target=0.01)" and tokens
    assert {receipt.attempts for receipt in made.receipts} == {2, 3}, "some needed more than others"


def test_a_text_is_what_its_strength_alone_gives_and_weaker_ones_are_not_found(
    model: Any, made: caw.GenerationOutput
) -> None:
    for ids, text, receipt in zip(PROMPTS, made.texts, made.receipts or [], strict=True):
        last = receipt.attempts - 1
        assert (receipt.strength_factor, receipt.margin) == (1.5**last, last)
        for number in range(receipt.attempts):
            policy = caw.FixedStrength(0.2 * 1.5**number, target=Target(1e-2, margin=MARGIN + number))
            alone = caw.generate(model, tokenizer(), [ids], watermark=MARK, policy=policy, max_new_tokens=30).texts[0]
            assert caw.detect(alone, tokenizer(), MARK, 1e-2).is_watermarked == (number == last)
            assert alone == text or number < last


@pytest.mark.parametrize("batch_size", [1, 2, 6])
def test_texts_do_not_depend_on_the_batch(model: Any, made: caw.GenerationOutput, batch_size: int) -> None:
    again = caw.generate(model, tokenizer(), PROMPTS, batch_size=batch_size, **OPTIONS)
    assert (again.texts, again.sequences, again.receipts) == (made.texts, made.sequences, made.receipts)


def test_results_come_as_they_finish(model: Any, made: caw.GenerationOutput) -> None:
    """A text that is found at once does not wait for one that is made four times."""
    # without drafts all texts advance alike
    results = list(caw.iter_generate(model, tokenizer(), PROMPTS, batch_size=6, speculate=None, **OPTIONS))
    assert sorted(r.index for r in results) == list(range(6))
    in_order = sorted(results, key=lambda r: r.index)
    assert [r.text for r in in_order] == made.texts and [r.receipt for r in in_order] == made.receipts
    assert results[0].receipt.attempts < results[-1].receipt.attempts  # type: ignore[union-attr]


def test_an_agreement_compares_with_the_unmarked_text(model: Any) -> None:
    options = {**OPTIONS, "policy": caw.FixedStrength(0.6), "max_attempts": 5, "best_of": 2}

    def answer(text: str) -> int:
        return len(text) % 3

    plain = caw.generate(model, tokenizer(), PROMPTS, max_new_tokens=30).texts
    out = caw.generate(model, tokenizer(), PROMPTS, **{**options, "select": Agreement(answer)})
    agreed = [answer(text) == answer(own) for text, own in zip(out.texts, plain, strict=True)]
    assert out.receipts is not None and all(receipt.detected for receipt in out.receipts) and any(agreed)
    for number, receipt in enumerate(out.receipts):
        assert receipt.attempts == 5 or agreed[number]
        efforts = [0.0, 1 / 1.5, 1.0, 1.5, 2.25][: receipt.attempts]
        assert receipt.strength_factor == pytest.approx(efforts[-1]) if agreed[number] else receipt.strength_factor > 0
    by_chance = caw.generate(
        model, tokenizer(), PROMPTS, **{**options, "select": Agreement(answer), "detectable_at": 0.6}
    )
    as_it_is = [receipt.strength_factor == 0 for receipt in by_chance.receipts or []]
    assert [a == b for a, b in zip(by_chance.texts, plain, strict=True)] == as_it_is and any(as_it_is)


@pytest.mark.parametrize("options", [{}, {"best_of": 3, "select": "likeliest"}], ids=["again", "candidates"])
def test_prompts_are_read_once(model: Any, options: dict[str, Any]) -> None:
    rows: list[int] = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        rows.extend([len(ids)] * (ids.shape[1] == len(PROMPTS[0])))

    hook = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        out = caw.generate(model, tokenizer(), PROMPTS, **OPTIONS, **options)
    finally:
        hook.remove()
    assert sum(rows) == len(PROMPTS) < sum(receipt.attempts for receipt in out.receipts or [])


def test_a_cache_of_the_caller_is_used_and_left_as_it_is(model: Any, made: caw.GenerationOutput) -> None:
    cache = caw.PromptCache()
    out = caw.generate(model, tokenizer(), PROMPTS, prompt_cache=cache, **OPTIONS)
    assert out.texts == made.texts and len(cache) == len(PROMPTS)
    assert cache.found == sum(receipt.attempts - 1 for receipt in made.receipts or [])


@pytest.mark.parametrize("name", ["unigram", "exp", "kgw-transformers", "synthid", "capacity", "entropy"])
def test_other_watermarks_and_policies(model: Any, name: str) -> None:
    mark: Any = {
        "unigram": caw.Unigram(key=2, delta=2.0), "exp": caw.EXP(key=3, top_k=6),
        "kgw-transformers": caw.KGW(key=5, delta=2.0, format="transformers"), "synthid": caw.SynthID(key=4),
    }.get(name, MARK)  # fmt: skip
    policy: Any = {
        "capacity": caw.CapacityPolicy(spread_evaluator(model), theta=0.9, beta=0.4),
        "entropy": caw.EntropyThreshold(0.5, 0.3), "synthid": caw.FixedStrength(0.1),
    }.get(name, caw.FixedStrength(0.3))  # fmt: skip
    options = {**OPTIONS, "watermark": mark, "policy": policy, "max_attempts": 6}
    out = caw.generate(model, tokenizer(), PROMPTS[:4], **options)
    known = mark.with_vocabulary(model.config.vocab_size)
    for text, receipt in zip(out.texts, out.receipts or [], strict=True):
        assert receipt.detected == caw.detect(text, tokenizer(), known, 1e-2).is_watermarked
    assert sum(r.detected for r in out.receipts or []) >= 3 and max(r.attempts for r in out.receipts or []) > 1


def test_samples_differ_from_attempt_to_attempt_and_begin_with_the_callers(model: Any) -> None:
    mark = caw.EXP(key=3, top_k=100, context_width=2)  # nothing stronger is left: only the draws can help
    options = {"watermark": mark, "do_sample": True, "seed": 2**64 - 1, "max_new_tokens": 9}
    seen: list[list[str]] = []

    def keep(candidates: Any) -> Any:
        seen.append([candidate.text for candidate in candidates])
        return next(candidate for candidate in candidates if candidate.found)

    out = caw.generate(
        model, tokenizer(), PROMPTS[:2], detectable_at=0.9, max_attempts=3, best_of=3, select=keep, **options
    )
    alone = caw.generate(model, tokenizer(), PROMPTS[:2], policy=caw.FixedStrength(1.5**-2, target=0.9), **options)
    assert [len(set(texts)) for texts in seen] == [3, 3] and out.receipts is not None
    assert {texts[0] for texts in seen} == set(alone.texts)


def test_too_short_a_text_is_undetected_and_says_so(model: Any) -> None:
    options = {**OPTIONS, "policy": None, "detectable_at": 1e-3, "max_new_tokens": 30, "max_attempts": 2}
    text = caw.generate(model, tokenizer(), [PROMPTS[0]], **options).texts[0]
    out = caw.generate(model, tokenizer(), [PROMPTS[0]], stop=text[2], **options)
    [receipt] = out.receipts or []
    assert out.texts == [text[: text.index(text[2])]] and not receipt.detected and receipt.attempts == 2
    assert re.fullmatch(r"\d tokens count, 5 are needed", receipt.reason)


UNFOUND = {**OPTIONS, "detectable_at": 1e-6, "max_attempts": 2}


def test_what_becomes_of_undetected_texts(model: Any) -> None:
    kept = caw.generate(model, tokenizer(), PROMPTS, **UNFOUND)
    dropped = caw.generate(model, tokenizer(), PROMPTS, on_undetected="drop", **UNFOUND)
    found = [receipt.detected for receipt in kept.receipts or []]
    assert not all(found) and dropped.receipts == kept.receipts
    for i, was_found in enumerate(found):
        assert kept.texts[i] and (was_found or " needed" in kept.receipts[i].reason)  # type: ignore[index]
        assert dropped.texts[i] == (kept.texts[i] if was_found else "")
        assert (dropped.finish_reasons[i] == "undetected") == (not was_found) == (dropped.sequences[i] == [])
    with (
        pytest.warns(UserWarning, match="1 of 2 prompts get no text"),
        pytest.raises(ValueError, match="must be detectable at 1e-06, text 1 is not after 2 attempts") as caught,
    ):
        caw.generate(model, tokenizer(), [[], PROMPTS[found.index(False)]], on_undetected="raise", **UNFOUND)
    error, sent = caught.value, pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, UndetectedError) and (str(sent), sent.index, sent.receipt) == (
        str(error),
        1,
        error.receipt,
    )


def test_an_undetected_text_that_is_kept_is_the_nearest(model: Any) -> None:
    [receipt] = caw.generate(model, tokenizer(), PROMPTS[:1], **UNFOUND).receipts or []
    alone = []
    for strength, margin in ((0.2, MARGIN), (0.3, MARGIN + 1)):
        policy = caw.FixedStrength(strength, target=Target(1e-6, margin=margin))
        out = caw.generate(model, tokenizer(), PROMPTS[:1], watermark=MARK, policy=policy, max_new_tokens=30)
        alone.append(caw.detect(out.texts[0], tokenizer(), MARK).p_value)
    assert receipt.p_value == min(alone)


def test_a_broken_prompt_is_an_error_and_not_tried_again(model: Any) -> None:
    broken = copy.deepcopy(model)
    broken.get_input_embeddings().weight.data[5] = torch.nan
    good = [ids for ids in PROMPTS if 5 not in ids][:2]
    with pytest.warns(UserWarning, match="expected finite logits"):
        out = caw.generate(broken, tokenizer(), [*good, [3, 5, 4]], **{**OPTIONS, "policy": None})
    assert out.receipts is not None and out.receipts[2] is None and 2 in out.errors


def test_edits_ask_for_more(model: Any) -> None:
    plain = caw.generate(model, tokenizer(), PROMPTS[:3], **{**OPTIONS, "detectable_at": 1e-3})
    sure = caw.generate(model, tokenizer(), PROMPTS[:3], edits=0.2, **{**OPTIONS, "detectable_at": 1e-3})
    for one, other in zip(plain.receipts or [], sure.receipts or [], strict=True):
        assert other.attempts >= one.attempts and other.edits == 0.2


def test_the_detectors_weights_are_used_and_named(model: Any) -> None:
    levels = torch.randint(1, 16, (model.config.vocab_size,), generator=torch.Generator().manual_seed(0)).numpy()
    weights = TokenWeights(levels, name="mine")
    detector = Detector(None, MARK, 0.5, weights=weights)
    out = caw.generate(model, tokenizer(), PROMPTS[:3], detector=detector, **OPTIONS)
    for text, receipt in zip(out.texts, out.receipts or [], strict=True):
        assert receipt.p_value == caw.detect(text, tokenizer(), MARK, weights=weights).p_value
        assert receipt.weights == {"name": "mine", "digest": weights.digest} and receipt.level == 1e-2


def test_a_streamed_text_is_made_once_steered_and_tested(model: Any) -> None:
    options = {**OPTIONS, "policy": caw.FixedStrength(0.6)}
    alone = caw.generate(model, tokenizer(), PROMPTS[:1], max_attempts=1, **options)
    for more, warned in (({}, 1), ({"max_attempts": 1}, 0)):
        recorder = Recorder()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = caw.generate(model, tokenizer(), PROMPTS[:1], streamer=recorder, **options, **more)
        said = [str(w.message) for w in caught if "a streamed text is generated once:" in str(w.message)]
        assert len(said) == warned and out.receipts == alone.receipts and out.texts == alone.texts
        assert [token for put in recorder.given[1:] for token in put] == out.sequences[0] and recorder.ended == 1


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "detectable_at 0": ({"detectable_at": 0.0}, ValueError, "detectable_at must be a number in (0, 1), got 0.0"),
    "detectable_at 1": ({"detectable_at": 1}, ValueError, "detectable_at must be a number in (0, 1), got 1"),
    "detectable_at of text": (
        {"detectable_at": "1e-3"}, TypeError, "detectable_at must be a number in (0, 1), got str"
    ),
    "out of reach": (
        {"detectable_at": 1e-30}, ValueError, "detectable_at=1e-30 requires at least 50 tokens that count, got texts"
    ),
    "no attempts": ({"max_attempts": 0}, ValueError, "max_attempts must be an integer in [1, 100], got 0"),
    "no candidates": ({"best_of": 0}, ValueError, "best_of must be an integer in [1, 100], got 0"),
    "more candidates than attempts": ({"best_of": 5}, ValueError, "best_of must be at most max_attempts, 4, got 5"),
    "another selection": ({"select": "best"}, ValueError, "select must be one of weakest, likeliest, got 'best'"),
    "agreement with nothing": (
        {"select": Agreement(len), "max_attempts": 1}, ValueError, "uses the first attempt for the unmarked text"
    ),
    "another end": (
        {"on_undetected": "retry"}, ValueError, "on_undetected must be one of keep, unmarked, drop, raise, got 'retry'"
    ),
    "all words": ({"edits": 1.0}, ValueError, "edits must be a number in [0, 0.9], got 1.0"),
    "another key": (
        {"detector": Detector(None, caw.KGW(key=2))}, ValueError, f"detector must test for kgw with key {MARK.key_id}"
    ),
    "another green share": (
        {"detector": Detector(None, caw.KGW(key=1, gamma=0.5))}, ValueError, "must have gamma 0.25, got 0.5; "
    ),
    "another seeding": (
        {"detector": Detector(None, caw.KGW(key=1, seeding="selfhash"))}, ValueError, "seeding 'lefthash', got '"
    ),
    "another watermark": ({"detector": Detector(None, caw.Unigram(key=1))}, ValueError, "got unigram with key"),
    "a function as detector": ({"detector": caw.detect}, TypeError, "detector must be a caw Detector, got function"),
    "strength 0": ({"policy": caw.FixedStrength(0.0)}, ValueError, "requires a policy that marks, got "),
    "a payload": (
        {"watermark": caw.KGW(key=1, payload=3, payload_bits=4)}, ValueError, "got a watermark with a payload"
    ),
    "no watermark": ({"watermark": None}, ValueError, "detectable_at requires a watermark, got None"),
    "candidates of nothing": ({"detectable_at": None, "best_of": 2}, ValueError, "best_of requires detectable_at"),
    "a detector for nothing": (
        {"detectable_at": None, "detector": Detector(None, MARK)}, ValueError, "detector requires detectable_at"
    ),
    "a choice of nothing": ({"select": lambda candidates: None}, ValueError, "must return one of the detected "
    "candidates"),
}  # fmt: skip


def test_bad_input_gets_one_sentence(model: Any) -> None:
    for options, error, message in BAD.values():
        with pytest.raises(error, match=re.escape(message)) as caught:
            caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, **options})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
