"""Bias and penalties: transformers' processors and vLLM's definition, in every kind of step, each row its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from decoding.mixing import PENALISED, PROMPTS, alone, compare, references_for, rows_for, texts
from decoding.running import run, same_texts
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise
from transformers.generation import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from caw.decoding.penalties import Penalties
from caw.decoding.row_settings import RowLimits, RowSettings

VOCAB = 53
KINDS: list[dict[str, Any]] = [
    {}, {"repetition_penalty": 1.3}, {"repetition_penalty": 0.8}, {"presence_penalty": 2.0}, {"presence_penalty": -0.7},
    {"frequency_penalty": 0.3}, {"logit_bias": {0: -100.0, 52: 7.5}},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": -2.0, "logit_bias": {1: 3.0}},
]  # fmt: skip


def penalised(
    logits: torch.Tensor, rows: list[RowSettings], prompts: Any, made: Any, *, sparse: bool, native: bool = True
) -> torch.Tensor:
    """Each row of logits [B, V] after its prompt and the tokens made so far."""
    longest = max(map(len, made))
    tokens = torch.tensor([[*own, *[-1] * (longest - len(own))] for own in made])
    own = Penalties.empty(len(rows), logits.shape[1], RowLimits.of(rows, ()), logits.device)
    if own is None:
        return logits
    own.start(torch.arange(len(rows)), prompts, rows)
    return own.apply(logits.clone(), tokens, torch.ones(len(rows), dtype=torch.bool), sparse=sparse, native=native)


def texts_of(count: int) -> tuple[list[list[int]], list[list[int]]]:
    draw = torch.Generator().manual_seed(1)

    def some(lengths: list[int]) -> list[list[int]]:
        return [torch.randint(VOCAB, (length,), generator=draw).tolist() for length in lengths]

    return some([1 + i % 7 for i in range(count)]), some([3 * i % 11 for i in range(count)])


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_bias_and_repetition_are_transformers_to_the_bit(sparse: bool, native: bool) -> None:
    prompts, made = texts_of(6)
    logits = torch.randn(6, VOCAB) * 5
    logits[:, 4] = -torch.inf
    bias = {0: -100.0, 7: 3.25}
    rows = [RowSettings(repetition_penalty=1.3, logit_bias=bias)] * 6
    got = penalised(logits, rows, prompts, made, sparse=sparse, native=native)
    biased = SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    processors = [biased, RepetitionPenaltyLogitsProcessor(1.3)]
    for own, prompt, tokens, row in zip(logits, prompts, made, got, strict=True):
        expected, ids = own[None].clone(), torch.tensor([[*prompt, *tokens]])
        for processor in processors:
            expected = processor(ids, expected)
        assert torch.equal(row, expected[0])


def test_presence_and_frequency_count_the_new_tokens_alone() -> None:
    """vLLM's sentence: logits - frequency * count - presence * (count > 0), of the output's tokens."""
    row = RowSettings(presence_penalty=0.5, frequency_penalty=0.25)
    got = penalised(torch.zeros(1, VOCAB), [row], [[1, 1, 2]], [[2, 5, 5, 5]], sparse=False)[0]
    expected = torch.zeros(VOCAB)
    expected[2], expected[5] = -0.75, -1.25
    assert torch.equal(got, expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_penalised_as_if_alone(sparse: bool) -> None:
    rows = [RowSettings(**kind) for kind in KINDS]
    (prompts, made), logits = texts_of(len(rows)), torch.randn(len(rows), VOCAB)
    together = penalised(logits, rows, prompts, made, sparse=sparse)
    for i, row in enumerate(rows):
        single = penalised(
            logits[i : i + 1], [row], prompts[i : i + 1], made[i : i + 1], sparse=not sparse, native=sparse
        )
        assert torch.equal(together[i], single[0])
    assert torch.equal(together[0], logits[0])


def test_a_place_forgets_the_text_before() -> None:
    row, none = RowSettings(repetition_penalty=2.0, logit_bias={3: 1.0}), RowSettings()
    own = Penalties.empty(2, VOCAB, RowLimits.of([row], ()), torch.device("cpu"))
    assert own is not None
    own.start(torch.arange(2), [[1, 2], [4]], [row, row])
    own.start(torch.tensor([0]), [[7]], [none])
    assert not own.prompts[0].any() and not own.bias[0].any() and own.wanted.tolist() == [False, True]
    own.keep(torch.tensor([1]))
    assert own.prompts[0].nonzero()[:, 0].tolist() == [4] and own.bias[0, 3] == 1


@pytest.mark.parametrize(
    "watermark, policy, fixed", pairwise([None, *WATERMARKS], ["full", "entropy", "window11"], [False, True])
)
def test_mixed_rows_are_as_if_alone(llama: Any, watermark: str | None, policy: str, fixed: bool) -> None:
    chosen = WATERMARKS[watermark] if watermark else None
    expected = compare(llama, chosen, POLICIES[policy](llama) if chosen else None, fixed=fixed, rows=PENALISED)
    plain = [dataclasses.replace(RowSettings(), max_new_tokens=row.max_new_tokens) for row in PENALISED]
    without = alone(llama, plain, chosen, POLICIES[policy](llama) if chosen else None, max_new_tokens=14, slots=2)
    changed = [a != b for a, b in zip(expected.tokens, without.tokens, strict=True)]
    assert sum(changed) >= 3, "they change greedy texts too"


@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_texts_are_those_of_the_definition(llama: Any, watermark: str | None) -> None:
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    rows = rows_for(chosen, PENALISED)
    done = run(llama, PROMPTS, chosen, policy, rows=rows, eos_token_ids=(2,), max_new_tokens=14, slots=2)
    references = references_for(llama, rows, chosen, policy, (2,))
    made = [one.decode(ids, row.max_new_tokens) for one, ids, row in zip(references, PROMPTS, rows, strict=True)]
    ended = ["eos" if tokens[-1] == 2 else "length" for tokens in made]
    same_texts(done, dataclasses.replace(done, tokens=made, reasons=ended), references, PROMPTS)
    exact = [one == other for one, other in zip(done.tokens, made, strict=True)]
    assert sum(exact) > len(exact) / 2, "the rest are within their margins"


@pytest.mark.parametrize("watermark", [None, "lefthash", "scale"])
@pytest.mark.parametrize(
    "how", [{"branching": "sequential"}, {"branching": "batch"}, {"speculate": 5}, {"fixed": True, "speculate": 3}]
)
def test_every_way_of_running_makes_the_same_texts(llama: Any, watermark: str | None, how: dict[str, Any]) -> None:
    """Drafts too: what was generated is counted from the text, which a draft that was right has joined."""
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    settings: dict[str, Any] = {"rows": rows_for(chosen, PENALISED), "max_new_tokens": 14, "slots": 2}
    expected = run(llama, PROMPTS, chosen, policy, **settings)
    assert texts(run(llama, PROMPTS, chosen, policy, watched=False, **settings, **how)) == texts(expected)
