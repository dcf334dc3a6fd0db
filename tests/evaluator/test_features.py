"""FeatureSpec: what it accepts, what it assembles."""

import pytest
import torch

from caw.capacity import PROBABILITY_FLOOR
from caw.evaluator import FeatureSpec
from caw.record import RECORD_SIZE, Record
from caw.testing import assert_close


@pytest.mark.parametrize("arguments, error, message", [
    ({"previous": -1}, ValueError, "window must be within"), ({"previous": 4}, ValueError, "window must be within"),
    ({"next": 4}, ValueError, "window must be within"), ({"k": 0}, ValueError, "k must be in"),
    ({"k": RECORD_SIZE + 1}, ValueError, "k must be in"),
    ({"transform": "logit"}, ValueError, "transform must be raw, log or gap"),
    ({"version": 2}, ValueError, "feature version must be 1"),
    ({"previous": "1"}, TypeError, "previous must be an integer"),
    ({"next": True}, TypeError, "next must be an integer"), ({"k": 10.0}, TypeError, "k must be an integer"),
])  # fmt: skip
def test_spec_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        FeatureSpec(**arguments)


@pytest.mark.parametrize(
    "window, decodable", [((0, 0), True), ((1, 1), True), ((2, 1), True), ((3, 1), False), ((1, 2), False)]
)
def test_check_decodable(window, decodable):
    spec = FeatureSpec(previous=window[0], next=window[1])
    if decodable:
        spec.check_decodable()
        return
    with pytest.raises(ValueError, match=r"decoding supports windows up to \(2, 1\)"):
        spec.check_decodable()


@pytest.mark.parametrize("window", [(0, 0), (1, 1), (3, 2)])
@pytest.mark.parametrize("k", [1, 7, RECORD_SIZE])
@pytest.mark.parametrize("transform", ["raw", "log", "gap"])
def test_assemble_shape_and_order(window, k, transform):
    spec = FeatureSpec(previous=window[0], next=window[1], k=k, transform=transform)
    records = [Record.from_logits(torch.randn(3, 131)) for _ in range(spec.positions)]
    features = spec.assemble(records)
    assert features.shape == (3, spec.size) and features.dtype == torch.float32
    alone = FeatureSpec(previous=0, next=0, k=k, transform=transform)
    for place, record in enumerate(records):  # oldest first
        assert_close(features[:, place * k : (place + 1) * k], alone.assemble([record]), "exact")


def test_transforms_against_their_definition():
    logits = torch.randn(5, 211)
    record = Record.from_logits(logits)
    probs = logits.double().softmax(-1).sort(-1, descending=True).values[:, :RECORD_SIZE]
    one = {"previous": 0, "next": 0}
    assert_close(FeatureSpec(**one, transform="raw").assemble([record]), probs, "softmax")
    assert_close(FeatureSpec(**one, transform="log").assemble([record]), probs.log(), "float32")
    gap = torch.cat([probs[:, :1].log(), probs[:, :1].log() - probs[:, 1:].log()], 1)
    assert_close(FeatureSpec(**one, transform="gap").assemble([record]), gap, "float32")


@pytest.mark.parametrize("vocabulary", [1, 3, 99])
def test_small_vocabulary_is_padded(vocabulary):
    record = Record.from_logits(torch.randn(2, vocabulary))
    features = FeatureSpec(previous=0, next=0).assemble([record])
    assert features.shape == (2, RECORD_SIZE) and bool(features.isfinite().all())
    floor = torch.full((2, RECORD_SIZE - vocabulary), PROBABILITY_FLOOR).log()
    assert_close(features[:, vocabulary:], floor, "exact")


@pytest.mark.parametrize("transform, padding", [("raw", 0.0), ("log", float(torch.tensor(PROBABILITY_FLOOR).log()))])
def test_missing_position(transform, padding):
    here = Record.from_logits(torch.randn(2, 300))
    features = FeatureSpec(next=0, transform=transform).assemble([Record.empty(2, torch.device("cpu")), here])
    assert_close(features[:, :RECORD_SIZE], torch.full((2, RECORD_SIZE), padding), "exact")
    assert_close(
        features[:, RECORD_SIZE:], FeatureSpec(previous=0, next=0, transform=transform).assemble([here]), "exact"
    )


def test_empty_batch():
    empty = Record.from_logits(torch.randn(1, 300)).take(torch.empty(0, dtype=torch.int64))
    assert FeatureSpec().assemble([empty] * 3).shape == (0, 300)


def test_assemble_refuses():
    record = Record.from_logits(torch.randn(2, 300))
    with pytest.raises(ValueError, match="expected 3 records, got 2"):
        FeatureSpec().assemble([record, record])
    short = Record.from_logits(torch.randn(2, 300), k=50)
    with pytest.raises(ValueError, match="at least 100 values, got 50"):
        FeatureSpec().assemble([record, short, record])
