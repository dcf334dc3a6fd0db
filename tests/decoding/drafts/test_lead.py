"""What a right draft saves, by how far each text has come."""

from __future__ import annotations

import pytest

from caw.decoding.drafts.lead import saved_by_each


def test_each_the_same_where_others_wait() -> None:
    assert saved_by_each([9, 3, 5, 9], followed=True) == [0.25] * 4


@pytest.mark.parametrize("remaining", [[7], [7, 7, 7], [1, 2, 3, 4], [8, 8, 2]])
def test_the_last_ones_decide_where_none_waits(remaining: list[int]) -> None:
    saved = saved_by_each(remaining, followed=False)
    assert sum(saved) == pytest.approx(1)
    last = [share for share, left in zip(saved, remaining, strict=True) if left == max(remaining)]
    assert len(set(last)) == 1 and last[0] >= 1 / len(remaining)
    leading = [share for share, left in zip(saved, remaining, strict=True) if left < max(remaining)]
    assert leading == [0.5 / len(remaining)] * len(leading), "those behind may end first"


def test_no_text() -> None:
    assert saved_by_each([], followed=False) == saved_by_each([], followed=True) == []
