"""format="sbw": a plain writing of the rule, and the package itself where it is installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import caw
from caw.testing import assert_close
from caw.watermarks import KGW
from caw.watermarks.formats import sbw

KEY, VOCABULARY = 15485863, 503
SCHEMES = {"lefthash": "gpu-simple_1", "simple_4": "gpu-fused-simple_4", "minhash": "gpu-minhash",
           "skipgram": "gpu-skipgram", "selfhash": "gpu-fused-selfhash-fullvocab"}  # fmt: skip
plain = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "make_golden.py")))


def jenkins(x: int) -> int:
    """Jenkins' hash on C's signed 32-bit integers."""

    def signed(i: int) -> int:
        return (i + 2**31) % 2**32 - 2**31

    i = signed(x + 1)
    for shift, how in ((6, "-"), (-17, "^"), (9, "-"), (4, "^"), (3, "-"), (10, "^"), (-15, "^")):
        moved = signed(i << shift) if shift > 0 else i >> -shift
        i = signed(i - moved) if how == "-" else i ^ moved
    return i


def test_integer_hash() -> None:
    values = [0, 1, 42, 50256, 2**31 - 2, 2**31 - 1]
    assert sbw.hashint(torch.tensor(values)).tolist() == [jenkins(v) for v in values]


@pytest.mark.parametrize("scheme", ["simple_4", "selfhash"])
def test_green_tokens_equal_a_plain_writing(scheme: str) -> None:
    watermark = KGW(key=KEY, gamma=0.5, seeding=scheme, format="sbw", vocab_size=VOCABULARY)
    for context in torch.randint(0, VOCABULARY, (5, 4)).tolist():
        mask = watermark.green_vocabulary(torch.tensor([context]), VOCABULARY)[0].tolist()
        for token in range(0, VOCABULARY, 50):
            if scheme == "simple_4":
                seed = KEY * sum(context) % 2**64
            else:
                pairs = [KEY * jenkins(x) * jenkins(token) for x in [*context[1:], token]]
                seed = min((p + 2**63) % 2**64 - 2**63 for p in pairs) % 2**64
            word = plain.philox([token // 4, 0, 0, 0], [seed % 2**32, seed // 2**32])[token % 4]
            assert mask[token] == ((word & 0x7FFFFFFF) < int(0.5 * 0x7FFFFFFF))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_live(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function=None, **options: function or (lambda f: f))
    package = pytest.importorskip("sbw.batch", reason="needs SBW (pip install sbw)", exc_type=ImportError)
    detectors = pytest.importorskip("sbw.detector", reason="needs SBW (pip install sbw)", exc_type=ImportError)
    options = {"vocab": list(range(VOCABULARY)), "gamma": 0.5, "seeding_scheme": SCHEMES[scheme], "hash_key": KEY}
    batch = package.WatermarkBatch(**options, delta=2.0, device=torch.device("cpu"))
    watermark = KGW(key=KEY, gamma=0.5, seeding=scheme, format="sbw", vocab_size=VOCABULARY)
    context = torch.randint(0, VOCABULARY, (5, watermark.window))
    logits = torch.zeros(5, VOCABULARY)
    if scheme == "selfhash":
        marked = batch.apply_watermark_selfsalt_fused(context, logits)
    elif scheme == "simple_4":
        marked = batch.apply_watermark_simple_fused(context, logits)
    else:
        marked = batch.apply_watermark_fused(context, logits)
    assert torch.equal(watermark.green_vocabulary(context, VOCABULARY), marked > 0)
    ids = torch.randint(0, 40, (300,))
    detector = detectors.WatermarkDetector(**options, device=torch.device("cpu"), tokenizer=object(), normalizers=[])
    found: Any = detector._score_sequence(ids)
    ours = caw.detect(ids, None, watermark, mode="compat")
    assert (ours.num_scored, ours.score) == (found["num_tokens_scored"], found["num_green_tokens"])
    assert_close(ours.z_score, found["z_score"], "float64")
    assert_close(ours.p_value, found["p_value"], "tail")
