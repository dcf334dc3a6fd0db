"""Streams of the sampling noise."""

from __future__ import annotations

from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings


def test_streams_depend_on_the_prompt_and_its_repetition() -> None:
    a, b = [1, 2, 3], [12, 3]

    def stream_ids(prompts: list[list[int]]) -> list[tuple[int, int]]:
        rows = [RowSettings()] * len(prompts)
        return [request.stream for request in requests_for(prompts, [9] * len(prompts), rows)]

    assert stream_ids([a, b]) == stream_ids([b, a])[::-1]
    first, second, third = stream_ids([a, a, a])
    assert len({first, second, third}) == 3
    assert stream_ids([a]) == [first]
    assert stream_ids([b, a, a])[1:] == [first, second]
    assert all(0 <= word < 2**32 for stream in stream_ids([a, b]) for word in stream)
    assert stream_ids([[1, 23]]) != stream_ids([[12, 3]])
    other = requests_for([a, a], [9, 9], [RowSettings(), RowSettings(seed=1)])
    assert [request.occurrence for request in other] == [0, 0], "only equal requests count"
