"""What `docs/tools/pages.py` writes, and what it finds."""

from pathlib import Path

import pages
import pytest


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_pages_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert pages.current(text) == text, "run make docs"


def test_a_stale_block_is_written_again() -> None:
    text = "before\n<!-- file: docs/tools/operators.py -->\nold\n<!-- end -->\nbehind\n"
    new = pages.current(text)
    assert "old" not in new and "```python\n" in new and new.startswith("before\n") and new.endswith("-->\nbehind\n")
    assert pages.current(new) == new
    with pytest.raises(KeyError, match="no table"):
        pages.current("<!-- table: nothing -->\n<!-- end -->")


def test_dead_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# A: `b`, c\n[x](b.md) [y](#a-b-c) [z](b.md#there)\n```\n[no](no.md)\n# no\n```\n")
    (tmp_path / "b.md").write_text("[x](a.md#no) [y](https://e.example) [z](nowhere.md)")
    assert list(pages.dead_links(tmp_path / "a.md")) == ["a.md: b.md#there"]
    assert list(pages.dead_links(tmp_path / "b.md")) == ["b.md: a.md#no", "b.md: nowhere.md"]
