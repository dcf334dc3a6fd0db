"""Payloads: the code, reading them back, damaged texts, and p-values that allow for all messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from decoding.running import run
from pairwise import pairwise
from scipy import stats
from tiny import tiny_model

import caw
from caw.detection import Detector
from caw.detection.payload import payload_evidence, read_payload
from caw.testing import assert_close
from caw.watermarks import EXP, KGW
from caw.watermarks.payload import Block, PayloadCode

pytest.importorskip("reedsolo", reason="needs reedsolo (pip install reedsolo)")
MAKERS = {
    "lefthash": lambda **p: KGW(key=5, **p),
    "half": lambda **p: KGW(key=5, gamma=0.5, **p),
    "selfhash": lambda **p: KGW(key=5, seeding="selfhash", **p),
    "exp": lambda **p: EXP(key=5, **p),
}


def marked(watermark: Any, count: int, share: float = 1.0, vocab_size: int = 5000, seed: int = 0) -> list[int]:
    """Ids of which a share is green, or the best of 20 under the race; contexts are the marked text's own."""
    generator = torch.Generator().manual_seed(seed)
    ids = [1]
    while len(ids) < count:
        options = torch.randint(0, vocab_size, (20,), generator=generator)
        best = 0
        if float(torch.rand((), generator=generator)) < share:
            context = watermark.contexts(torch.tensor([*ids[-watermark.window :], 0]))[-1:]
            if isinstance(watermark, KGW):
                scores = watermark.green_tokens(context, options[None])[0].double()
            else:
                scores = watermark.scheme.words(context, options[None])[0].double()
            best = int(scores.argmax())
        ids.append(int(options[best]))
    return ids


@pytest.mark.parametrize("bits, r", [(1, 4), (8, 2), (12, 16), (16, 4)])
def test_all_code_words_are_the_words_of_each_message(bits: int, r: int) -> None:
    block = Block(bits, r)
    words = block.all_symbols
    assert words.shape == (1 << bits, block.positions) and len(np.unique(words, axis=0)) == 1 << bits
    for message in {0, 1, (1 << bits) - 1, (1 << bits) // 3}:
        assert np.array_equal(words[message], block.symbols(message))


def test_code_words_differ_in_three_bytes() -> None:
    """Two bytes of parity: any two messages of a block differ in at least three bytes."""
    words = Block(16, 16).all_symbols.reshape(1 << 16, 4, 2)
    differ = (words[1:] != words[0]).any(axis=2).sum(axis=1)  # the code is linear
    assert differ.min() == 3


def test_long_payloads_are_two_blocks() -> None:
    code = PayloadCode(20, 4)
    assert [b.bits for b in code.blocks] == [4, 16] and code.positions == 12 + 16
    message = 0xABCDE
    assert np.array_equal(code.symbols(message)[:12], Block(4, 4).symbols(0xA))
    assert np.array_equal(code.symbols(message)[12:], Block(16, 4).symbols(0xBCDE))


@pytest.mark.parametrize("name, bits", pairwise(MAKERS, [1, 7, 16, 32])[::2])
def test_what_is_written_is_read(name: str, bits: int) -> None:
    message = (0xC0FFEE42 >> 3) % (1 << bits)
    ids = marked(MAKERS[name](payload=message, payload_bits=bits), 30 + 6 * bits)
    result = caw.detect(ids, None, MAKERS[name](payload_bits=bits))
    assert result.is_watermarked and result.payload == message
    assert len(result.payload_confidence) == bits and min(result.payload_confidence) > 0.5
    assert result.message.endswith(f"payload {message}")
    other = caw.detect(ids, None, KGW(key=6, payload_bits=bits))
    assert not other.is_watermarked and other.payload is None


@pytest.mark.slow
def test_half_marked_texts_are_mended() -> None:
    """Of weakly marked texts the symbols alone would often be wrong."""
    right = 0
    for seed, bits in zip(range(6), (16, 32) * 3, strict=True):
        message = (seed * 0x9E3779B1 + 7) % (1 << bits)
        ids = marked(KGW(key=seed, payload=message, payload_bits=bits), 400, share=0.5, seed=seed)
        right += caw.detect(ids, None, KGW(key=seed, payload_bits=bits)).payload == message
    assert right >= 5


def test_p_value_is_the_tail_times_the_number_of_messages() -> None:
    watermark = KGW(key=5, payload=9, payload_bits=8)
    ids = marked(watermark, 60, share=0.6)
    result = caw.detect(ids, None, watermark)
    assert_close(result.p_value, 256 * stats.binom.sf(result.score - 1, result.num_scored, 0.25), "tail")
    assert sum(s is not None for s in result.token_scores) == result.num_scored
    assert sum(s for s in result.token_scores if s is not None) == result.score


@pytest.mark.parametrize(("bits", "texts"), [(4, 100), (20, 30)])
@pytest.mark.parametrize("name", ["lefthash", "exp"])
def test_unmarked_texts_under_fresh_keys(name: str, bits: int, texts: int) -> None:
    """Of 20 bits fewer: what forgets how many messages were tried finds a third to all of them."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(texts):
        kind = KGW if name == "lefthash" else EXP
        watermark = kind(key=int(rng.integers(0, 2**62)), payload_bits=bits)
        found += caw.detect(rng.integers(0, 60, 100).tolist(), None, watermark, fpr=0.05).is_watermarked
    assert stats.binomtest(found, texts, 0.05, "greater").pvalue > 1e-6


def test_confidence_falls_with_the_strength() -> None:
    least = []
    for share in (1.0, 0.4):
        watermark = KGW(key=5, payload=1234, payload_bits=16)
        values, positions, _ = payload_evidence(watermark, np.array(marked(watermark, 150, share)))
        reading = read_payload(watermark, values, positions, np.ones(150, bool))
        least.append(min(reading.confidence))
    assert least[0] > 0.99 and least[1] < least[0]


@pytest.mark.parametrize("watermark", [KGW(key=3, delta=30.0, payload=21, payload_bits=6),
                                       EXP(key=3, top_k=40, payload=21, payload_bits=6, context_width=2)])  # fmt: skip
def test_a_model_writes_it(watermark: Any) -> None:
    (ids,) = run(tiny_model(97), [[5, 6]], watermark, max_new_tokens=200).tokens
    assert Detector(None, watermark)(ids).payload == 21  # type: ignore[union-attr]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"payload": 3}, "a payload requires payload_bits"),
    ({"payload": 4, "payload_bits": 2}, r"payload must be an integer in \[0, 3\]"),
    ({"payload_bits": 33}, r"payload_bits must be an integer in \[0, 32\]"),
    ({"payload_bits": 4, "gamma": 0.3}, "gamma 1/2, 1/4 or 1/16"),
    ({"payload_bits": 4, "format": "transformers"}, "payloads require format 'native'"),
]


@pytest.mark.parametrize("change, message", BAD)
def test_bad_parameters(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KGW(**{"key": 1, **change})


def test_marking_needs_the_payload_and_reading_no_options() -> None:
    with pytest.raises(ValueError, match="requires a payload, got none"):
        run(tiny_model(97), [[1]], KGW(key=1, payload_bits=4))
    with pytest.raises(ValueError, match="without mid_p and weights"):
        Detector(None, KGW(key=1, payload_bits=4), mid_p=True)
    for watermark in (KGW(key=1, payload_bits=4), EXP(key=1, payload=3, payload_bits=4)):
        with pytest.raises(ValueError, match="payloads require mode 'exact'"):
            Detector(None, watermark, mode="compat")


@pytest.mark.parametrize(("name", "written", "asked", "said"), [
    ("lefthash", 8, 16, 8), ("exp", 16, 8, 16), ("exp", 8, 24, 8), ("lefthash", 24, 16, 24), ("exp", 32, 8, 32),
    ("lefthash", 16, 32, 16), ("exp", 8, 5, 8), ("lefthash", 3, 16, 8),
])  # fmt: skip
def test_a_payload_read_with_another_size_is_told(name: str, written: int, asked: int, said: int) -> None:
    """A payload of 8 bits read as 16 gave a number that nobody wrote, at a p-value of 7.6e-4."""
    ids = marked(MAKERS[name](payload=(1 << written) - 2, payload_bits=written), 200)
    result = caw.detect(ids, None, MAKERS[name](payload_bits=asked), fpr=0.1)
    if result.is_watermarked:  # else nothing is read
        assert result.payload is None and result.payload_confidence is None
        assert result.message.endswith(f"payload of another size: read it with payload_bits={said}")
    assert caw.detect(ids, None, MAKERS[name](payload_bits=said)).payload == (1 << written) - 2


@pytest.mark.parametrize("bits", [1, 12, 16, 32])
def test_the_right_size_is_not_doubted(bits: int) -> None:
    """In short and weakly marked texts neither, where the own reading is hardly sure."""
    found = 0
    for seed in range(5):
        mark = KGW(key=5 + seed, payload=seed % (1 << bits), payload_bits=bits)
        ids = marked(mark, 60 + 15 * (seed % 4), 0.7, seed=seed)
        result = caw.detect(ids, None, KGW(key=5 + seed, payload_bits=bits), fpr=0.05)
        found += result.is_watermarked
        assert not result.is_watermarked or result.payload is not None
    assert found > 1
