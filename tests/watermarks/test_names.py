"""Every watermark has a name, and its name leads back to it."""

import json

import pytest

import caw
from caw.watermarks.names import (
    WATERMARKS,
    reads_alike,
    said_of,
    watermark_arguments,
    watermark_class,
    watermark_from,
    watermark_name,
)  # fmt: skip


def test_every_watermark_has_a_name() -> None:
    every = {caw.Recommended, caw.KGW, caw.Unigram, caw.EXP, caw.SynthID}
    assert {watermark_class(name) for name in WATERMARKS} == every


@pytest.mark.parametrize("name", WATERMARKS)
def test_names_and_classes_belong_together(name: str) -> None:
    assert watermark_name(watermark_class(name)(1)) == name
    assert "key" not in watermark_arguments(name)
    assert set(WATERMARKS[name].strength) <= set(watermark_arguments(name))


@pytest.mark.parametrize("name", WATERMARKS)
def test_no_detector_reads_what_sets_the_strength(name: str) -> None:
    """Texts of one key can be tested whatever strength each policy gave them."""
    kind, tokens = watermark_class(name), list(range(5, 60))
    changed = {
        argument: {"delta": 7.5, "top_k": 3, "free": 0, "target": 0.1, "evaluator": "x"}[argument]
        for argument in WATERMARKS[name].strength
    }
    plain, other = (caw.detect(tokens, None, mark) for mark in (kind(1), kind(1, **changed)))
    assert (plain.p_value, plain.num_scored) == (other.p_value, other.num_scored)


@pytest.mark.parametrize("mark", [
    *(watermark_class(name)("secret") for name in WATERMARKS),
    caw.KGW(key="secret", gamma=0.5, delta=2.5, seeding="selfhash", context_width=3),
    caw.KGW(key=15485863, format="transformers", vocab_size=500),
    caw.EXP(key="secret", top_k=3, strength="scale", deduplicate=False),
], ids=repr)  # fmt: skip
def test_what_is_said_of_a_watermark_is_all_but_its_key(mark: caw.watermarks.Watermark) -> None:
    told = json.loads(json.dumps(said_of(mark)))
    assert watermark_from(told, 5).with_key(mark.key) == mark
    assert "key" not in told and str(mark.key) not in json.dumps(told)


def test_what_strength_and_vocabulary_change_is_read_alike() -> None:
    one = caw.KGW(key=1)
    assert reads_alike(one, caw.KGW(key=2, delta=1.0)) and reads_alike(caw.EXP(key=1), caw.EXP(key=1, top_k=3))
    foreign = caw.KGW(key=1, format="transformers")
    assert reads_alike(foreign, foreign.with_vocabulary(500))
    others = [caw.KGW(key=1, gamma=0.5), caw.KGW(key=1, seeding="selfhash"), foreign, caw.Unigram(key=1)]
    assert not any(reads_alike(one, other) for other in others)
