"""What is kept of a step and of a text: traces, and the unmarked model's log-probabilities."""

import dataclasses
from typing import Any

import pytest
import torch
from decoding.mixing import PROMPTS, ROWS
from decoding.running import make_decoder
from decoding.test_step import POLICIES, WATERMARKS

from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits
from caw.decoding.trace import ALTERNATIVES, DraftCounts, SequenceTrace, TokenTrace
from caw.models.teacher import log_probs, teacher_forced
from caw.testing import assert_close


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


ASKS = [dataclasses.replace(row, log_probs=number != 2) for number, row in enumerate(ROWS)]


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("watermark, policy", [("lefthash", "window11"), ("top_k", "full")])
def test_log_probabilities_are_the_unmarked_models(
    llama: Any, watermark: str, policy: str, fixed: bool, trace: bool
) -> None:
    """Of marked and sampled tokens at temperature 1, as a pass over the finished text gives them; where asked for."""
    limits = RowLimits.of(ASKS, ())
    decoder = make_decoder(
        llama, WATERMARKS[watermark], POLICIES[policy](llama), 3, 40, fixed=fixed, limits=limits, slots=2,
        return_trace=trace,
    )  # fmt: skip
    requests = [Request(ids, row.max_new_tokens, row) for ids, row in zip(PROMPTS, ASKS, strict=True)]
    done = {sequence.index: sequence for sequence in decoder.run(requests)}
    assert done[2].log_probs == [] and len(done[2].tokens) == 5
    texts = [([*PROMPTS[number], *done[number].tokens], len(PROMPTS[number])) for number in range(len(ASKS))]
    own = log_probs(llama, texts)
    rows = dict(teacher_forced(llama, texts))
    for number in (0, 1, 3, 4, 5):
        said = done[number].log_probs
        assert len(said) == len(done[number].tokens) and len(done[number].trace) == (len(said) if trace else 0)
        assert_close([one.own for one in said], own[number].tolist(), "forward")
        expected = rows[number][:-1].log_softmax(1).topk(ALTERNATIVES)
        assert [[token for token, _ in one.likeliest] for one in said] == expected.indices.tolist()
        assert_close([[value for _, value in one.likeliest] for one in said], expected.values, "forward")
    assert not torch.is_inference_mode_enabled()


def test_log_probabilities_have_to_be_planned(llama: Any) -> None:
    decoder = make_decoder(llama, limits=RowLimits.of(ROWS, ()))
    with pytest.raises(ValueError, match="may have log_probs up to False, got one with True; plan it with wider"):
        decoder.waiting.add(Request(PROMPTS[0], 14, ASKS[0]))
