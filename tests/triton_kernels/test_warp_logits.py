"""What the sampler keeps, by the kernel against its reference."""

import pytest
import torch
from csrc.test_warp_logits import KINDS, logits_of, settings

from caw.triton_kernels import warp_logits as kernels
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref
from caw.triton_kernels.warp_logits import warp_logits, warp_recorded
from caw.triton_kernels.warp_logits_ref import warp_logits_ref

SETTINGS = [(1.0, 0, 1.0, 0.0), (0.7, 0, 0.95, 0.0), (1.0, 7, 1.0, 0.0), (2.0, 40, 0.5, 0.05), (0.5, 0, 1e-6, 0.0),
            (1.0, 0, 1.0, 0.1), (0.7, 5000, 0.9, 0.3)]  # fmt: skip


@pytest.mark.parametrize("vocab_size, first", [(1, 0), (53, 4), (4099, 2)])
def test_rows_of_mixed_settings_equal_the_reference(device, vocab_size, first):
    """Each row with settings and logits of a kind of its own, one of them not wanted."""
    chosen = SETTINGS[:: 1 if vocab_size < 1000 else 3]
    rows = len(chosen) + 1
    columns = [torch.cat(column).to(device) for column in zip(*(settings(1, *s) for s in chosen), strict=True)]
    given = [torch.cat([column, column[-1:]]) for column in columns]
    given[0][-1] = False
    kinds = [KINDS[(first + row) % len(KINDS)] for row in range(rows)]
    logits = torch.cat([logits_of(kind, 1, vocab_size) for kind in kinds]).to(device)
    got = warp_logits(logits.T.contiguous().T, *given)
    assert torch.equal(got, warp_logits_ref(logits, *given)), kinds


@pytest.mark.parametrize("vocab_size, kind", [(1, "equal"), (53, "ties"), *((997, kind) for kind in KINDS)])
def test_records_of_any_size_cut_alike(device, vocab_size, kind):
    """Bit for bit, whether the border is in the record, on its edge or beyond it; one row is not wanted."""
    asked = [*SETTINGS, (0.7, 40, 0.9, 0.0), (1.0, 100, 1.0, 0.0), (1.5, 0, 0.99, 0.0), (0.3, 99, 0.5, 0.3),
             (1.0, 300, 0.8, 0.0), (1.0, 0, 0.9, 0.2)]  # fmt: skip
    columns = [torch.cat(column).to(device) for column in zip(*(settings(1, *s) for s in asked), strict=True)]
    given = [torch.cat([column, column[1:2]]) for column in columns]
    given[0][-1] = False
    logits = logits_of(kind, len(asked) + 1, vocab_size).to(device)
    one, some, many = (warp_recorded(logits, *topk_softmax_ref(logits, k)[:2], *given) for k in (1, 6, 100))
    assert torch.equal(one, many) and torch.equal(some, many) and torch.equal(many[-1], logits[-1])


def test_only_rows_whose_record_does_not_hold_the_border_are_searched(device, monkeypatch):
    """Of 120 tokens, each half a nat below the one before, and of 120 of which many are equal."""
    left, launch = [], kernels.launch

    def noted(kernel, grid, arguments, **options):
        launch(kernel, grid, arguments, **options)
        if not arguments.get("LISTED", True):
            left.append(arguments["open_ptr"].tolist())

    monkeypatch.setattr(kernels, "launch", noted)
    steps, equal = -torch.arange(120.0) / 2, torch.where(torch.arange(120) < 6, 3.0, 0.0)
    asked = [(1.0, 9, 1.0, 0.0), (1.0, 10, 1.0, 0.0), (1.0, 0, 0.98, 0.0), (1.0, 0, 0.995, 0.0), (1.0, 0, 1.0, 0.02),
             (1.0, 0, 1.0, 0.01), (5.0, 9, 0.99, 0.0), (3.0, 0, 1.0, 0.0), (0.5, 5, 1.0, 0.0), (0.5, 7, 0.1, 0.0),
             (0.5, 0, 0.2, 0.0), (0.5, 0, 0.97, 0.9)]  # fmt: skip
    given = [torch.cat(column).to(device) for column in zip(*(settings(1, *s) for s in asked), strict=True)]
    logits = torch.stack([steps] * 8 + [equal] * 4).to(device)
    got = warp_recorded(logits, *topk_softmax_ref(logits, 10)[:2], *given)
    assert torch.equal(got, warp_logits_ref(logits, *given))
    assert left == [[0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1]], (got > -torch.inf).sum(1).tolist()


def test_broken_rows_are_not_cut(device):
    logits = torch.randn(3, 50, device=device)
    logits[0, 7], logits[1, 9], logits[2] = torch.nan, torch.inf, -torch.inf
    got = warp_logits(logits, *(x.to(device) for x in settings(3, 0.5, 3, 0.5, 0.2)))
    assert torch.equal(got.nan_to_num(3.0), (logits / 0.5).nan_to_num(3.0))


def test_bad_arguments_are_refused_before_a_launch(device):
    logits, given = torch.randn(2, 9, device=device), [x.to(device) for x in settings(2)]
    with pytest.raises(TypeError, match="logits must be float32"):
        warp_logits(logits.double(), *given)
    with pytest.raises(ValueError, match="columns, got 0"):
        warp_logits(logits[:, :0], *given)
    with pytest.raises(ValueError, match=r"one_minus_top_ps must have shape \[2\]"):
        warp_logits(logits, *given[:3], given[3][:1], given[4])
