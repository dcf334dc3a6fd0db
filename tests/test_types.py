"""What an editor is told of the first calls, by mypy."""

from pathlib import Path

import pytest

mypy = pytest.importorskip("mypy.api", reason="types need mypy")

PROGRAM = """
import caw
mark = caw.KGW(key=1)
reveal_type(caw.detect("a", None, mark))
reveal_type(caw.detect([1, 2], None, mark))
reveal_type(caw.detect(["a"], None, mark))
reveal_type(caw.detect([[1], [2]], None, mark))
reveal_type(caw.Detector(None, mark)(("a", "b")))
reveal_type(caw.detect_keys(["a"], None, {"one": mark}))
reveal_type(caw.generate(*caw.load_model("x"), "a"))
reveal_type(caw.load_model("x"))
"""
ONE, KEYS = "caw.detection.result.DetectionResult", "list[caw.detection.many_keys.KeySearchResult]"
TYPES = [ONE, ONE, f"list[{ONE}]", f"list[{ONE}]", f"list[{ONE}]", KEYS, "caw.output.GenerationOutput"]
TYPES += ["tuple[Any, Any]"]  # transformers is skipped


@pytest.mark.slow(seconds=20)
def test_calls_have_types(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    config = Path(__file__).parents[1] / "pyproject.toml"
    said, errors, _ = mypy.run(["--config-file", str(config), "--follow-imports", "silent", str(file)])
    assert [line.split('"')[1] for line in said.splitlines() if "Revealed type" in line] == TYPES, said + errors
