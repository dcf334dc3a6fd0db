"""README says what is so: its ten lines run, its numbers are the committed results', what it names is there."""

import ast
import json
import lzma
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caw_lab.evaluation.packed_files import read_json

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = " ".join(README.split())
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
[EXAMPLE] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def results(name: str) -> Any:
    return read_json(RESULTS / name)


def cells(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]


def measured() -> dict[str, str]:
    [table] = re.findall(r"## Measured\n(.*?)\n## ", README, re.DOTALL)
    return {what: result for what, result, _ in cells(table)[1:]}


def result_of(part: str) -> str:
    [found] = [result for what, result in measured().items() if part in what]
    return found


def per_cent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def test_there_are_few_measured_rows_with_one_number_a_cell() -> None:
    assert len(measured()) <= 7 and all(re.fullmatch(r"[0-9.]+( %)?", result) for result in measured().values())


def test_the_example_is_ten_lines() -> None:
    assert len(ast.parse(EXAMPLE).body) <= 10 and len([line for line in EXAMPLE.splitlines() if line]) <= 10


@pytest.mark.slow(seconds=20)
def test_the_example_runs(demo_model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(compile(EXAMPLE, "README.md", "exec"), names)
    assert names["result"].is_watermarked and names["out"].texts[0] in capsys.readouterr().out


def test_what_is_linked_or_run_is_there() -> None:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
            assert (path.parent / target).exists(), (path.name, target)
        for name in re.findall(r"python ((?:benchmarks|docs)/[\w/]+\.py)", text):
            assert (ROOT / name).is_file(), (path.name, name)
        for name in re.findall(r"`((?:caw|benchmarks|tests|csrc|gates)/[\w./]*)`", text):
            assert (ROOT / name).exists(), (path.name, name)


def test_every_room_is_on_the_map() -> None:
    """That what the map names exists is tested with the other documents."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [layout] = re.findall(r"## Where things are\n(.*?)\n## ", text, re.DOTALL)
    rooms = {f"caw/{path.parent.name}/" for path in ROOT.glob("caw/*/__init__.py")} - {"caw/demo/"}
    assert rooms <= set(re.findall(r"`(caw/\w+/)", layout))


def named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            name = getattr(part, "name", None) or ast.unparse(getattr(part, "target", ast.Constant("")))
            yield from (name, f"{node.name}.{name}")


def test_the_ten_answers_name_what_is_there() -> None:
    """An answer named a method for months that a rewrite had removed."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [path] = re.findall(r"After reading from prompt to text \((.*?)\) you", text, re.DOTALL)
    [answers] = re.findall(r"<summary>Answers</summary>(.*?)</details>", text, re.DOTALL)
    assert len(re.findall(r"^\d+\. ", answers, re.MULTILINE)) == 10
    files = [file for file in ROOT.glob("caw/**/*.py") if file.parts[-2] == "caw" or "decoding" in file.parts]
    known = {name for file in files for name in named(ast.parse(file.read_text(encoding="utf-8")))} | {"Recommended"}
    for name in re.findall(r"`([\w./]+)`", path + answers):
        if name.endswith(".py"):
            assert any(str(file).endswith("/" + name) for file in files), name
        elif not name.endswith("/"):
            assert name in known, name


def test_everyday_texts() -> None:
    found = json.loads(lzma.decompress((RESULTS / "everyday_smollm2.json.xz").read_bytes()))["cells"].values()
    p = {
        (cell["manifest"]["policy"] or "none"): cell["p"]["none"]
        for cell in found
        if cell["manifest"]["task"] == "greedy-300"
    }
    assert len(p["found"]) == 100 and min(p["none"]) > 0.001
    assert result_of("everyday") == per_cent(sum(value <= 0.001 for value in p["found"]) / 100, 0)


def test_maths_with_a_target() -> None:
    texts = results("universal.json")["texts"]
    rows = {row["policy"]: row for row in texts if row["model"] == "qwen2.5-coder-1.5b" and row["kind"] == "maths"}
    assert result_of("`target` of 1 %") == per_cent(rows["answers"]["right"], 0)
    found, unmarked = (per_cent(row, 0) for row in (rows["answers"]["found"], rows["none"]["right"]))
    assert f"{found} detected (unmarked {unmarked})" in README
    assert f"{unmarked} accuracy became {per_cent(rows['answers']['right'], 0)}" in PROSE


def test_guarded_texts() -> None:
    run = max(results("guard.json")["runs"], key=lambda run: len(run["texts"]))
    [row] = [row for row in run["rows"] if (row["way"], row["texts"]) == ("guard", "long")]
    assert f"{row['both'] * row['count']:.0f} of {row['count']} maths answers of 90 tokens and more" in PROSE
    assert f"for the time of {row['cost']:.1f} unmarked decodes" in PROSE


def recommended(name: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """A set of sampled texts, and its rows under `Recommended` by edit."""
    [texts] = [part for part in results("robust.json")["rows"] if part.get("set") == name]
    return texts, {row["edit"]: row for row in texts["rows"] if row["mark"] == "recommended"}


def test_sampled_texts() -> None:
    warm, rows = recommended("demo .7")
    assert (warm["temperature"], warm["top_p"], rows["as is"]["found"][1]) == (0.7, 0.95, rows["as is"]["n"])
    assert f"all of {rows['as is']['n']} texts of {warm['tokens']} tokens" in PROSE
    cool, rows = recommended("demo .3")
    assert abs(rows["as is"]["found"][1] / rows["as is"]["n"] - 0.25) < 0.01
    assert f"a quarter of {rows['as is']['n']} texts of {cool['tokens']}" in PROSE


def test_edits() -> None:
    texts, rows = recommended("demo .46")
    share = {edit: per_cent(row["found"][0] / row["n"], 0) for edit, row in rows.items()}
    assert (
        f"{texts['tokens']} tokens and {texts['entropy']:.2f} nats a token, {share['as is']} are detected at 1 %"
        in PROSE
    )
    assert (
        f"{share['replaced-0.1']} after one word in ten is replaced, {share['replaced-0.2']} after one in five" in PROSE
    )


def test_false_alarms() -> None:
    found = results("detect_null.json")
    rates = [rate for row in found["rows"] for rate in row["once"]]
    above = [rate for rate in rates if rate["low"] > rate["level"]]
    keys, marks = ({row[name] for row in found["rows"]} for name in ("key", "watermark_name"))
    texts = f"{found['texts']:,} unmarked texts, {len(keys)} keys, {len(marks)} watermarks"
    assert f"Of {len(rates)} false-positive rates ({texts}), {len(above)} are above their level" in PROSE


def test_times() -> None:
    rows = results("parts.json")["rows"]
    marked, plain = (
        next(row["parts"]["all"] for row in rows if (row["batch"], row["case"]) == (1, f"{case}, greedy"))
        for case in ("kgw+caw", "plain")
    )
    assert result_of("step time with KGW") == f"{marked / plain:.2f}"
    race = [row for row in results("drawn.json")["rows"] if (row["batch"], row["case"]) == (1, "exp, T .7, top-p .95")]
    assert [result_of("step time with the race")] == [f"{row['ratio'][0]:.2f}" for row in race]
    floor = next(row["ratio"] for row in results("floor.json")["rows"] if row["dtype"] == "float32")
    assert result_of("relative to transformers") == f"{floor:.1f}"


def over_llama_cpp(instructions: str, side: str) -> float:
    [run] = [
        run
        for run in results("quantization.json")["runs"]
        if run["processor"].startswith("AMD EPYC") and run["processor"].endswith(f" {instructions}")
        and (run["arguments"]["model"], run["arguments"]["prefix"]) == ("smollm2-135m", 128)
    ]  # fmt: skip
    return statistics.median(next(row["ratios"] for row in run["rows"] if (row["side"], row["batch"]) == (side, 1)))


def test_speed_over_llama_cpp() -> None:
    assert result_of("relative to llama.cpp") == f"{over_llama_cpp('avx512_bf16', 'kgw+caw'):.1f}"
    exact, fast = (f"{over_llama_cpp('avx2', side):.2f}" for side in ("kgw+caw", "fast kgw+caw"))
    assert result_of("AVX2 alone") == exact and f"AVX2 alone; {fast} with inputs rounded" in README


def test_a_gpu() -> None:
    parts = results("gpu_h100.json")["parts"]
    one, eight = (
        next(row["ratio"]["median"] for row in parts[part]["rows"] if (row["batch"], row["mode"]) == (batch, "kgw+caw"))
        for part, batch in (("steps_b1", 1), ("steps_batches", 8))
    )
    assert f"{one:.3f} of an unmarked step of a 7B model at batch 1 and {eight:.3f} at batch 8" in README
