"""Candidates of many sequences in few rows: which fit, that nothing is read back, and that no token changes."""

from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.capturing import replays_go_on_as, seen_by_fakes, started
from decoding.running import run
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy

from caw.decoding.capture import fused_step
from caw.decoding.capture.fused_step import FusedStep, pack, row_budget


@pytest.mark.parametrize("budget", [5, 6, 9, 13, 20])
def test_rows_go_to_second_candidates_before_third_ones(budget: int) -> None:
    candidates = 100 * torch.arange(5)[:, None] + torch.arange(4)
    wanted = torch.tensor([1, 4, 2, 1, 3])
    packed = pack(candidates, wanted, budget)
    order = [(j, b) for j in range(4) for b in range(5)]
    order.sort(key=lambda at: at[0] >= wanted[at[1]])  # stable: what counts first
    taken = sorted((b, j) for j, b in order[:budget])
    assert list(zip(packed.rows.tolist(), packed.slots.tolist(), strict=True)) == taken
    assert packed.tokens.tolist() == [100 * b + j for b, j in taken]
    assert packed.carried.tolist() == [sum(b == row for b, _ in taken) for row in range(5)]
    assert packed.first.tolist() == [taken.index((b, 0)) for b in range(5)]


def test_where_there_are_few_or_too_many_sequences_all_are_carried() -> None:
    from caw.triton_kernels.small_linear import MAX_ROWS

    shapes = ((2, 8), (3, 8), (8, 8), (9, 8), (32, 8), (42, 2), (43, 2), (64, 8), (32, 2))
    assert [row_budget(*shape) for shape in shapes] == [None, 16, 16, 32, 64, 64, None, None, None]
    assert fused_step.GPU_ROWS == MAX_ROWS


def few_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(fused_step, "row_budget", lambda batch, width: min(rows, batch * width))


PROMPTS = [prompt(3 + 2 * (i % 5), i) for i in range(7)]


@pytest.mark.parametrize(("watermark", "sampling", "rows"), [
    ("top_k", "greedy", 10), ("top_k", "sampled", 4), ("scale", "greedy", 8), ("selfhash", "sampled", 6),
])  # fmt: skip
def test_packing_changes_no_token(
    llama: Any, watermark: str, sampling: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = capacity_policy(llama, theta=1.0, beta=1.0)
    settings: dict[str, Any] = {"batch": 4, "slots": 6, "eos_token_ids": (2,), **SAMPLING[sampling]}
    budgets = [12, 5, 9, 12, 3, 12, 8]
    plain = run(llama, PROMPTS, WATERMARKS[watermark], policy, budgets=budgets, fixed=True, **settings)
    few_rows(monkeypatch, rows)
    packed = run(llama, PROMPTS, WATERMARKS[watermark], policy, budgets=budgets, fixed=True, **settings)
    assert packed.tokens == plain.tokens and packed.reasons == plain.reasons
    assert [trace.strength for trace in packed.traces] == [trace.strength for trace in plain.traces]
    assert packed.overflows > plain.overflows, "some chosen token had no row"


def test_packing_reads_nothing_back_and_replays(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few_rows(monkeypatch, 5)
    made = [started(llama, PROMPTS[:3], WATERMARKS["top_k"], capacity_policy(llama), slots=6) for _ in range(3)]
    (_, plain), _, (third, faked) = made
    assert isinstance(plain.step, FusedStep) and plain.step.packs
    replays_go_on_as(made[:2])
    seen_by_fakes(third, faked)
