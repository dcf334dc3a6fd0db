"""Ladders, compiled and by the Triton kernel, against the watermarks' own PyTorch code; integers are equal."""

from typing import Any

import pytest
import torch
from prf_inputs import key_tensor, mixed_keys

from caw.record import Record
from caw.testing import assert_close
from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref
from caw.watermarks import EXP, KGW, Position, Unigram, Watermark

OP = "enumerate_candidates"
BUILDERS: dict[str, Any] = {
    "lefthash": lambda **k: KGW(key=1, **k),  # its derived key has words above 2^31
    "lefthash5": lambda **k: KGW(key=2**64 - 1, context_width=5, **k),
    "selfhash": lambda **k: KGW(key="text", seeding="selfhash", **k),
    "selfhash8": lambda **k: KGW(key=0, seeding="selfhash", context_width=8, **k),
    "unigram": lambda **k: Unigram(key=2**63, **k),
    "top_k": lambda **k: EXP(key=1, top_k=20),  # low word 1, high word 0: integers a launch may specialise on
    "top_k wide": lambda **k: EXP(key=2**63 + 5, top_k=100, context_width=9),
    "scale": lambda **k: EXP(key=2**40, strength="scale", context_width=1),
}


def position(scores: torch.Tensor, window: int, noise: torch.Tensor | None = None) -> Position:
    """Each row of scores [B, V] as a position; with noise, the record is that of the perturbed row."""
    whole = scores if noise is None else scores + noise
    record = Record.from_logits(whole)
    context = torch.randint(-1, 70000, (len(scores), window))
    return Position(record, scores.gather(1, record.ids.clamp_min(0)), whole, context)


def given_of(watermark: Watermark, at: Position, greatest: float = 1.0, keys: torch.Tensor | None = None) -> list[Any]:
    native, record = watermark.native, at.record
    assert native is not None
    keys = torch.full_like(record.ids[:, 0], native.signed_key) if keys is None else keys
    tensors = [record.values, record.ids, at.race_values, at.scores, at.context, keys]
    return [*tensors, native.scheme, native.threshold, watermark.full, greatest]


def compare(kernel: Any, watermark: Watermark, at: Position, greatest: float) -> torch.Tensor:
    """Equal candidates, counts and needs of every rung; columns beyond repeat candidate 0. The counts."""
    given, expected = given_of(watermark, at, greatest), watermark.ladder(at, greatest)
    candidates, needs, counts = kernel(OP, *given)
    reference = enumerate_candidates_ref(*given)
    assert candidates.shape == needs.shape == reference[0].shape
    assert torch.equal(counts, expected.counts) and torch.equal(counts, reference[2])
    width = int(counts.max()) if len(counts) else 0
    beyond = torch.arange(candidates.shape[1])[None] >= counts[:, None]
    reached = ~beyond[:, :width]
    # breakpoints come from float64 logarithms of two libraries, rounded to float32
    row = "float32" if watermark.rule == "scale" else "exact"
    for ladder_candidates, ladder_needs in ((expected.candidates, expected.needs), reference[:2]):
        assert torch.equal(candidates[:, :width], ladder_candidates[:, :width])
        a, b = (x[:, :width][reached].nan_to_num(nan=0.25) for x in (needs, ladder_needs))
        assert_close(a, b, row)
    assert torch.equal(candidates[beyond], candidates[:, :1].expand_as(candidates)[beyond])
    return counts


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("greatest", [0.0, 0.35, 1.0])
def test_ladders_of_random_logits(kernel: Any, name: str, greatest: float) -> None:
    watermark, longest = BUILDERS[name](delta=3.3), 0
    for vocab_size in (1, 2, 37, 131) if greatest == 1.0 else (101,):
        random = torch.randn(2, vocab_size) * 3
        for scores in (random, random.bfloat16().float(), torch.randint(-3, 4, (2, vocab_size)).float()):
            at = position(scores, watermark.window)
            longest = max(longest, int(compare(kernel, watermark, at, greatest).max()))
    assert longest > 1 or greatest == 0.0 or (name == "top_k" and greatest < 1)
    assert kernel(OP, *given_of(watermark, position(torch.empty(0, 200), watermark.window)))[2].shape == (0,)


@pytest.mark.parametrize("name", BUILDERS)
def test_sampled_positions_and_masked_vocabularies(kernel: Any, name: str) -> None:
    watermark = BUILDERS[name](delta=4.0, gamma=0.1)
    scores, noise = torch.randn(4, 150) * 2, -torch.log(-torch.log(torch.rand(4, 150)))
    scores[1, ::3], scores[2, 1:], scores[3, 20:] = -torch.inf, -torch.inf, -torch.inf
    compare(kernel, watermark, position(scores, watermark.window, noise), 1.0)
    compare(kernel, watermark, position(scores, watermark.window), 1.0)


@pytest.mark.parametrize("name", ["lefthash", "selfhash", "unigram"])
def test_green_tokens_beyond_the_record(kernel: Any, name: str) -> None:
    """Some rows must be scanned whole, some need not be; ties beyond it too."""
    watermark = BUILDERS[name](gamma=0.004, delta=6.0)
    scores = torch.randn(6, 2500)
    scores[3:, 0] = 40.0  # nothing below the record can be reached
    at = position(scores, watermark.window)
    assert not bool(watermark.green_tokens(at.context, at.record.ids).any(dim=1).all())
    assert int(compare(kernel, watermark, at, 1.0).max()) == 2
    ties = torch.randint(-1, 2, (2, 2500)).float() / 8
    compare(kernel, watermark, position(ties, watermark.window), 1.0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", BUILDERS)
def test_no_logits_keep_it_for_ever(kernel: Any, name: str, bad: float) -> None:
    """NaN sorts first in a record, so it is the original token; nothing overtakes it, as in the reference."""
    watermark, scores = BUILDERS[name](gamma=0.05, delta=2.0), torch.randn(3, 130)
    scores[:, 5] = bad
    at = position(scores, watermark.window)
    candidates, _, counts = kernel(OP, *given_of(watermark, at))
    assert torch.equal(candidates[:, 0], at.record.ids[:, 0])
    assert bool(((counts >= 1) & (counts <= candidates.shape[1])).all())


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_of_other_keys(kernel: Any, name: str) -> None:
    watermark = BUILDERS[name](gamma=0.01, delta=5.0)
    at = position(torch.randn(4, 300), watermark.window)
    keys = key_tensor(mixed_keys(watermark.native.key, 4))
    given = given_of(watermark, at, keys=keys)
    together = kernel(OP, *given)
    for row in range(1, 4):
        own = [x[row : row + 1] if torch.is_tensor(x) else x for x in given]
        alone, reference = kernel(OP, *own), enumerate_candidates_ref(*own)
        reached = int(reference[2])
        for mixed, single, expected in zip(together, alone, reference, strict=True):
            assert torch.equal(mixed[row], single[0])
            if expected.dtype == torch.int64:
                assert torch.equal(mixed[row].view(-1)[:reached], expected[0].view(-1)[:reached])
    assert len({tuple(row) for row in together[0].tolist()}) > 1


@pytest.mark.parametrize("index, change, words", [
    (0, lambda x: x.double(), "values must be float32"), (1, lambda x: x.float(), "ids must be int64"),
    (1, lambda x: x[:, :5], r"ids must have shape \[2, 9\], got \[2, 5\]"),
    (3, lambda x: x[:1], "scores must have shape"), (4, lambda x: x.int(), "context must be int64"),
    (5, lambda x: x[:1], r"key must have shape \[2\], got \[1\]"), (5, lambda x: x.float(), "key must be int64"),
    (6, lambda x: 4, r"scheme must be .*, got 4"), (7, lambda x: -1, r"threshold must be in \[0, 2\*\*24\], got -1"),
])  # fmt: skip
def test_wrong_input_is_named(kernel: Any, index: int, change: Any, words: str) -> None:
    at = position(torch.randn(2, 9), 1)
    values, ids = at.record.values[:, :9].contiguous(), at.record.ids[:, :9].contiguous()
    given = [values, ids, at.scores, at.scores, at.context, key_tensor([5, 6]), 0, 100, 1.0, 1.0]
    given[index] = change(given[index])
    with pytest.raises((RuntimeError, TypeError, ValueError), match=words):
        kernel(OP, *given)
    with pytest.raises((RuntimeError, ValueError), match=r"context must hold at least 1 token for selfhash|a context"):
        kernel(OP, values, ids, at.scores, at.scores, at.context[:, :0], key_tensor([5, 6]), 1, 100, 1.0, 1.0)
