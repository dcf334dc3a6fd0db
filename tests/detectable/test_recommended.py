"""Detectable texts of a Recommended: what cannot be detected is refused by the family that will mark it."""

import pytest
from tiny import tiny_model, tiny_tokenizer

import caw


def test_a_greedy_text_too_short_for_its_own_family_is_refused() -> None:
    """A race could do with one token; greedy texts are not marked by it."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    given = {"watermark": caw.Recommended(3), "detectable_at": 1e-12, "max_new_tokens": 3, "progress": False}
    with pytest.raises(ValueError, match="requires at least 21 tokens that count, got texts"):
        caw.generate(model, tokenizer, "x", **given)
    out = caw.generate(model, tokenizer, "x", do_sample=True, max_attempts=1, **given)
    assert not out.receipts[0].detected
