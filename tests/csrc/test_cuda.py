"""CUDA kernels against the CPU's: integers equal, floats but for the logarithm's last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from prf_inputs import key_tensor, mixed_keys

from caw import ops
from caw.record import Record
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Position, Unigram

pytestmark = pytest.mark.gpu
WATERMARKS: dict[str, Any] = {
    "lefthash": KGW(key=11, gamma=0.05),
    "selfhash": KGW(key=12, seeding="selfhash", gamma=0.01, delta=9.0),
    "unigram": Unigram(key=13, gamma=0.004, delta=30.0),
    "top_k": EXP(key=14, top_k=100),
    "scale": EXP(key=15, strength="scale"),
}


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if not ops.has_kernel("enumerate_candidates", "cuda"):
        pytest.skip("needs caw._C_cuda")


@pytest.mark.parametrize("name", WATERMARKS)
def test_ladders(name: str) -> None:
    watermark = WATERMARKS[name]
    scores = torch.randn(65, 3001).mul(4).round() / 2
    record = Record.from_logits(scores)
    at = Position(record, record.values, scores, torch.randint(-1, 9999, (65, watermark.window)))
    on_gpu = Position(
        Record(*(x.cuda() for x in vars(record).values())), record.values.cuda(), scores.cuda(), at.context.cuda()
    )
    got, expected = watermark.native_ladder(on_gpu, 1.0), watermark.native_ladder(at, 1.0)
    assert torch.equal(got.candidates.cpu(), expected.candidates)
    assert torch.equal(got.counts.cpu(), expected.counts)
    assert_close(got.needs.cpu(), expected.needs, "float32")


@pytest.mark.parametrize("name", WATERMARKS)
def test_scores(name: str) -> None:
    ids = torch.randint(-1, 50_000, (4099,))
    got, expected = WATERMARKS[name].score_tokens(ids.cuda()), WATERMARKS[name].score_tokens(ids)
    assert torch.equal(got.evidence.cpu(), expected.evidence)
    assert_close(got.values.cpu(), expected.values, "float64")


def test_noise() -> None:
    context = torch.randint(0, 2**32, (3, 3))
    for vocab_size in (1, 5, 49_152, 128_257):
        keys = key_tensor(mixed_keys(77, 3))
        got, expected = (
            ops.sampling_noise(c, k, vocab_size).cpu() for c, k in ((context.cuda(), keys.cuda()), (context, keys))
        )
        assert_close(got, expected, "float32")


@pytest.mark.parametrize("size", [1, 8, 623, 624, 625, 1000, 50_257, 128_256])
def test_lists(size: int) -> None:
    seeds = torch.tensor([0, 42 * 15_485_863, -1, 2**63 - 1])
    for count in (0, size // 4, size):
        assert torch.equal(
            ops.permutation_green(seeds.cuda(), size, count).cpu(), ops.permutation_green(seeds, size, count)
        )


def test_rows_wanted_on_another_device_are_refused() -> None:
    """Either way: the kernel would read through a pointer of the other memory."""
    seeds, wanted = torch.tensor([0, 42]), torch.tensor([True, False])
    for rows, asked in ((seeds.cuda(), wanted), (seeds, wanted.cuda())):
        with pytest.raises(RuntimeError, match=r"^wanted must be on the device of the rows; move it there"):
            ops.permutation_green(rows, 100, 5, asked)


def test_members_and_words() -> None:
    seeds = torch.tensor([0, 42 * 15_485_863, -1, 2**63 - 1]).repeat_interleave(50)
    for size in (1, 8, 623, 1249, 50_257):
        tokens = torch.randint(-1, size + 1, seeds.shape)
        for count in (0, size // 4, size):
            got = ops.permutation_contains(seeds.cuda(), tokens.cuda(), size, count).cpu()
            assert torch.equal(got, ops.permutation_contains(seeds, tokens, size, count))
    indices = torch.randint(0, 5000, seeds.shape)
    assert torch.equal(ops.generator_words(seeds.cuda(), indices.cuda()).cpu(), ops.generator_words(seeds, indices))
