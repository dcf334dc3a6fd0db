"""Labels of changes: what the first tokens behind one say."""

from __future__ import annotations

import math

import numpy as np
import torch
from universal_labels import DEPTH, ahead_of

from caw.fitting.healing import Healed, HealedText
from caw.record import Record


def test_first_tokens_behind_a_change() -> None:
    """The text is 0 to 9; at place 2 a 7 came, behind which the model says 4, then 4 again, then something else."""
    likely = [(4, 3), (4, 0), (9, 5)]
    logits = torch.full((3, 10), -20.0)
    for row, (first, second) in zip(logits, likely, strict=True):
        row[first], row[second] = 1.0, 0.0
    rows = Record.from_logits(logits, 10)
    text = HealedText(
        0, [1], list(range(10)), [Healed(2, 7, False, False, 4, False)], rows, rows.take(torch.tensor([0]))
    )
    [found] = ahead_of(HealedText(**{**vars(text), "ahead": [rows]}))
    total = math.log(math.e + 1)
    assert np.allclose(found[:3, 1], 1.0) and np.allclose(found[:3, 2], 1 - total, atol=1e-4)
    assert np.allclose(found[:3, 3], [-total, 1 - total, -total], atol=1e-4), "of 3, 4 and 5, which the text has"
    assert found[:3, 4].tolist() == [0, 1, 0] and found[:3, 5].tolist() == [1, 1, 0]
    share = math.e / (math.e + 1)
    assert np.allclose(found[:3, 0], -share * math.log(share) - (1 - share) * math.log(1 - share), atol=1e-4)
    assert found.shape == (DEPTH, 6) and np.isnan(found[3:]).all()
