"""Tables that the guide types out, because they are read without a build too, say what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from caw.io.json_files import read_json

ROOT = Path(__file__).parents[2]


def results(name: str) -> Any:
    return read_json(ROOT / "benchmarks" / "results" / name)


def table(page: str, first: str) -> list[list[str]]:
    """Rows of the table whose head begins with `first`."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith(first)]
    end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : end]]


def test_what_beta_does() -> None:
    plain, kgw, caw = results("detection.json")["rows"]
    stronger = results("detection_beta2.json")
    assert stronger["arguments"] == {**results("detection.json")["arguments"], **{"beta": 2.0}, **{
        "out": stronger["arguments"]["out"], "threads": stronger["arguments"]["threads"]}}  # fmt: skip
    rows = table("choosing-settings.md", "| | detected | tokens changed")
    assert [row[1:] for row in rows] == [
        [
            f"{r['found']} of {r['texts']}",
            f"{100 * r['changed']:.1f} %" if r["changed"] else "0",
            f"{r['surprise']:.2f}",
        ]
        for r in (plain, kgw, caw, stronger["rows"][2])
    ]


def test_share_found_by_length() -> None:
    found = {
        (row["watermark"], row["tokens"], row["fpr"]): row["measured"]
        for row in results("detect_power.json")["rows"]
        if row["prompts"] == "everyday"
    }
    rows = table("choosing-settings.md", "| tokens | KGW | EXP |")
    assert [int(row[0]) for row in rows] == [25, 50, 100, 150, 200, 400]
    for tokens, *said in rows:
        for text, mark in zip(said, ("KGW, full strength", "EXP, full strength", "KGW under CAW"), strict=True):
            shares = [float(share) / 100 for share in re.findall(r"(\d+) %", text)]
            measured = [found[mark, int(tokens), level] for level in (1e-3, 1e-5)]
            # half of the last digit, 97.5 % of 40 texts among them
            assert all(abs(a - b) < 0.00501 for a, b in zip(shares, measured, strict=True))


def test_time_over_plain() -> None:
    ratios = {
        (file, row["mode"], row["batch"]): f"{row['ratio']['median']:.2f}"
        for file in ("float32", "float32_b8", "bfloat16", "long")
        for row in results(f"generate_cpu_{file}.json")["rows"]
    }
    rows = {row[0]: row[1:] for row in table("performance.md", "| time | batch 1 |")}
    for mark in ("kgw", "exp"):
        name, mode = f"{mark.upper()} under CAW", f"{mark}+caw"
        assert rows[f"{name}, 32 new tokens, one thread"] == [
            f"{ratios[file, mode, batch]} (bfloat16 {ratios['bfloat16', mode, batch]})"
            for file, batch in (("float32", 1), ("float32_b8", 8))
        ]
        assert rows[f"{name}, 200 new tokens, two threads"] == [ratios["long", mode, batch] for batch in (1, 8)]
    slow = "kgw+caw/sequential"
    assert rows["the paper's sequential look-ahead, KGW, 32 tokens; 200 tokens"] == [
        f"{ratios['float32', slow, 1]}; {ratios['long', slow, 1]}", f"200 tokens: {ratios['long', slow, 8]}",
    ]  # fmt: skip
    ways = [row for row in results("generate_cpu_branching_b8.json")["rows"] if row["mode"] != "plain"]
    assert [row["mode"].removeprefix("kgw+caw") for row in ways] == ["", "/sequential", "/batch"]
    assert rows["KGW, `branching` as tree; sequential, 32 tokens after 128"] == [
        "", "; ".join(f"{row['ratio']['median']:.2f}" for row in ways[:2]),
    ]  # fmt: skip
    assert {f"{row['peak_ratio']:.2f}" for row in ways[:2]} == {"1.00"}


def test_products_over_those_of_blocks() -> None:
    steps = [(int(n), us) for case in results("products.json")["rows"] for n, us in case["us"].items()]

    def over(side: str, other: str, rows: range) -> str:
        ratios = [us[side][1] / us[other][1] for n, us in steps if n in rows and side in us]
        return f"{min(ratios):.2f} - {max(ratios):.2f}"

    told = table("quantization.md", "| side | 1 to 4 rows |")
    assert {row[0] for row in told} == {side for _, us in steps for side in us} - {"blocks"}
    for side, few, many in told:
        assert (few, many) == (over(side, "blocks", range(1, 5)), over(side, "blocks", range(8, 17)))


def test_rounding_by_blocks_and_by_rows() -> None:
    blocks, rows = results("rounding.json")["rows"][:2]
    products, divergence = (blocks[key] / rows[key] for key in ("products", "divergence"))
    said = f"for {products:.2f} times a row's error of products and {divergence:.2f} times its divergence"
    assert said in " ".join((ROOT / "docs" / "quantization.md").read_text(encoding="utf-8").split())
    assert blocks["rounding"] == "8 bits, blocks of 32" and rows["rounding"] == "8 bits, rows"


def test_how_many_accusations_are_wrong() -> None:
    level, power, texts = 0.001, 0.95, 100_000
    for marked, right, wrong, share in table("p-values.md", "| of 100,000 texts are marked |"):
        many = int(marked.replace(",", ""))
        found, false = power * many, level * (texts - many)
        assert float(right.replace(",", "")) == found and round(false) == int(wrong)
        digits = len(share.removesuffix(" %").partition(".")[2])
        assert round(100 * false / (found + false), digits) == float(share.removesuffix(" %"))


def test_the_cost_of_row_invariance() -> None:
    """The bound holds up to 16 rows, and what lies beyond is said."""
    found = results("row_invariance.json")
    rows = found["rows"]
    few = [row for row in rows if not row["prompt"] and row["rows"] <= 16]
    assert len(few) == 5 * 4 and max(row["ratio"] for row in few) <= 1.03
    said = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    assert f"Up to 16 rows the medians are up to {max(row['ratio'] for row in few):.2f}, within" in said
    (high,) = (row["high"] for row in few if row["high"] > 1.03)
    assert f"the upper quartile is {high:.2f} in one case" in said and f"a load of {found['machine']['load']};" in said

    def between(found: list[float]) -> str:
        return f"{min(found):.2f} to {max(found):.2f}"

    wide = {n: between([row["ratio"] for row in rows if row["rows"] == n]) for n in (32, 64, 1000)}
    parts = [(name, part["ratio"]) for row in rows if row["prompt"] for name, part in row["parts"].items()]
    attention, products = (between([r for name, r in parts if (name == "attention") == own]) for own in (True, False))
    assert f"32 rows take {wide[32]}, 64 rows {wide[64]}." in said
    assert f"1,000 tokens take {wide[1000]} times as long, in attention {attention} and in products {products}," in said


def test_what_a_gpu_measured() -> None:
    """The sentences of docs/gpu.md and README, beside the tables that are made."""
    parts = results("gpu_h100.json")["parts"]
    text = " ".join((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split())

    def more(part: str, batch: int, mode: str) -> list[float]:
        """Per cent over plain, to a digit."""
        found = [row for row in parts[part]["rows"] if row["batch"] == batch and row["mode"] == mode]
        return [round(100 * (row["ratio"]["median"] - 1), 1) for row in found]

    kgw, exp = (
        [n for part in ("steps_b1", "steps_tuned") for n in more(part, 1, mode)] for mode in ("kgw+caw", "exp+caw")
    )
    assert kgw[0] == 0.6 and exp[0] == 1.7 and max(kgw) <= 2 and max(exp) == 2.0
    assert "takes 0.6 % more time than an unmarked one, a step of EXP 1.7 %" in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "1.006 of an unmarked step of a 7B model at batch 1 and 1.011 at batch 8" in readme
    assert more("steps_batches", 8, "kgw+caw") == [1.1]
    at_8 = [more(part, 8, "exp+caw")[0] for part in ("steps_tuned", "steps_batches")]
    assert more("steps_batches", 8, "kgw+caw") == [1.1] and [round(n) for n in at_8] == [21, 23]
    assert "**Batch 8**: 1.1 % for two candidates (3 allowed). Eight candidates cost 21 to 23 %" in text
    at_32 = [more("steps_batches", 32, mode)[0] for mode in ("kgw+caw", "exp+caw")]
    assert "**Batch 32**: {} % for two candidates (4 allowed), {} % for eight".format(*at_32) in text
    top = {row["case"]: row["us"] for row in parts["kernels_topk"]["rows"]}["top-100 of 2 rows x 128256 float16"]
    assert f"takes {top['caw']:.1f} us (15 asked), torch.topk {top['torch.topk + logsumexp']:.1f}" in text
