"""Values of every kind for every number, name and switch: taken as they are meant, or refused in one short sentence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import caw
from caw.detection import Detector, TokenWeights
from caw.detection.detector import locate
from caw.models.device import resolve_device, resolve_dtype
from caw.policies import EntropyThreshold, FixedStrength, LogitDeltaThreshold
from caw.settings import Settings

NAN, INF = float("nan"), float("inf")
# 10**5000 has more digits than Python writes
STRANGE = [NAN, INF, -INF, 10**400, 10**5000, -1, "1", "\ud800", b"", [], {}, (), complex(1, 1), object(), 1e308,
           np.float32(0.5), np.array([1, 2]), torch.tensor(2), torch.tensor(0.5),
           torch.tensor(1.0, device="meta")]  # fmt: skip
CPU = torch.device("cpu")
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "gamma": lambda v: caw.KGW(key=1, gamma=v),
    "delta": lambda v: caw.Unigram(key=1, delta=v),
    "context_width": lambda v: caw.KGW(key=1, context_width=v),
    "seeding": lambda v: caw.KGW(key=1, seeding=v),
    "foreign seeding": lambda v: caw.KGW(key=1, seeding=v, format="transformers"),
    "format": lambda v: caw.EXP(key=1, format=v),
    "vocab_size of KGW": lambda v: caw.KGW(key=1, vocab_size=v),
    "vocab_size of Unigram": lambda v: caw.Unigram(key=1, vocab_size=v),
    "vocab_size of EXP": lambda v: caw.EXP(key=1, vocab_size=v),
    "payload_bits": lambda v: caw.EXP(key=1, payload_bits=v),
    "payload": lambda v: caw.EXP(key=1, payload=v, payload_bits=4),
    "top_k": lambda v: caw.EXP(key=1, top_k=v),
    "strength": lambda v: caw.EXP(key=1, strength=v),
    "deduplicate": lambda v: caw.EXP(key=1, deduplicate=v),
    "alpha": lambda v: caw.EXP(key=1, alpha=v),
    "depth": lambda v: caw.SynthID(1, depth=v),
    "reading": lambda v: caw.SynthID(1, reading=v),
    "sampling_table_size": lambda v: caw.SynthID(1, sampling_table_size=v),
    "theta": lambda v: caw.CapacityPolicy("smollm2-135m", theta=v),
    "fixed": FixedStrength,
    "nats": EntropyThreshold,
    "gap": LogitDeltaThreshold,
    "fpr": lambda v: Detector(None, caw.KGW(key=1), fpr=v),
    "mode": lambda v: Detector(None, caw.KGW(key=1), mode=v),
    "mid_p": lambda v: Detector(None, caw.KGW(key=1), mid_p=v),
    "regions": lambda v: Detector(None, caw.KGW(key=1), regions=v),
    "level": lambda v: TokenWeights(np.array([1]), v),
    "dtype": lambda v: resolve_dtype(v, CPU),
    "device": resolve_device,
    **{
        name: lambda v, name=name: Settings(**{name: v})
        for name in ("max_new_tokens", "min_new_tokens", "branching", "do_sample", "temperature", "top_p", "seed",
                     "slots", "chat", "mark_eos", "return_trace", "batch_size", "compile")
    },
}  # fmt: skip


@pytest.mark.parametrize("what", NUMBERS)
def test_strange_values_get_one_short_sentence(what: str) -> None:
    for value in STRANGE:
        with pytest.raises((TypeError, ValueError)) as caught:
            NUMBERS[what](value)
        message = str(caught.value)
        assert caught.type in (TypeError, ValueError), (what, message)
        assert "\n" not in message and "; " in message and len(message) < 320, (what, message)
        assert "Exceeds the limit" not in message, what


def test_no_text_has_no_marked_parts() -> None:
    assert locate([], Detector(None, caw.KGW(key=1))) == []
    for several in ([np.array([1])], [torch.tensor([1]), torch.tensor([2])]):
        with pytest.raises(TypeError, match="expected one text, got a list of"):
            locate(several, Detector(None, caw.KGW(key=1)))
