"""The trace as columns and as tokens."""

from __future__ import annotations

from caw.decoding.trace import DraftCounts, SequenceTrace, TokenTrace


def test_columns_and_tokens_say_the_same() -> None:
    tokens = [TokenTrace(5, 0.25, 0.5, (5,), 0), TokenTrace(7, 0.75, 0.0, (6, 7, 8), 1)]
    trace = SequenceTrace()
    assert (len(trace), trace.single_candidate_share) == (0, 0.0)
    for token in tokens:
        trace.append(token)
    assert list(trace) == tokens
    assert trace[-1] == tokens[1]
    assert (trace.tokens, trace.choice, trace.candidates) == ([5, 7], [0, 1], [(5,), (6, 7, 8)])
    assert trace.single_candidate_share == 0.5


def test_what_drafts_did_in_numbers() -> None:
    counts = DraftCounts()
    assert (counts.rows_per_pass, counts.acceptance) == (0.0, 0.0)
    counts.add(rows=6, drafted=4)
    counts.add(rows=1, drafted=0)
    counts.accepted += 3
    assert (counts.rows_per_pass, counts.acceptance) == (3.5, 0.75)
