"""The labeler interface, and the loop that labels many documents without losing finished ones."""

import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from caw_lab.training.labels import NAME, LabelledText, read_corpus

Spans = tuple[tuple[int, int], ...]


class LabelError(ValueError):
    """This document could not be labelled; others may be."""


class Labeler(Protocol):
    """Labels documents. `label` may be called from several threads at once if `parallel` is true."""

    parallel: bool

    def describe(self) -> dict[str, Any]:
        """Return what the labels depend on: name, model, settings; never a key or a text. Equal on every call."""

    def label(self, document: LabelledText) -> Spans:
        """Return sorted, disjoint, non-empty [start, end) offsets into `document.solution`, at least one.

        Raises LabelError if this document cannot be labelled, another ValueError if none can.
        """


def read_documents(data_dir: str | Path, dataset: str, split: str) -> list[LabelledText]:
    """Return the documents of `<data_dir>/<dataset>/<split>.jsonl` without spans. FileNotFoundError, ValueError."""
    for what, name in (("dataset", dataset), ("split", split)):
        if not NAME.fullmatch(name):  # they become part of a path
            raise ValueError(f"{what} must be a plain name like 'gsm8k', got {name!r}; see --data-dir")
    corpus = read_corpus(Path(data_dir) / dataset / f"{split}.jsonl")
    return [LabelledText(dataset, split, i, *document, ()) for i, document in enumerate(corpus)]


def label_documents(
    labeler: Labeler, documents: Sequence[LabelledText], workers: int = 1
) -> Iterator[tuple[LabelledText, Spans | LabelError]]:
    """Yield each document with its spans, or with its error, as soon as it is known (with workers, in any order).

    Any other exception of the labeler ends the run, after finished documents have been yielded. If left early (Ctrl-C),
    the workers stop after their current document, whose answer is lost; every yielded document is done.
    """
    if workers == 1 or not labeler.parallel:
        for document in documents:
            yield document, _outcome(labeler, document)
        return
    todo: queue.SimpleQueue[LabelledText] = queue.SimpleQueue()
    for document in documents:
        todo.put(document)
    done: queue.SimpleQueue[tuple[LabelledText, Any]] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                document = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((document, _outcome(labeler, document)))
            except BaseException as error:
                done.put((document, error))
                return

    # daemons: a program that ends does not wait for an endpoint that does not answer
    for _ in range(min(workers, len(documents))):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield from _collect(done, len(documents))
    finally:
        stopped.set()


def _collect(done: queue.SimpleQueue[tuple[LabelledText, Any]], count: int) -> Iterator[tuple[LabelledText, Any]]:
    for _ in range(count):
        document, outcome = done.get()
        if isinstance(outcome, BaseException) and not isinstance(outcome, LabelError):
            while not done.empty():
                finished, other = done.get()
                if not isinstance(other, BaseException):
                    yield finished, other
            raise outcome
        yield document, outcome


def _outcome(labeler: Labeler, document: LabelledText) -> Spans | LabelError:
    try:
        spans = labeler.label(document)
    except LabelError as error:
        return error
    return spans or LabelError("expected at least one key segment, found none; look at the text")


def label_line(document: LabelledText, spans: Spans) -> dict[str, Any]:
    """Return one line of a label file: offsets, no text."""
    return {
        "dataset": document.dataset,
        "split": document.split,
        "index": document.index,
        "spans": [list(span) for span in spans],
    }


def locate(solution: str, segments: Sequence[str]) -> Spans:
    """Return the spans of segments that occur in the solution in this order, each searched after the previous one.

    White space around a segment is left out. Raises LabelError naming the first segment (by number, not by content)
    that is empty or is no exact substring there.
    """
    spans, behind = [], 0
    for number, segment in enumerate(segments, 1):
        bare = segment.strip()
        start = solution.find(bare, behind) if bare else -1
        if start < 0:
            where = "behind the segments before it" if bare and bare in solution else "of the text"
            raise LabelError(
                f"segment {number} of {len(segments)} must be an exact, non-empty substring {where}, it is none; "
                "label the document again"
            )
        behind = start + len(bare)
        spans.append((start, behind))
    return tuple(spans)


def join_spans(solution: str, spans: Sequence[tuple[int, int]]) -> Spans:
    """Return sorted disjoint spans: those that overlap, touch or are separated only by blanks (no line break) are
    joined; white space at their ends is dropped, as are spans of white space only.
    """
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        piece = solution[start:end]
        start, end = start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
        if start >= end:
            continue
        if joined and (start <= joined[-1][1] or not solution[joined[-1][1] : start].strip(" ")):
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(joined)
