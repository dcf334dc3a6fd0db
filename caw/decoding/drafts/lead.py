"""What a right draft saves, by how far each text of a batch has come.

As long as others wait for a place, each text that ends earlier lets the next one begin, and a token more in one of B
texts is worth the B-th part of a step. Where none waits, all is done when the last text is. Drafts of texts that lead
then save nothing, unless those behind end first: nobody knows, so each of the two counts half.
"""

from __future__ import annotations

from collections.abc import Sequence


def saved_by_each(remaining: Sequence[int], *, followed: bool) -> list[float]:
    """Share of a step that a token more saves in each of B texts, B numbers that add up to 1.

    remaining: the most tokens that each may still get. followed: whether other texts wait for a place.
    """
    even = 1 / max(len(remaining), 1)
    if followed:
        return [even] * len(remaining)
    most = max(remaining, default=0)
    behind = remaining.count(most)
    return [(even + (left == most) / behind) / 2 for left in remaining]
