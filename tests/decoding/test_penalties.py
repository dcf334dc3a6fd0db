"""Bias and penalties: transformers' processors and vLLM's definition, in every kind of step, each row its own."""

from typing import Any

import pytest
import torch
from decoding.mixing import PENALISED, PROMPTS, rows_for, texts
from decoding.running import run
from decoding.test_step import POLICIES, WATERMARKS
from transformers.generation import RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from caw.decoding.penalties import Penalties
from caw.decoding.row_settings import RowLimits, RowSettings

VOCAB = 53


def penalised(
    logits: torch.Tensor, rows: list[RowSettings], prompts: Any, made: Any, *, sparse: bool, native: bool = True
) -> torch.Tensor:
    longest = max(map(len, made))
    tokens = torch.tensor([[*own, *[-1] * (longest - len(own))] for own in made])
    own = Penalties.empty(len(rows), logits.shape[1], RowLimits.of(rows, ()), logits.device)
    assert own is not None
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


@pytest.mark.parametrize("watermark", [None, "lefthash", "scale"])
@pytest.mark.parametrize(
    "how", [{"branching": "sequential"}, {"branching": "batch"}, {"speculate": 5}, {"fixed": True}]
)
def test_every_way_of_running_makes_the_same_texts(llama: Any, watermark: str | None, how: dict[str, Any]) -> None:
    """Drafts too: what was generated is counted from the text, which a draft that was right has joined."""
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    settings: dict[str, Any] = {"rows": rows_for(chosen, PENALISED), "max_new_tokens": 14, "slots": 2}
    expected = run(llama, PROMPTS, chosen, policy, **settings)
    assert texts(run(llama, PROMPTS, chosen, policy, watched=False, **settings, **how)) == texts(expected)
