"""Weights from a model: decided by the text alone, exact under any key, better than none; and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import spread_evaluator
from scipy import stats
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.detectable.efforts import steered
from caw.detection import Detector, TokenWeights, null_report
from caw.detection.html_report import write_html
from caw.models import ReaderWeights
from caw.policies import Target

PROMPTS = ["the sky is blue because", "a small text about", "which knows a few words", "red light"]
MARKS = {
    "kgw": caw.KGW(key="w", delta=1.5), "unigram": caw.Unigram(key="w", delta=1.5), "exp": caw.EXP(key="w", top_k=3),
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


def written(loaded: tuple[Any, Any], mark: Any, policy: Any = None, tokens: int = 40) -> list[list[int]]:
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        "min_new_tokens": tokens,
        "progress": False,
        "return_trace": False,
    }
    return list(caw.generate(*loaded, PROMPTS, watermark=mark, policy=policy, **options).sequences)


@pytest.mark.parametrize("name", MARKS)
def test_they_find_more(loaded: tuple[Any, Any], name: str) -> None:
    mark, weights = MARKS[name], ReaderWeights(*loaded)
    texts = written(loaded, mark)
    plain = [r.p_value for r in caw.detect(texts, None, mark)]
    knowing = [
        caw.detect(ids, None, mark, weights=weights.with_prompt(p)).p_value
        for p, ids in zip(PROMPTS, texts, strict=True)
    ]
    # this model leaves every race much the same room, so that there is little to weigh
    assert np.median(np.log10(knowing)) < np.median(np.log10(plain)) - (0.2 if name == "exp" else 1)
    without = [r.p_value for r in caw.detect(texts, None, mark, weights=weights)]
    assert np.median(np.log10(knowing)) < np.median(np.log10(without))


@pytest.mark.parametrize("name", MARKS)
@pytest.mark.parametrize("prompt", [None, PROMPTS[0]])
def test_p_values_of_random_keys_are_uniform(loaded: tuple[Any, Any], name: str, prompt: str | None) -> None:
    """Unmarked and marked texts alike, under 80 other keys each; the texts are read once."""
    texts = written(loaded, None)[:1] + written(loaded, MARKS[name])[:1]
    weights, found = ReaderWeights(*loaded, prompt), []
    for key in range(80):
        found += [r.p_value for r in caw.detect(texts, None, MARKS[name].with_key(key), weights=weights)]
    p = np.array(found)
    for level in (0.1, 0.02):
        assert stats.binomtest(int((p <= level).sum()), len(p), level, "greater").pvalue > 1e-4
    assert stats.kstest(p, "uniform", alternative="greater").pvalue > 1e-4
    assert len(weights._cached) == 2


def test_levels_come_from_the_text_alone(loaded: tuple[Any, Any]) -> None:
    mark = MARKS["kgw"]
    texts = [np.array(ids) for ids in written(loaded, mark)]
    alone = [ReaderWeights(*loaded, "red").text_levels([text], mark)[0] for text in texts]
    together = ReaderWeights(*loaded, "red").text_levels(texts[::-1], mark.with_key("another"))[::-1]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other) and one.dtype == np.int64 and len(set(one.tolist())) > 3
    assert ReaderWeights(*loaded).text_levels([np.empty(0, np.int64)], mark)[0].tolist() == []
    # what stands for an unknown prompt, given as a prompt, is believed to be one, whatever was read before
    unknown = ReaderWeights(*loaded)
    given = unknown.with_prompt(unknown.prompt_ids)
    fresh = ReaderWeights(*loaded, unknown.prompt_ids).text_levels(texts, mark)
    first = unknown.text_levels(texts, mark)
    again = given.text_levels(texts, mark)
    for levels, alone_, unlike in zip(again, fresh, first, strict=True):
        assert levels.tolist() == alone_.tolist() != unlike.tolist()
    assert given.digest != unknown.digest


def test_parameters_of_the_watermark_matter_and_its_key_does_not(loaded: tuple[Any, Any]) -> None:
    weights, text = ReaderWeights(*loaded, "red"), np.array(written(loaded, MARKS["kgw"])[0])
    kgw, exp = caw.KGW(key=1, delta=2.0), caw.EXP(key=1)
    alike = [weights.text_levels([text], mark)[0].tolist() for mark in (kgw, caw.KGW(key=2, delta=2.0))]
    assert alike[0] == alike[1]
    for other in (caw.KGW(key=1, delta=3.0), caw.KGW(key=1, gamma=0.5, delta=2.0), exp, caw.EXP(key=1, top_k=2)):
        assert weights.text_levels([text], other)[0].tolist() != alike[0]


def test_a_policy_that_marks_little_weighs_little(loaded: tuple[Any, Any]) -> None:
    mark, text = MARKS["kgw"], np.array(written(loaded, MARKS["kgw"])[0])

    def levels(policy: Any, **options: Any) -> list[int]:
        [found] = ReaderWeights(*loaded, None, policy, **options).text_levels([text], mark)
        return found.tolist()

    full = levels(caw.FixedStrength())
    assert not any(levels(caw.FixedStrength(0.0)))
    assert levels(caw.FixedStrength(target=1e-3)) == full  # what the text had shown under its key decides nothing
    assert levels(caw.FixedStrength(), factors=[1.0, 0.0])[1:] == [0] * (len(text) - 1)
    assert levels(caw.FixedStrength(), factors=[1.0, 0.0])[0] == full[0]
    assert levels(caw.FixedStrength(0.5), factors=[2.0]) == full
    capacity = caw.CapacityPolicy(spread_evaluator(loaded[0]), theta=0.9, beta=1.0)
    assert sum(levels(capacity)) < sum(full)


def test_half_of_a_mark_is_a_mark_of_half_the_strength(loaded: tuple[Any, Any]) -> None:
    """With its prompt known, a token too far behind for the mark is an edit, and too far is nearer for half of it."""
    text, mark = np.arange(3, 60), caw.KGW(key=1, delta=4.0)
    whole, half, by_factor = (
        ReaderWeights(*loaded, [5, 6, 7], caw.FixedStrength(strength), factors=factors)
        .text_levels([text], mark)[0]
        .tolist()
        for strength, factors in ((1.0, []), (0.5, []), (1.0, [0.5]))
    )
    assert by_factor == half != whole


def test_prompts_are_read_as_generation_does(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    ids = tokenizer(PROMPTS[0])["input_ids"]
    assert ReaderWeights(model, tokenizer, PROMPTS[0]).prompt_ids == tuple(ids)
    assert ReaderWeights(model, tokenizer, ids).prompt_ids == tuple(ids)
    chat = tokenizer(f"<user>{PROMPTS[0]}<assistant>")["input_ids"]
    assert ReaderWeights(model, tokenizer, PROMPTS[0], chat=True).prompt_ids == tuple(chat)
    assert ReaderWeights(model, tokenizer).prompt_ids == (tokenizer.eos_token_id,)  # it begins no text with a token


def test_name_and_digest_say_what_decides(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    weights = ReaderWeights(model, tokenizer, "red")
    assert weights.name == "model:model with the prompt, FixedStrength(value=1.0)"
    assert ReaderWeights(model, tokenizer).name.startswith("model:model without the prompt")
    assert "red" not in repr(ReaderWeights(model, tokenizer, "red").name) and weights.digest == weights.digest
    other = tiny_model(len(tokenizer))
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    evaluators = [spread_evaluator(model, p) for p in (0, 1)]
    different = [
        ReaderWeights(model, tokenizer), ReaderWeights(model, tokenizer, "blue"),
        ReaderWeights(other, tokenizer, "red"),
        ReaderWeights(model, tokenizer, "red", caw.FixedStrength(0.5)),
        ReaderWeights(model, tokenizer, "red", factors=[1.0]),
        *(ReaderWeights(model, tokenizer, "red", caw.CapacityPolicy(e)) for e in evaluators),
    ]  # fmt: skip
    assert len({w.digest for w in [weights, *different]}) == 8
    assert ReaderWeights(tiny_model(len(tokenizer)), tokenizer, "red").digest == weights.digest


def test_reports_take_them(loaded: tuple[Any, Any], tmp_path: Path) -> None:
    mark = MARKS["kgw"]
    detector = Detector(loaded[1], mark, weights=ReaderWeights(*loaded))
    texts = [loaded[1].decode(ids) for ids in written(loaded, mark)]
    report = null_report(texts, detector)
    results = detector(texts)
    assert [r.p_value for r in results] == report.p_values.tolist()  # type: ignore[union-attr]
    write_html(tmp_path / "page.html", [("one", results[0])], detector)  # type: ignore[index]
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_texts_that_must_be_found_name_them_in_their_receipts(loaded: tuple[Any, Any]) -> None:
    mark, weights = caw.KGW(key="f", delta=4.0), ReaderWeights(*loaded)
    detector = Detector(loaded[1], mark, 0.5, weights=weights)
    out = caw.generate(
        *loaded, PROMPTS[:1], watermark=mark, detectable_at=0.5, detector=detector, max_new_tokens=30, progress=False
    )
    assert out.receipts[0].weights == {"name": weights.name, "digest": weights.digest}
    # the text's own reading does not exist while it is written
    assert steered(caw.FixedStrength(), detector).target == Target(0.5)
    table = TokenWeights(np.array([1, 2]))
    assert steered(caw.FixedStrength(), Detector(None, mark, 0.5, weights=table)).target == Target(0.5, weights=table)


class Other:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, texts: Any, **options: Any) -> Any:
        return self.inner(texts, **options)

    def __len__(self) -> int:
        return len(self.inner)

    def decode(self, ids: Any, **options: Any) -> str:
        return str(self.inner.decode([(i + 1) % len(self.inner) for i in ids], **options))

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return list(self.inner.convert_ids_to_tokens([(i + 1) % len(self.inner) for i in ids]))

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        return [self.decode(ids, **options) for ids in sequences]


def test_what_is_refused(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    mark, weights = MARKS["kgw"], ReaderWeights(*loaded)

    def refuses(message: str, call: Any, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)

    refuses("one vocabulary, got 300 logits for", lambda: ReaderWeights(tiny_model(300), tokenizer))
    refuses("one vocabulary, got 999 logits for", lambda: ReaderWeights(tiny_model(999), tokenizer))
    refuses(
        "the model that reads is made for a vocabulary of ", lambda: Detector(Other(tokenizer), mark, weights=weights)
    )
    assert Detector(tiny_tokenizer(), mark, weights=weights)
    refuses("512 positions, got 600 tokens; shorten it", lambda: ReaderWeights(model, tokenizer, [1] * 600))
    long = lambda: caw.detect([5] * 300, None, mark, weights=weights.with_prompt([1] * 300))  # noqa: E731
    refuses("fit the model's 512 positions, one has 600 tokens", long)
    refuses(
        "below the .* logits of the model that reads them, got 9999",
        lambda: caw.detect([9999], None, mark, weights=weights),
    )
    refuses(
        "weights support KGW, Unigram and EXP, got synthid", lambda: Detector(None, caw.SynthID("k"), weights=weights)
    )
    dual = caw.EXP(key=1, format="vllm-dual")
    refuses("weights support formats with one key, got 'vllm-dual'", lambda: Detector(None, dual, weights=weights))
    refuses("weights require mode 'exact' without mid_p", lambda: Detector(None, mark, mid_p=True, weights=weights))
    payload = caw.KGW(key=1, payload_bits=16)
    refuses(
        "payloads require mode 'exact' without mid_p and weights; leave",
        lambda: Detector(None, payload, weights=weights),
    )
    refuses("one text or the ids of one, got a list of", lambda: ReaderWeights(model, tokenizer, PROMPTS), TypeError)
    for name in ("smollm2-135m", None):
        refuses("model must be a causal language model", lambda name=name: ReaderWeights(name, tokenizer), TypeError)
    for factors in (1.0, None, "ab"):
        refuses("factors must be a", lambda f=factors: ReaderWeights(model, tokenizer, factors=f), TypeError)
    refuses("key_ids must be a list of texts", lambda: ReaderWeights(model, tokenizer, key_ids=None), TypeError)
    refuses("policy must be a caw policy, got str", lambda: ReaderWeights(model, tokenizer, policy="fixed"), TypeError)
    refuses("tokenizer must be the model's tokenizer", lambda: ReaderWeights(model, None), TypeError)
    refuses(r"factors must be a number in \[0, 100\]", lambda: ReaderWeights(model, tokenizer, factors=[-1.0]))
    learned = ReaderWeights(model, tokenizer, factors=[0.5], key_ids=(name for name in [mark.key_id]))
    refuses("which would make", lambda: Detector(None, mark, weights=learned))
    assert Detector(None, mark.with_key("another"), weights=learned)
    refuses("key_ids must be a list of texts", lambda: ReaderWeights(model, tokenizer, key_ids="ab"), TypeError)
    refuses("prompt must have at least one token", lambda: ReaderWeights(model, tokenizer, ""))
    refuses("got none; use the model's own tokenizer", lambda: ReaderWeights(model, tokenizer, []))
    refuses(
        "must be a str with chat=True, got list", lambda: ReaderWeights(model, tokenizer, [1], chat=True), TypeError
    )
    plain = tiny_tokenizer(chat=False)
    refuses("requires a tokenizer with a chat template", lambda: ReaderWeights(model, plain, "a", chat=True))
    refuses("prompt must be valid Unicode", lambda: ReaderWeights(model, tokenizer, "\ud800"))
    network = spread_evaluator(model, classes=True)  # its classes are of no tokenizer
    refuses(
        "token classes must match this model's tokenizer",
        lambda: ReaderWeights(model, tokenizer, None, caw.CapacityPolicy(network)),
    )


RACE = caw.EXP(key="w", strength="scale")


def drawn(loaded: tuple[Any, Any], mark: Any = RACE, tokens: int = 12, **sampling: Any) -> list[list[int]]:
    options: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "progress": False, "seed": 3}
    given = {"do_sample": True, "temperature": 0.7, **sampling}
    return list(caw.generate(*loaded, PROMPTS, watermark=mark, return_trace=False, **options, **given).sequences)


@pytest.mark.parametrize("cuts", [{}, {"top_p": 0.9}, {"top_k": 20, "min_p": 0.01}], ids=["all", "top_p", "others"])
@pytest.mark.parametrize("mark", [RACE, caw.Recommended("w")], ids=["exp", "recommended"])
def test_a_reader_of_drawn_texts_finds_more(loaded: tuple[Any, Any], mark: Any, cuts: dict[str, Any]) -> None:
    texts, weights = drawn(loaded, mark, **cuts), ReaderWeights(*loaded, temperature=0.7, **cuts)
    plain = [caw.detect(ids, None, mark) for ids in texts]
    knowing = [
        caw.detect(ids, None, mark, weights=weights.with_prompt(p)) for p, ids in zip(PROMPTS, texts, strict=True)
    ]
    assert np.median(np.log10([r.p_value for r in knowing])) < np.median(np.log10([r.p_value for r in plain])) - 0.5
    assert {r.family for r in knowing} <= {None, "exp"}
    said = weights.with_prompt(PROMPTS[0]).name
    assert "with the prompt, drawn at temperature 0.7" in said and said.endswith("0.9") == ("top_p" in cuts)


def test_drawn_shares_are_the_models(loaded: tuple[Any, Any]) -> None:
    """Against transformers' own warpers; a token that they exclude is no evidence."""
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

    from caw.detection.ratios import ratio_levels

    model, tokenizer = loaded
    prompt, text = tokenizer(PROMPTS[0])["input_ids"], np.array(drawn(loaded, None, 40, temperature=2.0)[0])
    ids = torch.tensor([[*prompt, *text.tolist()]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    warped = LogitsProcessorList([TemperatureLogitsWarper(0.8), TopPLogitsWarper(0.6)])(ids, logits)
    shares = warped.softmax(1)[torch.arange(len(text)), torch.from_numpy(text)].double().numpy()
    weights = ReaderWeights(*loaded, PROMPTS[0], temperature=0.8, top_p=0.6)
    [levels] = weights.text_levels([text], RACE)
    assert np.abs(levels - ratio_levels(shares)).max() <= 1 and (levels[shares == 0] == 0).all()
    assert 0 < (shares == 0).sum() < len(text)


def test_p_values_of_drawn_readers_are_uniform_over_keys(loaded: tuple[Any, Any]) -> None:
    texts = drawn(loaded, None, 30)[:1] + drawn(loaded, RACE, 30)[:1]
    weights, found = ReaderWeights(*loaded, PROMPTS[0], temperature=0.7), []
    for key in range(80):
        found += [r.p_value for r in caw.detect(texts, None, RACE.with_key(key), weights=weights)]
    p = np.array(found)
    for level in (0.1, 0.02):
        assert stats.binomtest(int((p <= level).sum()), len(p), level, "greater").pvalue > 1e-4
    assert stats.kstest(p, "uniform").pvalue > 1e-4


def test_a_recommended_takes_each_reader_for_its_family(loaded: tuple[Any, Any]) -> None:
    """Weights count for the family that they are for; the other is tested without."""
    mark = caw.Recommended("w")
    [greedy] = caw.generate(*loaded, PROMPTS[:1], watermark=mark.greedy, max_new_tokens=40,
                            progress=False, return_trace=False).sequences  # fmt: skip
    [raced] = drawn(loaded, mark, 40)[:1]
    of_drawn = ReaderWeights(*loaded, PROMPTS[0], temperature=0.7)
    of_greedy = ReaderWeights(*loaded, PROMPTS[0])
    for text, own, other, family in ((greedy, of_greedy, of_drawn, "kgw"), (raced, of_drawn, of_greedy, "exp")):
        plain, helped, beside = (caw.detect(text, None, mark, weights=w) for w in (None, own, other))
        assert helped.family == plain.family == beside.family == family
        assert beside.p_value == plain.p_value and helped.p_value != plain.p_value


@pytest.mark.parametrize(("options", "said"), [
    ({"top_p": 0.9}, "top_p says how a text was drawn, got no temperature; give it"),
    ({"temperature": 0.0}, "temperature must be a number in"), ({"temperature": 1.0, "top_p": 0}, "top_p must be in"),
    ({"temperature": 1.0, "policy": caw.FixedStrength(0.5)}, "got a temperature and policy; leave one out"),
    ({"temperature": 1.0, "factors": [1.0]}, "got a temperature and factors; leave one out"),
])  # fmt: skip
def test_what_does_not_go_with_drawn_texts(loaded: tuple[Any, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ReaderWeights(*loaded, **options)


@pytest.mark.parametrize("mark", [MARKS["kgw"], MARKS["exp"]])
def test_a_temperature_is_for_the_race(loaded: tuple[Any, Any], mark: Any) -> None:
    with pytest.raises(ValueError, match=r"a temperature is for texts of EXP\(strength='scale'\) or caw.Recommended"):
        Detector(None, mark, weights=ReaderWeights(*loaded, temperature=0.7))
