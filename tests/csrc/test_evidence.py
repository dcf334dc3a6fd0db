"""Compiled evidence of texts in the making, against the reference and against the watermarks' own scores."""

from typing import Any

import pytest
import torch
from csrc.test_enumerate_candidates import BUILDERS
from prf_inputs import key_tensor, mixed_keys

from caw import ops
from caw.ops_ref.evidence_ref import count_evidence_ref, show_evidence_ref
from caw.testing import assert_close

B, N = 9, 60


def texts(window: int, vocabulary: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of all lengths over a few tokens, so that they repeat themselves: (padded [B, W + N], counts [B])."""
    counts = torch.tensor([0, 1, 2, 3, 5, 30, 59, 60, 60])
    ids = torch.randint(0, vocabulary, (B, N))
    ids[torch.arange(N)[None] >= counts[:, None]] = -1
    return torch.cat([torch.full((B, window), -1), ids], dim=1), counts


@pytest.mark.parametrize("name", BUILDERS)
def test_tokens_show_what_the_watermark_scores(name: str) -> None:
    watermark = BUILDERS[name]()
    native, window = watermark.native, watermark.window
    padded, counts = texts(window)
    keys = key_tensor(mixed_keys(native.key, B))
    tokens = torch.randint(0, 7, (B, 4))
    found: list[Any] = []
    columns = watermark.score_tokens(torch.zeros(3, dtype=torch.int64)).evidence.shape[1]
    # what the texts have shown so far, each under its key
    seen, distinct = torch.zeros(B, N + 1, columns, dtype=torch.int64), torch.zeros(B, dtype=torch.int64)
    for row in range(B):
        text = padded[row, window : window + counts[row]]
        evidence = native.scores(text, window, keys[row].expand(len(text))).evidence
        distinct[row] = len(text)
        seen[row, : len(text)] = evidence
    arguments = (padded, counts, tokens, seen, distinct, window, keys, native.scheme, native.threshold)
    for op in (ops.show_evidence, show_evidence_ref):
        values, evidence, known = op(*arguments)
        for row in range(B):
            for j in range(4):
                whole = torch.cat([padded[row, window : window + counts[row]], tokens[row, j : j + 1]])
                scores = native.scores(whole, window, keys[row].expand(len(whole)))
                assert evidence[row, j].tolist() == scores.evidence[-1].tolist()
                assert_close(values[row, j], scores.values[-1], "float64")
                assert bool(known[row, j]) == (scores.evidence[:-1] == scores.evidence[-1]).all(dim=1).any()
        found.append(known)
    assert torch.equal(*found)


@pytest.mark.parametrize("weighted", [False, True])
def test_counting_is_the_references(weighted: bool) -> None:
    moments = (0.25, 0.1875, 0.09375)

    def empty() -> list[torch.Tensor]:
        return [torch.zeros(B, N, 3, dtype=torch.int64), torch.zeros(B, dtype=torch.int64),
                torch.zeros(B, 16, dtype=torch.int64), torch.zeros(B).double(), torch.zeros(B, 2).double()]  # fmt: skip

    states = [empty(), empty()]
    for _ in range(50):
        evidence, values = torch.randint(-9, 9, (B, 3)), torch.rand(B).double()
        first, level = torch.rand(B) < 0.7, torch.randint(0, 16, (B,)) if weighted else None
        for state, op in zip(states, (ops.count_evidence, count_evidence_ref), strict=True):
            op(*state, evidence, first, level, values, *moments)
        (seen, distinct, trials, score, standing), (seen_ref, *expected) = states
        assert torch.equal(distinct, expected[0]) and torch.equal(trials, expected[1])
        used = torch.arange(N)[None] < distinct[:, None]
        assert torch.equal(seen[used], seen_ref[used])
        assert torch.equal(score, expected[2])
        assert_close(standing, expected[3], "float64")
    sums, squares, cubes = ((trials * torch.arange(16) ** power).sum(dim=1).double() for power in (1, 2, 3))
    spread = (moments[1] * squares).sqrt()
    assert_close(standing[:, 0], (score - moments[0] * sums) / spread, "float64")
    assert_close(standing[:, 1], moments[2] * cubes / spread**3, "float64")


def test_a_full_text_is_refused() -> None:
    state = [torch.zeros(1, 2, 1, dtype=torch.int64), torch.tensor([2]), torch.zeros(1, 16, dtype=torch.int64),
             torch.zeros(1).double(), torch.zeros(1, 2).double()]  # fmt: skip
    rest = [torch.zeros(1, 1, dtype=torch.int64), torch.tensor([True]), None, torch.zeros(1).double(), 0.5, 0.25, 0.0]
    with pytest.raises(RuntimeError, match="distinct must be below N of seen, got a text that is full"):
        ops.count_evidence(*state, *rest)
    with pytest.raises(RuntimeError, match=r"trials must have shape \[1, 16\], got \[1, 3\]"):
        ops.count_evidence(*state[:2], state[2][:, :3], *state[3:], *rest)
