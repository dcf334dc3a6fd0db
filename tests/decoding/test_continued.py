"""A text that an earlier request began goes on as if it had never been interrupted (DESIGN: a text continued)."""

from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.running import make_decoder
from decoding.test_evidence import MARKS
from decoding.test_step import SAMPLING, capacity_policy
from pairwise import pairwise

import caw
from caw.decoding.request import Request
from caw.decoding.row_settings import RowSettings
from caw.policies import Target

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]
LENGTH, CUTS = 18, (1, 7, 17)  # of the texts; after so many tokens each is interrupted


def policy_of(model: Any, kind: str) -> Any:
    if kind == "target":
        return caw.FixedStrength(1.0, Target(0.01))
    return caw.CapacityPolicy(capacity_policy(model).network, 1.0, 1.5)


def decode(model: Any, name: str | None, kind: str, requests: list[Request], **settings: Any) -> Any:
    """(the sequences in order, the state's evidence or None, its streams of tokens)."""
    mark = MARKS[name] if name else None
    decoder = make_decoder(
        model, mark, policy_of(model, kind) if name else None, len(requests), 60, max_new_tokens=LENGTH,
        return_trace=False, **settings,
    )  # fmt: skip
    evidence: list[Any] = []
    decode = decoder.step.decode

    def step(state: Any, cache: Any) -> Any:
        done = decode(state, cache)
        own = decoder.choosing.texts.evidence
        if own is not None:
            evidence.append([tensor.clone() for tensor in own.tensors])
        return done

    decoder.step.decode = step  # type: ignore[method-assign]
    found = sorted(decoder.run(requests), key=lambda sequence: sequence.index)
    return [sequence.tokens for sequence in found], evidence


# what was generated before is no prompt: presence and frequency go by it
ASKED = {**SAMPLING, "penalties": {"presence_penalty": 0.5, "frequency_penalty": 1.5, "repetition_penalty": 1.2}}


@pytest.mark.parametrize("name, kind, asked", pairwise([None, *MARKS], ["target", "capacity"], ASKED))
def test_a_continued_text_is_the_uninterrupted_one(llama: Any, name: str | None, kind: str, asked: str) -> None:
    """Contexts, evidence, draws, counts and repeats are those of one long request, whatever the place of the cut."""
    settings = ASKED[asked]
    row = RowSettings(**{"max_new_tokens": LENGTH, **settings})
    whole, before = decode(llama, name, kind, [Request(ids, LENGTH, row) for ids in PROMPTS], **settings)
    cut = [
        Request(ids, LENGTH, row, begun=tuple(text[:cut])) for ids, text, cut in zip(PROMPTS, whole, CUTS, strict=True)
    ]
    parts, after = decode(llama, name, kind, cut, **settings)
    assert parts == whole
    if before and after:
        # the first text is the last to end, and has the first row then
        assert all(torch.equal(one[0], other[0]) for one, other in zip(before[-1][1:4], after[-1][1:4], strict=True))


def test_the_tokens_before_decide(llama: Any) -> None:
    """What the test above rests on: forgetting that tokens were generated changes the text behind them."""
    row = RowSettings(max_new_tokens=LENGTH)
    changed = 0
    for ids in PROMPTS:
        [whole], _ = decode(llama, "top_k", "capacity", [Request(ids, LENGTH, row)])
        [rest], _ = decode(llama, "top_k", "capacity", [Request([*ids, *whole[:7]], LENGTH - 7, row)])
        changed += rest != whole[7:]
    assert changed


def test_a_text_without_room_to_go_on_is_refused(llama: Any) -> None:
    with pytest.raises(ValueError, match="must have room to go on, got 3 tokens of at most 3"):
        decode(llama, None, "capacity", [Request(PROMPTS[0], 3, RowSettings(max_new_tokens=3), begun=(1, 2, 3))])
