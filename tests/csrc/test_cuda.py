"""CUDA kernels against the CPU's: integers equal, floats but for the logarithm's last bit."""

from typing import Any

import pytest
import torch
from csrc.cuda_on_cpu import WATERMARKS, calls, settled
from torch.utils._pytree import tree_map

from caw import ops
from caw.record import Record
from caw.testing import assert_close
from caw.watermarks import Position

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if not ops.has_kernel("enumerate_candidates", "cuda"):
        pytest.skip("needs caw._C_cuda")


def on_gpu(given: Any) -> Any:
    return tree_map(lambda x: x.cuda() if torch.is_tensor(x) else x, given)


def test_every_call_of_the_kernels_on_a_cpu() -> None:
    for name, op, arguments in calls():
        got, expected = (settled(op, getattr(ops, op)(*given)) for given in (on_gpu(arguments), arguments))
        for one, other in zip(got, expected, strict=True):
            assert one.shape == other.shape, name
            assert_close(one.cpu(), other, "float32" if one.is_floating_point() else "exact")


@pytest.mark.parametrize("name", WATERMARKS)
def test_ladders_and_scores_of_many(name: str) -> None:
    watermark, scores = WATERMARKS[name], torch.randn(65, 3001).mul(4).round() / 2
    record = Record.from_logits(scores)
    at = Position(record, record.values, scores, torch.randint(-1, 9999, (65, watermark.window)))
    there = Position(Record(*on_gpu(list(vars(record).values()))), *on_gpu([record.values, scores, at.context]))
    got, expected = watermark.candidates(there, 1.0, native=True), watermark.candidates(at, 1.0, native=True)
    assert torch.equal(got.candidates.cpu(), expected.candidates) and torch.equal(got.counts.cpu(), expected.counts)
    assert_close(got.needs.cpu(), expected.needs, "float32")
    ids = torch.randint(-1, 50_000, (4099,))
    found, known = watermark.score_tokens(ids.cuda()), watermark.score_tokens(ids)
    assert torch.equal(found.evidence.cpu(), known.evidence)
    assert_close(found.values.cpu(), known.values, "float64")


@pytest.mark.parametrize("size", [623, 624, 1249, 50_257, 128_256])
def test_lists_of_models(size: int) -> None:
    seeds = torch.tensor([0, 42 * 15_485_863, -1, 2**63 - 1])
    tokens, many = torch.randint(-1, size + 1, (200,)), seeds.repeat_interleave(50)
    for count in (0, size // 4, size):
        for op, given in (("permutation_green", (seeds, size, count)),
                          ("permutation_contains", (many, tokens, size, count))):  # fmt: skip
            assert torch.equal(getattr(ops, op)(*on_gpu(given)).cpu(), getattr(ops, op)(*given))


def test_rows_wanted_on_another_device_are_refused() -> None:
    """Either way: the kernel would read through a pointer of the other memory."""
    seeds, wanted = torch.tensor([0, 42]), torch.tensor([True, False])
    for rows, asked in ((seeds.cuda(), wanted), (seeds, wanted.cuda())):
        with pytest.raises(RuntimeError, match=r"^wanted must be on the device of the rows; move it there"):
            ops.permutation_green(rows, 100, 5, asked)
