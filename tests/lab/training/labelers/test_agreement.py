"""Precision and recall of one label file against another."""

from __future__ import annotations

import pytest
from tiny import tiny_tokenizer

from caw_lab.training.labelers.agreement import agreement
from caw_lab.training.labels import LabelledText


def text(index, spans, solution="so 12 and\n#### 34"):
    return LabelledText("toy", "train", index, "q", solution, spans)


def test_agreement_by_characters_and_tokens():
    reference = [text(0, ((3, 5), (15, 17))), text(1, ((0, 2),)), text(2, ((0, 2),))]
    found = [text(0, ((3, 6),)), text(1, ((0, 5),)), text(7, ((0, 1),))]
    measured = agreement(found, reference, tiny_tokenizer())
    # by hand: 13 characters that are no blanks in each text; "12" and "34" against "12", "so" against "so12"
    assert measured["documents"] == 2
    assert measured["characters"] == {
        "precision": round(4 / 6, 4), "recall": round(4 / 6, 4), "f1": round(4 / 6, 4),
        "base_rate": round(6 / 26, 4), "count": 26,
    }  # fmt: skip
    assert measured["tokens"]["count"] > 0
    same = agreement(reference, reference, tiny_tokenizer())
    assert same["characters"]["f1"] == same["tokens"]["f1"] == 1.0


def test_nothing_in_common_is_refused():
    with pytest.raises(ValueError, match="share none"):
        agreement([text(0, ((0, 2),))], [text(1, ((0, 2),))])
    with pytest.raises(ValueError, match="same text in both"):
        agreement([text(0, ((0, 2),))], [text(0, ((0, 2),), "so 13")])


def test_labels_that_never_meet_have_f1_zero():
    measured = agreement([text(0, ((0, 2),))], [text(0, ((3, 5),))])["characters"]
    assert (measured["precision"], measured["recall"], measured["f1"]) == (0.0, 0.0, 0.0)
