"""Which tokens count, and that texts beside a text change nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from detection.native_watermarks import ALL, IDS, REPETITIVE

from caw.detection import detect, token_scores
from caw.testing import assert_close
from caw.watermarks import EXP, Watermark


@pytest.mark.parametrize("watermark", ALL, ids=IDS)
@pytest.mark.parametrize("stream_tokens", [1, 40])
def test_a_text_in_a_batch_equals_the_text_alone(
    watermark: Watermark, stream_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours give no context and no evidence, however the batch is cut."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 6, n).tolist() for n in (3, 0, 1, 57, 57, 0, 20)] + [[1, 2, 3]] * 2 + [[]]
    alone = [detect([text], None, watermark)[0] for text in texts]
    monkeypatch.setattr(token_scores, "STREAM_TOKENS", stream_tokens)
    together = detect(texts, None, watermark)
    assert len(together) == len(texts)
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids and one.num_scored == other.num_scored
        assert [s is None for s in one.token_scores] == [s is None for s in other.token_scores]
        for name in ("score", "z_score", "p_value"):
            assert_close(getattr(one, name), getattr(other, name), "tail")


def test_compat_counts_every_token_of_green_lists_and_each_context_of_races() -> None:
    for watermark in ALL:
        exact, compat = (detect(REPETITIVE * 3, None, watermark, mode=m) for m in ("exact", "compat"))
        assert compat.mode == "compat"
        if isinstance(watermark, EXP):
            assert dataclasses.replace(compat, mode="exact") == exact
        else:
            assert compat.num_scored == len(REPETITIVE) * 3 > exact.num_scored
            values = watermark.score_tokens(torch.tensor(REPETITIVE * 3)).values
            assert compat.score == float(values.sum())
