"""README's picture is what `caw demo` shows, and fetches nothing."""

import inspect
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import demo_picture
import pytest
from demo_run import shown

from caw.demo.outputs import Demo, run_demo

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "demo.svg"


def test_nothing_is_fetched() -> None:
    text = PICTURE.read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert len(text) < 40_000
    assert not re.search(r"url\(|@import|@font-face|<script|href|https?:(?!//www\.w3\.org/2000/svg\")", text)


@pytest.mark.slow(seconds=25)
def test_it_is_the_demos(demo: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script asks for what the command asks for, and draws what the command showed."""
    made = shown()

    def again(model: Any, tokenizer: Any, *given: Any, **options: Any) -> Demo:
        calls = [inspect.signature(run_demo).bind(*demo, *call[0], **call[1]) for call in ((given, options), made[2:4])]
        for call in calls:
            call.apply_defaults()
        assert calls[0].arguments == calls[1].arguments
        return made.demo

    monkeypatch.setattr(demo_picture, "load_model", lambda name, dtype: demo)
    monkeypatch.setattr(demo_picture, "run_demo", again)
    demo_picture.main(["--out", str(tmp_path / "demo.svg")])
    assert (tmp_path / "demo.svg").read_text(encoding="utf-8") == PICTURE.read_text(encoding="utf-8")
