"""A receipt through JSON and back; it names no folder and no key; what is no receipt is refused."""

import json
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import caw
from caw.decoding.row_settings import RowSettings
from caw.detectable.receipts import Receipt, _of_mark, text_digest
from caw.detectable.trial import Trial
from caw.detection import Detector
from caw.evaluator import Evaluator, FeatureSpec
from caw.policies.target import policy_text

RECEIPT = Receipt(
    True, "", 1e-5, 1e-3, 2, "kgw", "FixedStrength(value=1.0)", 1.5, "7afebdea", {"name": "w", "digest": "00"}, 60,
    text_digest("a text"), 0.1, 1.0, {"mode": "exact"}, {"caw": caw.__version__},
)  # fmt: skip


@pytest.mark.parametrize("receipt", [RECEIPT, replace(RECEIPT, weights=None, detected=False, reason="p", edits=0.0)])
def test_json_and_back(receipt: Receipt) -> None:
    assert Receipt.from_dict(json.loads(json.dumps(receipt.as_dict()))) == receipt
    assert Receipt.from_dict({**receipt.as_dict(), "later": 1}) == receipt
    with pytest.raises(FrozenInstanceError):
        receipt.detected = False  # type: ignore[misc]


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a text": ({"p_value": "0.1"}, TypeError, "a receipt's p_value has the wrong type, got '0.1'"),
    "a number": ({"detected": 1}, TypeError, "a receipt's detected has the wrong type, got 1"),
    "true": ({"attempts": True}, TypeError, "a receipt's attempts has the wrong type, got True"),
    "a level": ({"level": 0.0}, ValueError, "level must be in (0, 1)"),
    "a p-value": ({"p_value": 1.5}, ValueError, "its p_value in [0, 1], got 0.001 and 1.5"),
    "a sub-key": ({"subkey": "3"}, TypeError, "a receipt's subkey has the wrong type, got '3'"),
    "weights": ({"weights": {"name": "w"}}, ValueError, "weights must have name and digest, got ['name']"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_receipt(what: str) -> None:
    change, error, message = BAD[what]
    with pytest.raises(error) as caught:
        Receipt.from_dict({**RECEIPT.as_dict(), **change})
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("mark", "told"), [
    (caw.KGW(1), {}), (caw.KGW(1, subkey=3), {"subkey": 3, "subkeys": 1}),
    (caw.KGW(1, subkeys=4), {"subkey": 0, "subkeys": 4}),
])  # fmt: skip
def test_the_sub_key_that_marked_is_recorded(mark: caw.KGW, told: dict[str, int]) -> None:
    chosen = SimpleNamespace(strength_factor=1.0, request=SimpleNamespace(row=RowSettings()))
    assert _of_mark(Trial(Detector(None, mark)), chosen, None) == told  # type: ignore[arg-type]
    guarded = SimpleNamespace(subkey=1)  # which the unmarked text showed most of
    assert _of_mark(Trial(Detector(None, mark)), chosen, guarded).get("subkey") == (1 if told else None)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, [], {}, "detected", {"detected": True}])
def test_what_lacks_fields(value: Any) -> None:
    with pytest.raises(ValueError, match=r"a receipt must have (detected|reason), got "):
        Receipt.from_dict(value)


def test_a_policy_is_named_without_folders_and_objects(tmp_path: Path) -> None:
    torch.manual_seed(0)
    evaluator = Evaluator(FeatureSpec(), hidden=8).eval()
    evaluator.save(tmp_path / "tiny.safetensors")
    saved = caw.CapacityPolicy(tmp_path / "tiny.safetensors", theta=0.5, beta=2.0)
    assert policy_text(saved) == "CapacityPolicy(evaluator='tiny.safetensors', theta=0.5, beta=2.0)"
    assert policy_text(caw.CapacityPolicy(evaluator, theta=0.5, beta=2.0)).startswith("CapacityPolicy(evaluator='Eval")
    assert policy_text(caw.EntropyThreshold(1.0, 2.0)) == "EntropyThreshold(nats=1.0, value=2.0)"
