"""The progress bar: shown where somebody looks, and it says what is being prepared."""

from __future__ import annotations

import sys

import pytest

from caw.progress import DOING, GenerationProgress


def test_notes_replace_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    bar = GenerationProgress(3, enabled=True)
    assert bar.bar is not None
    bar.note("before it is shown")  # a decoder may prepare early: nothing to show, nothing breaks
    with bar:
        bar(5)
        bar.note("capturing a CUDA graph (batch 8, 2 candidates)")
        assert bar.bar.tasks[0].description == "capturing a CUDA graph (batch 8, 2 candidates)"
        bar.note("")
        bar(7)
        task = bar.bar.tasks[0]
        assert (task.description, task.completed, task.fields["tokens"]) == (DOING, 2, 12)


@pytest.mark.parametrize(("total", "enabled", "terminal"), [(1, True, True), (3, False, True), (3, True, False)])
def test_nothing_is_shown_otherwise(
    total: int, enabled: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with GenerationProgress(total, enabled=enabled) as bar:
        bar(5)
        bar.note("capturing")
    assert bar.bar is None
    assert capsys.readouterr().err == ""
