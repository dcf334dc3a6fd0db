"""`warp_logits`, compiled, against its reference and transformers' own processors."""

from itertools import product
from typing import Any

import pytest
import torch
from pairwise import pairwise
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from caw import ops
from caw.testing import margin
from caw.triton_kernels.warp_logits_ref import warp_logits_ref

VOCABULARIES = [1, 2, 8, 53, 997, 4099]
KINDS = ["random", "flat", "equal", "ties", "bfloat16", "near", "masked", "peaked", "zeros"]


def logits_of(kind: str, rows: int, vocab_size: int) -> torch.Tensor:
    logits = torch.randn(rows, vocab_size) * 3
    if kind == "flat":
        return logits / 300
    if kind == "equal":
        return torch.full((rows, vocab_size), -1.25)
    if kind == "ties":
        return torch.randint(-2, 3, (rows, vocab_size)).float()
    if kind == "bfloat16":
        return logits.bfloat16().float()
    if kind == "near":  # a nucleus of most tokens, with few different logits
        return (logits / 30 + 9).bfloat16().float()
    if kind == "masked":
        logits[torch.rand(rows, vocab_size) < 0.6] = -torch.inf
        logits[:, vocab_size // 2] = 1.0
    if kind == "peaked":
        logits[:, vocab_size // 2] += 30
    return torch.where(torch.rand(rows, vocab_size) < 0.5, 0.0, -0.0) if kind == "zeros" else logits


def settings(rows: int, heat: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[Any]:
    tail = 1 - top_p if top_p < 1 else -1.0
    wanted, top_ks = torch.ones(rows, dtype=torch.bool), torch.full((rows,), top_k)
    return [wanted, torch.full((rows,), heat), top_ks, torch.full((rows,), tail), torch.full((rows,), min_p)]


def differs_at_a_border(got: torch.Tensor, expected: torch.Tensor, row: list[float]) -> bool:
    """Whether two rows [V] that keep different tokens do so only where a sum is as near to the limit as rounding."""
    heat, tail, floor = row
    assert torch.equal(got[got > -torch.inf], expected[got > -torch.inf]) or heat != 1
    more, fewer = (got, expected) if (got > -torch.inf).sum() > (expected > -torch.inf).sum() else (expected, got)
    kept = (more > -torch.inf) & (fewer == -torch.inf)
    assert not ((fewer > -torch.inf) & (more == -torch.inf)).any()
    assert kept.sum() <= 3 or tail > 0
    probs = torch.softmax(more.double(), dim=0)
    ratio = probs[kept] / probs.max()
    by_floor = floor > 0 and bool(((ratio - floor).abs() <= margin("margin/nucleus", 1.0)).all())
    below = probs[kept].sum()
    return by_floor or bool(below <= 2 * margin("margin/nucleus", 1.0) + float(probs[kept].max()))


CASES = pairwise([1.0, 0.7, 2.0], [0, 1, 7, 100, 2500], [1.0, 0.95, 0.5, 1e-6], [0.0, 0.05, 0.3])


@pytest.mark.parametrize("vocab_size, kind", pairwise(VOCABULARIES, KINDS))
def test_keeps_what_the_reference_keeps(vocab_size: int, kind: str) -> None:
    """Every combination of settings; rows may differ only at a border, and hardly any do."""
    logits, near = logits_of(kind, 3, vocab_size), 0
    for heat, top_k, top_p, min_p in CASES:
        given = settings(3, heat, top_k, top_p, min_p)
        got, expected = ops.warp_logits(logits, *given), warp_logits_ref(logits, *given)
        for row in range(3):
            if not torch.equal(got[row], expected[row]):
                near += 1
                assert differs_at_a_border(got[row], expected[row], [heat, 1 - top_p, min_p])
    assert near <= 2, f"{near} of {3 * len(CASES)} rows differ at a border"


def test_keeps_what_the_processors_of_transformers_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, with a stable sort: which of equal logits go is not theirs to say, how many is."""
    plain = torch.sort

    def stable(x: torch.Tensor, descending: bool = False) -> Any:
        return plain(x, descending=descending, stable=True)

    for kind, (heat, top_k, top_p, min_p) in product(("ties", "masked"), CASES):
        logits = logits_of(kind, 2, 1009)
        steps: list[Any] = [TemperatureLogitsWarper(heat)]
        steps += [TopKLogitsWarper(top_k)] if top_k else []
        steps += [TopPLogitsWarper(top_p)] if top_p < 1 else []
        steps += [MinPLogitsWarper(min_p)] if min_p else []
        got = ops.warp_logits(logits, *settings(2, heat, top_k, top_p, min_p))
        for sort in (stable, plain):
            monkeypatch.setattr(torch, "sort", sort)
            expected = logits
            for step in steps:
                expected = step(None, expected)
            monkeypatch.undo()
            if sort is stable:
                assert torch.equal(got, expected), (kind, heat, top_k, top_p, min_p)
            else:
                assert torch.equal(plain(got, dim=1).values, plain(expected, dim=1).values)


def test_a_nucleus_of_tens_of_thousands() -> None:
    for kind in ("flat", "near", "equal"):
        logits = logits_of(kind, 1, 49_152)
        for top_p in (0.95, 0.3):
            got, expected = (f(logits, *settings(1, 0.7, 0, top_p)) for f in (ops.warp_logits, warp_logits_ref))
            counts = [int((x > -torch.inf).sum()) for x in (got, expected)]
            assert counts[0] > 10_000 and abs(counts[0] - counts[1]) <= 3, "a sum of 49,152 terms in float32"
            assert (got[expected > -torch.inf] == -torch.inf).sum() <= 3


def test_rows_of_a_batch_are_warped_as_if_alone() -> None:
    """Mixed settings, rows not wanted among them, bit for bit; logits of any strides."""
    count, vocab_size = len(CASES), 499
    columns = [torch.tensor(column) for column in zip(*CASES, strict=True)]
    tails = torch.where(columns[2] < 1, 1 - columns[2], -1.0)
    given = [torch.arange(count) % 5 != 0, columns[0], columns[1], tails, columns[3]]
    wide = torch.randn(count, 2 * vocab_size).round(decimals=1)
    logits = wide[:, ::2]
    together = ops.warp_logits(logits, *given)
    for row in range(count):
        alone = ops.warp_logits(logits[row : row + 1].contiguous(), *(x[row : row + 1] for x in given))
        assert torch.equal(together[row], alone[0])
        assert given[0][row] or torch.equal(together[row], logits[row])
    assert ops.warp_logits(logits[:0], *(x[:0] for x in given)).shape == (0, vocab_size)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_broken_rows_are_divided_and_not_cut(broken: float) -> None:
    """They are refused by whoever looks at the record of the plain logits."""
    logits = torch.randn(3, 300)
    logits[0, 7], logits[2] = broken, -torch.inf
    given = settings(3, 0.5, 3, 0.5, 0.2)
    for op in (ops.warp_logits, warp_logits_ref):
        got = op(logits, *given)
        assert torch.equal(got[0].nan_to_num(3.0), (logits[0] / 0.5).nan_to_num(3.0))
        assert got[2].isneginf().all() and 1 <= (got[1] > -torch.inf).sum() <= 3


def test_bad_arguments_are_refused() -> None:
    logits, given = torch.randn(2, 9), settings(2)
    for place, changed, message in (
        (0, logits[0], r"logits must have shape \[B, V\]"), (0, logits[:, :0], r"with V >= 1, got \[2, 0\]"),
        (0, logits.double(), "logits must be float32"), (1, given[0].long(), "wanted must be bool"),
        (2, given[1][:1], r"temperatures must have shape \[2\], got \[1\]"),
        (3, given[2].int(), "top_ks must be int64"), (4, given[3].double(), "one_minus_top_ps must be float32"),
        (5, given[4][:0], r"min_ps must have shape \[2\], got \[0\]"),
    ):  # fmt: skip
        arguments = [logits, *given]
        arguments[place] = changed
        with pytest.raises(RuntimeError, match=message):
            ops.warp_logits(*arguments)
