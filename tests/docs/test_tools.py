"""What `docs/tools/pages.py` writes, and what it finds."""

from pathlib import Path

import pages
import pytest
from command_line import command_line
from operators import operators
from reference import entry

import caw


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


def test_signatures_are_the_calls() -> None:
    text = entry("caw.Chooser", "start", "drop")
    assert text.startswith("### caw.Chooser\n\n```text\ncaw.Chooser(") and "Chooser.drop(row" in text
    text = entry("caw.generate")
    assert "    *,\n" in text and "    min_p: float = 0.0,\n" in text
    assert caw.generate.__doc__ and caw.generate.__doc__.splitlines()[0] in text


def test_command_line_has_every_command() -> None:
    rows = command_line().splitlines()
    for name in ("caw generate", "caw detect", "caw evaluate run", "caw train-evaluator"):
        assert len([row for row in rows if row.startswith(f"| `{name}` | ") and row.count("|") == 3]) == 1


def test_operators_have_their_schemas() -> None:
    rows = {line.split("`")[1].split("(")[0]: line for line in operators().splitlines()[2:]}
    assert "-> (Tensor, Tensor, Tensor, Tensor)` | yes |" in rows["topk_softmax"]
    assert "Tensor(a!) store" in rows["commit_kv"] and rows["quantized_linear"].endswith("|  |")
