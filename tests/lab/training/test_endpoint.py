"""What every user of an endpoint shares; the labeler's and the paraphraser's tests ask a stand-in."""

import pytest

from caw_lab.training.endpoint import RateLimit


def test_rate_limit_spaces_requests() -> None:
    now, slept = [100.0], list[float]()
    limit = RateLimit(120, clock=lambda: now[0])
    for _ in range(3):
        limit.wait(slept.append)
    now[0] += 10  # an idle time gives no credit for a burst
    limit.wait(slept.append)
    limit.wait(slept.append)
    assert slept == [0.0, 0.5, 1.0, 0.0, 0.5]
    RateLimit(None).wait(slept.append)
    assert len(slept) == 5
    with pytest.raises(ValueError, match="above 0"):
        RateLimit(0)
