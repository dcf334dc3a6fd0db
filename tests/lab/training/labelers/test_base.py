"""Spans from segments, documents from files, and the loop that runs a labeler."""

import json
import threading

import pytest

from caw_lab.training.labelers.base import LabelError, join_spans, label_documents, locate, read_documents
from caw_lab.training.labels import LabelledText


def documents(count):
    return [LabelledText("toy", "train", i, "q", f"answer {i}", ()) for i in range(count)]


class Marker:
    def __init__(self, errors=None, parallel=True):
        self.errors, self.parallel, self.threads = errors or {}, parallel, set()

    def describe(self):
        return {}

    def label(self, document):
        self.threads.add(threading.get_ident())
        if document.index in self.errors:
            raise self.errors[document.index]
        return ((0, 1),)


def test_locate():
    for segments, expected in (
        (["3", "3"], ((0, 1), (4, 5))),
        ([" 3 + 3 ", "6"], ((0, 5), (8, 9))),
        (["3 + 3 = 6\n", "6"], ((0, 9), (15, 16))),
        ([], ()),
    ):
        text = "3 + 3 = 6\n#### 6"
        assert locate(text, segments) == expected
        assert [text[a:b] for a, b in expected] == [s.strip() for s in segments]


def test_locate_refuses_and_names_no_text():
    for segments, message in (
        (["3", "seven"], r"segment 2 of 2 must be an exact, non-empty substring of the text"),
        (["6", "6", "6"], r"segment 3 of 3 .* behind the segments before it"),
        (["3", "  "], r"segment 2 of 2"),
        (["3  +"], r"segment 1 of 1"),
    ):
        with pytest.raises(LabelError, match=message) as caught:
            locate("3 + 3 = 6\n#### 6", segments)
        assert "seven" not in str(caught.value)


def test_join_spans():
    text = "48/2 = 24 clips\n#### 24"
    assert join_spans(text, [(7, 9), (0, 4), (5, 6)]) == ((0, 9),)
    assert join_spans(text, [(9, 15), (15, 23)]) == ((10, 15), (16, 23))  # a line break keeps spans apart
    assert join_spans(text, [(4, 5), (15, 16)]) == ()
    assert join_spans(text, [(0, 3), (2, 4)]) == ((0, 4),)


def test_read_documents(tmp_path):
    (tmp_path / "toy").mkdir()
    rows = [{"question": f"q{i}", "answer": f"<<1+1=2>>a{i}"} for i in range(4)]
    (tmp_path / "toy" / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = read_documents(tmp_path, "toy", "train")
    assert [(d.index, d.question, d.solution, d.spans) for d in found] == [(i, f"q{i}", f"a{i}", ()) for i in range(4)]
    with pytest.raises(ValueError, match="plain name"):
        read_documents(tmp_path, "../toy", "train")
    with pytest.raises(FileNotFoundError, match="data file"):
        read_documents(tmp_path, "toy", "test")


@pytest.mark.parametrize("workers", [1, 3])
def test_documents_that_fail_are_named_and_the_others_go_on(workers):
    marker = Marker({2: LabelError("nonsense")})
    outcomes = {d.index: outcome for d, outcome in label_documents(marker, documents(8), workers)}
    assert sorted(outcomes) == list(range(8))
    assert str(outcomes.pop(2)) == "nonsense"
    assert set(outcomes.values()) == {((0, 1),)}
    assert (threading.get_ident() in marker.threads) == (workers == 1)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_of_every_document_ends_the_run(workers):
    marker = Marker({4: ValueError("bad key")})
    found = []
    with pytest.raises(ValueError, match="bad key"):
        for document, _ in label_documents(marker, documents(6), workers):
            found.append(document.index)
    assert set(found) <= {0, 1, 2, 3, 5} and (workers > 1 or found == [0, 1, 2, 3])
