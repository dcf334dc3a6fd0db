"""`caw.CapacityPolicy()` on a model that nobody trained an evaluator for."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import save_tiny

import caw
from caw.decoding.prompts import accept_prompts
from caw.evaluator import Evaluator
from caw.evaluator.token_classes import class_table
from caw.models.facts import ModelFacts
from caw.models.teacher import teacher_forced
from caw.models.text_reading import capacities
from caw.record import Record
from caw.testing import assert_close

KEY = 42
PROMPTS = ["the sky is blue", "a small text"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    model: tuple[Any, Any] = caw.load_model(str(save_tiny(Path(tmp_path_factory.mktemp("tiny")))), dtype="float32")
    return model


def made(tiny: tuple[Any, Any], **options: Any) -> caw.GenerationOutput:
    given = {"max_new_tokens": 120, "progress": False, "watermark": caw.KGW(key=KEY), **options}
    return caw.generate(*tiny, PROMPTS, **given)


def test_texts_are_marked_and_found_and_nothing_warns(tiny: tuple[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = made(tiny, policy=caw.CapacityPolicy(), max_new_tokens=150)
    assert out.sequences != made(tiny, watermark=None).sequences
    for ids in out.sequences:  # a random model's bytes are no text
        assert caw.detect(ids, None, caw.KGW(key=KEY), fpr=1e-2).is_watermarked
        assert not caw.detect(ids, None, caw.KGW(key=KEY + 1), fpr=1e-2).is_watermarked


@pytest.mark.parametrize(("given", "ahead"), [({}, False), ({"evaluator": "universal"}, True)])
def test_the_default_does_not_look_ahead_and_the_receipt_names_it(
    tiny: tuple[Any, Any], given: dict[str, Any], ahead: bool
) -> None:
    policy = caw.CapacityPolicy(**given)
    out = made(tiny, policy=policy, max_new_tokens=20, detectable_at=1e-3)
    assert policy.looks_ahead == ahead and out.receipts
    named = f"evaluator='{'universal' if ahead else 'universal-window00'}'"
    assert all(named in str(receipt and receipt.policy) for receipt in out.receipts)


@pytest.mark.parametrize("name", ["universal", "universal-window00"])
def test_capacities_are_those_of_the_networks_own_inputs(tiny: tuple[Any, Any], name: str) -> None:
    model, tokenizer = tiny
    out = made(tiny, policy=caw.CapacityPolicy(name, theta=0.0))  # marks nothing, so i + 1 follows the text's own token
    network = Evaluator.load(name).for_tokenizer(tokenizer, len(tokenizer))
    assert torch.equal(network.token_class, class_table(tokenizer, len(tokenizer), network.spec.line_ends))
    ids = accept_prompts(tokenizer, PROMPTS, ModelFacts.of(model, tokenizer), caw.RowSettings()).ids
    for prompt, sequence, trace in zip(ids, out.sequences, out.trace or [], strict=True):
        [(_, logits)] = teacher_forced(model, [([*prompt, *sequence], len(prompt) - 1)])
        expected = capacities(network, Record.from_logits(logits), 1, len(sequence))
        seen = torch.tensor(trace.capacity)
        assert_close(seen, expected, "capacity")
        assert bool((seen == seen).all())


def test_greedy_texts_of_recommended_use_it_where_it_is_named(tiny: tuple[Any, Any]) -> None:
    mark = caw.Recommended(KEY, evaluator="universal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = made(tiny, watermark=mark, detectable_at=1e-3)
    assert out.receipts is not None
    assert all(receipt is not None and "universal" in str(receipt.policy) for receipt in out.receipts)


def test_inside_generate_it_asks_for_the_tokenizer(tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny
    given = tokenizer(PROMPTS[0], return_tensors="pt")
    options = {"custom_generate": caw.decode, "watermark": caw.KGW(key=KEY), "max_new_tokens": 9, "do_sample": False}
    with pytest.raises(
        TypeError, match=r"^evaluator universal-window00 reads token classes .*CapacityPolicy\(\.\.\.\)\.serving"
    ):
        model.generate(**given, policy=caw.CapacityPolicy(), **options)
    served = model.generate(**given, policy=caw.CapacityPolicy().serving(tokenizer), **options)
    assert (
        served[0, given["input_ids"].shape[1] :].tolist()
        == made(tiny, policy=caw.CapacityPolicy(), max_new_tokens=9).sequences[0][:9]
    )


def test_a_policy_is_the_same_whatever_it_serves(tiny: tuple[Any, Any]) -> None:
    policy = caw.CapacityPolicy()
    served = policy.serving(tiny[1])
    assert served == policy and served.network is not policy.network and served.serving(None) is served
    own = caw.CapacityPolicy("smollm2-135m")
    assert own.serving(tiny[1]) is own
