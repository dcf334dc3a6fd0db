"""Ladders by kernels against the watermarks' own PyTorch code."""

from __future__ import annotations

import pytest
import torch
from prf_inputs import key_tensor, mixed_keys

from caw.record import Record
from caw.testing import assert_close
from caw.triton_kernels.enumerate_candidates_ref import enumerate_candidates_ref
from caw.watermarks import EXP, KGW, Position, Unigram

BUILDERS = {
    "lefthash": lambda **k: KGW(key=1, **k),  # its derived key has words above 2^31
    "lefthash5": lambda **k: KGW(key=2**64 - 1, context_width=5, **k),
    "selfhash": lambda **k: KGW(key="text", seeding="selfhash", **k),
    "unigram": lambda **k: Unigram(key=2**63, **k),
    "top_k": lambda **k: EXP(key=1, top_k=20),  # low word 1, high word 0: integers a launch may specialise on
    "top_k wide": lambda **k: EXP(key=2**63 + 5, top_k=100, context_width=9),
    "scale": lambda **k: EXP(key=2**40, strength="scale", context_width=1),
}


def position(scores, window):
    """Rows of logits [B, V] as positions; the record comes from the whole row."""
    record = Record(*Record.from_logits(scores).tensors)
    context = torch.randint(-1, 70000, (len(scores), window))
    return Position(record, scores.gather(1, record.ids.clamp_min(0)), scores, context)


def compare(device, watermark, at, greatest):
    from caw.triton_kernels.enumerate_candidates import enumerate_candidates

    native, record = watermark.native, at.record
    keys = torch.full_like(record.ids[:, 0], native.signed_key)
    tensors = [record.values, record.ids, at.race_values, at.scores, at.context, keys]
    numbers = (native.scheme, native.threshold, watermark.full, greatest)
    candidates, needs, counts = (x.cpu() for x in enumerate_candidates(*(t.to(device) for t in tensors), *numbers))
    expected = watermark.ladder(at, greatest)
    reference = enumerate_candidates_ref(*tensors, *numbers)
    assert candidates.shape == needs.shape == reference[0].shape
    assert torch.equal(counts, expected.counts) and torch.equal(counts, reference[2])
    width = int(counts.max())
    reached = torch.arange(width)[None] < counts[:, None]
    for ladder_candidates, ladder_needs in ((expected.candidates, expected.needs), reference[:2]):
        assert torch.equal(candidates[:, :width], ladder_candidates[:, :width])
        # breakpoints come from float64 logarithms of two libraries, rounded to float32
        row = "float32" if watermark.rule == "scale" else "exact"
        assert_close(needs[:, :width][reached], ladder_needs[:, :width][reached], row)
    beyond = torch.arange(candidates.shape[1])[None] >= counts[:, None]
    assert torch.equal(candidates[beyond], candidates[:, :1].expand_as(candidates)[beyond])
    assert not needs.isnan().any()
    return counts


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("greatest", [0.0, 0.35, 1.0])
def test_ladders_of_random_logits(device, name, greatest):
    watermark = BUILDERS[name](**({} if "top" in name or name == "scale" else {"delta": 3.3}))
    longest = 0
    for vocab_size in (1, 2, 37, 131) if greatest == 1.0 else (37, 131):
        for scores in (torch.randn(2, vocab_size) * 3, torch.randint(-3, 4, (1, vocab_size)).float()):
            longest = max(longest, int(compare(device, watermark, position(scores, watermark.window), greatest).max()))
    assert longest > 1 or greatest == 0.0 or (name == "top_k" and greatest < 1)


@pytest.mark.parametrize("name", BUILDERS)
def test_masked_vocabularies(device, name):
    watermark = BUILDERS[name](**({} if "top" in name or name == "scale" else {"delta": 4.0, "gamma": 0.1}))
    scores = torch.randn(6, 300) * 2
    scores[:2, ::3], scores[2:4, 1:], scores[4:, 20:] = -torch.inf, -torch.inf, -torch.inf
    compare(device, watermark, position(scores, watermark.window), 1.0)


@pytest.mark.parametrize("name", ["lefthash", "selfhash", "unigram"])
def test_green_tokens_beyond_the_record(device, name):
    """Some rows must be scanned whole, some need not be."""
    watermark = BUILDERS[name](gamma=0.004, delta=6.0)
    scores = torch.randn(6, 2500)
    scores[3:, 0] = 40.0  # nothing below the record can be reached
    at = position(scores, watermark.window)
    assert not bool(watermark.green_tokens(at.context, at.record.ids).any(dim=1).all())
    counts = compare(device, watermark, at, 1.0)
    assert int(counts.max()) == 2


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", BUILDERS)
def test_no_logits_keep_it_for_ever(device, name, bad):
    from caw.triton_kernels.enumerate_candidates import enumerate_candidates

    watermark = BUILDERS[name]()
    scores = torch.randn(2, 130)
    scores[:, 5] = bad
    at = position(scores, watermark.window)
    native = watermark.native
    keys = torch.full_like(at.record.ids[:, 0], native.signed_key)
    tensors = [at.record.values, at.record.ids, at.race_values, at.scores, at.context, keys]
    candidates, _, counts = enumerate_candidates(
        *(t.to(device) for t in tensors), native.scheme, native.threshold, watermark.full, 1.0
    )
    assert torch.equal(candidates[:, 0].cpu(), at.record.ids[:, 0])
    assert bool(((counts >= 1) & (counts <= candidates.shape[1])).all())


@pytest.mark.parametrize(
    "change, message",
    [
        ({0: torch.zeros(2, 129)}, "values must have 1 to 128 columns, got 129; shorten the record"),
        ({1: torch.zeros(2, 9)}, "ids must be int64, got float32"),
        ({4: torch.zeros(3, 1, dtype=torch.int64)}, r"context must have shape \[2, any\], got \[3, 1\]"),
        ({5: torch.zeros(1, dtype=torch.int64)}, r"key must have shape \[2\], got \[1\]"),
        ({6: 4}, r"scheme must be in \[0, 3\], got 4"),
        ({6: 1, 4: torch.zeros(2, 0, dtype=torch.int64)}, "context must hold at least 1 token for selfhash, got 0"),
        ({7: -1}, r"threshold must be in \[0, 2\*\*24\], got -1"),
    ],
)
def test_wrong_input_is_named(device, change, message):
    from caw.triton_kernels.enumerate_candidates import enumerate_candidates

    scores = torch.randn(2, 9)
    at = position(scores, 1)
    values, ids = at.record.values[:, :9].contiguous(), at.record.ids[:, :9].contiguous()
    arguments = [values, ids, scores, scores, at.context, key_tensor([5, 6]), 0, 100, 1.0, 1.0]
    for index, wrong in change.items():
        arguments[index] = wrong
    arguments = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
    with pytest.raises((TypeError, ValueError), match=message):
        enumerate_candidates(*arguments)


@pytest.mark.parametrize("name", BUILDERS)
def test_rows_of_other_keys(device, name):
    """Each row's ladder is that of its key alone."""
    from caw.triton_kernels.enumerate_candidates import enumerate_candidates

    watermark = BUILDERS[name](**({} if "top" in name or name == "scale" else {"gamma": 0.01, "delta": 5.0}))
    native, at = watermark.native, position(torch.randn(4, 900), watermark.window)
    keys = key_tensor(mixed_keys(native.key, 4))
    tensors = [at.record.values, at.record.ids, at.race_values, at.scores, at.context, keys]
    numbers = (native.scheme, native.threshold, watermark.full, 1.0)
    together = [x.cpu() for x in enumerate_candidates(*(t.to(device) for t in tensors), *numbers)]
    for row in range(4):
        own = [t[row : row + 1] for t in tensors]
        alone = enumerate_candidates(*(t.to(device) for t in own), *numbers)
        reference = enumerate_candidates_ref(*own, *numbers)
        reached = int(reference[2])
        for mixed, single, expected in zip(together, alone, reference, strict=True):
            assert torch.equal(mixed[row], single[0].cpu())
            if expected.dtype == torch.int64:
                assert torch.equal(mixed[row].view(-1)[:reached], expected[0].view(-1)[:reached])
    assert len({tuple(row) for row in together[0].tolist()}) > 1
