"""All of a captured step before its forward, against its reference and against the ladders it is made of."""

import pytest
import torch
from prf_inputs import key_tensor, mixed_keys

from caw.ladder import rungs
from caw.record import Record
from caw.testing import assert_close
from caw.triton_kernels.ladder_step import ladder_step
from caw.triton_kernels.ladder_step_ref import ladder_step_ref
from caw.watermarks import EXP, KGW, Unigram

BUILDERS = {
    "lefthash": lambda: KGW(key=1, delta=3.3),
    "rare": lambda: KGW(key=2**64 - 1, gamma=0.004, delta=6.0, context_width=5),  # whole rows are scanned
    "selfhash": lambda: KGW(key="text", seeding="selfhash", gamma=0.02, delta=5.0),
    "unigram": lambda: Unigram(key=2**63, delta=3.3),
    "top_k": lambda: EXP(key=1, top_k=20),
    "scale": lambda: EXP(key=2**40, strength="scale", context_width=1),
}


def inputs(watermark, scores, slots, ends=None, texts=7, deduplicate=None):
    """A call over rows of logits [B, V], each with a text of another length."""
    batch = scores.shape[0]
    record = Record.from_logits(scores)
    padded = torch.randint(-1, 3, (batch, watermark.window + texts))  # few tokens: contexts come again
    tally = torch.arange(batch) % texts
    pending = torch.full((batch,), -1)
    pending[-1] = 17 if batch > 1 else -1
    repeated = watermark.deduplicates if deduplicate is None else deduplicate
    race = scores.gather(1, record.ids.clamp_min(0))
    return [record.values, record.ids, race, scores, padded, tally, key_tensor(mixed_keys(5, batch)), pending, ends,
            watermark.window, watermark.native.scheme, watermark.native.threshold, watermark.full, 1.0, repeated,
            slots]  # fmt: skip


def compare(device, watermark, arguments):
    actual = ladder_step(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments))
    candidates, needs, counts, carried = (x.cpu() for x in actual)
    expected = ladder_step_ref(*arguments)
    assert torch.equal(counts, expected[2])
    width = int(counts.max())
    reached = torch.arange(width)[None] < counts[:, None]
    assert torch.equal(candidates[:, :width], expected[0][:, :width]) and torch.equal(carried, expected[3])
    row = "float32" if watermark.rule == "scale" else "exact"
    assert_close(needs[:, :width][reached], expected[1][:, :width][reached], row)
    return counts


@pytest.mark.parametrize("name", BUILDERS)
def test_equals_the_reference(device, name):
    """Vocabularies of one token, a prime number and two parts of a scan; ties, -inf and a waiting row."""
    watermark, longest = BUILDERS[name](), 0
    masked = torch.randn(3, 131)
    masked[0, 1:], masked[1, ::2] = -torch.inf, -torch.inf
    for scores in (torch.randn(1, 1), torch.randint(-2, 3, (3, 37)).float(), masked, torch.randn(3, 2053)):
        width = rungs(100, watermark.native.scheme, watermark.full, 1.0)
        arguments = inputs(watermark, scores, min(2, width))
        longest = max(longest, int(compare(device, watermark, arguments).max()))
    assert longest > 1


@pytest.mark.parametrize("name", ["lefthash", "top_k", "scale"])
def test_rows_that_keep_their_original(device, name):
    """Contexts that stood there before, and candidates that would end the text, each row by its own ends."""
    watermark, rows = BUILDERS[name](), torch.arange(8)
    free = inputs(watermark, torch.randn(8, 61), 2, texts=12, deduplicate=False)
    free[5][:] = 9
    free[4][::2], free[4][1::2] = 1, torch.arange(free[4].shape[1])  # the same token again and again, or never
    candidates, _, counts, _ = ladder_step_ref(*free)
    other = candidates.gather(1, (counts - 1)[:, None])
    free[8] = torch.where(rows[:, None] % 4 == 1, other, -1).repeat(1, 3)
    compare(device, watermark, free)
    kept = compare(device, watermark, [*free[:14], True, 2])
    assert bool((kept[rows % 2 == 0] == 1).all()) and bool((kept[rows % 4 == 1] == 1).all())
    assert bool((counts[rows % 2 == 0] > 1).any()) and torch.equal(kept[rows % 4 == 3], counts[rows % 4 == 3])


def test_half_precision_scores_are_scanned(device):
    watermark = BUILDERS["rare"]()
    scores = torch.randn(2, 2500).bfloat16().float()
    arguments = inputs(watermark, scores, 2)
    halves = [*arguments[:3], scores.bfloat16(), *arguments[4:]]
    assert torch.equal(compare(device, watermark, arguments), compare(device, watermark, halves))
