"""Every watermark has a name, and its name leads back to it."""

from __future__ import annotations

import pytest

import caw
from caw.watermarks.registry import WATERMARKS, watermark_arguments, watermark_class, watermark_name


def test_every_watermark_has_a_name() -> None:
    assert {watermark_class(name) for name in WATERMARKS} == {caw.KGW, caw.Unigram, caw.EXP, caw.SynthID}


@pytest.mark.parametrize("name", WATERMARKS)
def test_names_and_classes_belong_together(name: str) -> None:
    assert watermark_name(watermark_class(name)(1)) == name
    assert "key" not in watermark_arguments(name)
    assert set(WATERMARKS[name].strength) <= set(watermark_arguments(name))


@pytest.mark.parametrize("name", WATERMARKS)
def test_no_detector_reads_what_sets_the_strength(name: str) -> None:
    """Texts of one key can be tested whatever strength each policy gave them."""
    kind, tokens = watermark_class(name), list(range(5, 60))
    changed = {argument: {"delta": 7.5, "top_k": 3}[argument] for argument in WATERMARKS[name].strength}
    plain, other = (caw.detect(tokens, None, mark) for mark in (kind(1), kind(1, **changed)))
    assert (plain.p_value, plain.num_scored) == (other.p_value, other.num_scored)
