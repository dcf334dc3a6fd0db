"""Requests that join a decoder at work."""

from typing import Any

import pytest
from decoding.architectures import prompt
from decoding.mixing import PROMPTS, ROWS
from decoding.running import make_decoder, run
from decoding.test_step import POLICIES, WATERMARKS

import caw
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings

BEGINNING = prompt(40)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("watermark", ["lefthash", "top_k"])
def test_requests_join_while_others_are_decoded(llama: Any, watermark: str, fixed: bool) -> None:
    """Two places; a request comes whenever a text is done; each is what it is alone."""
    policy, chosen = POLICIES["window11"](llama), WATERMARKS[watermark]
    decoder = make_decoder(llama, chosen, policy, 2, 40, fixed=fixed, limits=RowLimits.of(ROWS, ()), slots=2)
    requests = [Request(ids, row.max_new_tokens, row) for ids, row in zip(PROMPTS, ROWS, strict=True)]
    late, found = list(enumerate(requests))[3:], {}
    for sequence in decoder.run(requests[:3]):
        found[sequence.index] = sequence.tokens
        if late:
            number, request = late.pop(0)
            assert decoder.waiting.add(request) == number
    assert sorted(found) == list(range(6))
    for number, (ids, row) in enumerate(zip(PROMPTS, ROWS, strict=True)):
        assert run(llama, [ids], chosen, policy, rows=[row], slots=2, max_new_tokens=14).tokens == [found[number]]


@pytest.mark.parametrize("late", [[*BEGINNING, 5, 6, 7], [9, *BEGINNING, 5], BEGINNING, prompt(3)])
def test_a_late_prompt_need_not_begin_like_the_others(llama: Any, late: list[int]) -> None:
    """What all begin with is read once, and by itself where one comes that does not, or has nothing behind it."""
    policy = POLICIES["window11"](llama)
    decoder = make_decoder(llama, caw.KGW(key=1), policy, 1, 60, max_new_tokens=6)
    early = [[*BEGINNING, 1, 2], [*BEGINNING, 3, 4, 8]]
    found = []
    for sequence in decoder.run([Request(ids, 6, RowSettings(max_new_tokens=6)) for ids in early]):
        assert decoder.waiting.shared == (0 if found and late != [*BEGINNING, 5, 6, 7] else 40)
        if not found:
            decoder.waiting.add(Request(late, 6, RowSettings(max_new_tokens=6)))
        found.append(sequence.tokens)
    alone = [run(llama, [ids], caw.KGW(key=1), policy, max_new_tokens=6).tokens[0] for ids in [*early, late]]
    assert found == alone


@pytest.mark.parametrize(("length", "budget"), [(38, 3), (1, 21)])
def test_a_request_without_room_is_refused(llama: Any, length: int, budget: int) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1), batch=1, capacity=40, max_new_tokens=20)
    row = RowSettings(max_new_tokens=20)
    with pytest.raises(ValueError, match=r"may have 40 tokens and 20 new ones, got a request for \d+ and \d+; plan"):
        decoder.waiting.add(Request(prompt(length), budget, row))
    assert decoder.waiting.add(Request(prompt(20), 20, row)) == 0


def test_a_request_may_go_ahead_of_the_others(llama: Any) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1), batch=1, capacity=40, max_new_tokens=4)
    requests, order = [Request(prompt(5, seed), 4, RowSettings(max_new_tokens=4)) for seed in range(4)], []
    for sequence in decoder.run(requests[:3]):
        if not order:
            assert decoder.waiting.add(requests[3], ahead=True) == 3
        order.append(sequence.index)
    assert order == [0, 3, 1, 2]
