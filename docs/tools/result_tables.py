"""Tables of measured results for the pages, made from what benchmarks/results holds when the site is built.

A page names one: `<!-- table: NAME -->`, or with a run of `caw evaluate`: `<!-- table: cost qwen05target -->`. Every
figure stands in a result file, and the file and its command are named under the table. Here are the tables of what is
measured again with each version; those of finished studies stand in the pages, beside the name of their file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from guard_tables import guard, guard_everyday, guard_null, guard_streams, guard_wording
from result_files import RESULTS, ROOT, as_table, read_result, share, source, with_ends
from run_tables import cost, summary

WEIGHTS = ROOT / "caw" / "evaluator" / "weights"
UNIVERSAL = "universal.json"


def table(name: str) -> str:
    """The table of a marker: a name, and for evaluations the run. KeyError for an unknown one."""
    kind, *arguments = name.split()
    if kind not in TABLES:
        raise KeyError(f"no table {kind!r}; known are {', '.join(sorted(TABLES))}")
    return TABLES[kind](*arguments)


def null() -> str:
    """False alarms on unmarked text, pooled over keys."""
    null_rates = read_result("detect_null.json")
    names = list(dict.fromkeys(row["watermark_name"] for row in null_rates["rows"]))
    levels = [rate["level"] for rate in null_rates["rows"][0]["rates"]]
    rows = []
    for name in names:
        of_mark = [row for row in null_rates["rows"] if row["watermark_name"] == name]
        for how, label in (("once", "once in the corpus"), ("rates", "text by text")):
            spans = [[row[how][i]["rate"] for row in of_mark] for i in range(len(levels))]
            rows.append((name, label, *(f"{share(min(s))} - {share(max(s))}" for s in spans)))
    once = [rate for row in null_rates["rows"] for rate in row["once"]]
    above = sum(rate["low"] > rate["level"] for rate in once)
    texts = (
        f"{null_rates['texts']:,} texts, {null_rates['tokens']:,} tokens, the minimum and the maximum rate of 5 keys. "
        f"Counted once, {above} of {len(once)} rates are above their level by more than their 95 % interval."
    )
    header = ("watermark", "evidence counted", *(f"p <= {level:g}" for level in levels))
    return f"{as_table(header, rows)}\n\n{texts} {source('detect_null.json')}"


def universal_texts() -> str:
    """Answers in maths under every policy, each with a target."""
    results = read_result(UNIVERSAL)
    rows = [
        (row["model"], row["prompts"], row["texts"], results["policies"].get(row["policy"], "no mark"),
         with_ends(row["found"], *row["found_ci"]), with_ends(row["kept"], *row["kept_ci"]),
         with_ends(row["both"], *row["both_ci"]) if "both" in row else "", share(row["right"]))
        for row in results["texts"] if (row["kind"], row["split"]) == ("maths", "test")
    ]  # fmt: skip
    header = ("model", "questions", "texts", "policy", "found", "answer of the unmarked text kept", "found and kept",
              "right")  # fmt: skip
    return f"{as_table(header, rows)}\n\n{_from_universal()}"


def universal_judged() -> str:
    """Everyday texts that another model read: found, and the rise in nats beside that of other policies."""
    results = read_result(UNIVERSAL)
    pairs = {tuple(row[name] for name in ("model", "split", "policy", "than")): row for row in results["pairs"]
             if row["kind"] == "everyday"}  # fmt: skip
    rows = []
    for row in results["texts"]:
        if (row["kind"], row["split"]) != ("everyday", "test") or "rise" not in row or "window" in row["policy"]:
            continue
        beside = [pairs.get((row["model"], row["split"], row["policy"], than), {}) for than in ("own", "fixed")]
        rows.append((
            row["model"], row["prompts"], row["texts"], results["policies"].get(row["policy"], "no mark"),
            with_ends(row["found"], *row["found_ci"]), f"{row['nats']:.2f}",
            "" if row["policy"] == "none" else f"{row['rise']:.2f} ({_ends(row['rise_ci'])})", *map(_over, beside),
        ))  # fmt: skip
    header = ("model", "prompts", "texts", "policy", "found at 0.1 %", "nats per token under another model", "rise",
              "rise over that of the model's own evaluator; found beyond it, points",
              "the same, fixed strength")  # fmt: skip
    return f"{as_table(header, rows)}\n\n{_from_universal()}"


def _over(pair: dict[str, Any]) -> str:
    """How much more one policy's texts rise and are found than another's; nothing where the two were not compared."""
    if "rise_ratio" not in pair:
        return ""
    low, high = (100 * end for end in pair["found_ci"])
    ratio = f"{pair['rise_ratio']:.2f} ({_ends(pair['rise_ratio_ci'])})"
    return f"{ratio}; {100 * pair['found']:+.1f} ({low:.0f} to {high:.0f})"


def _ends(ends: tuple[float, float]) -> str:
    return "{:.2f} - {:.2f}".format(*ends)


def _from_universal() -> str:
    return source(UNIVERSAL, "python benchmarks/bench_universal.py gather")


def shipped() -> str:
    """The evaluators that come with the library, on the held-out documents of their labels."""
    rows = []
    for path in sorted(WEIGHTS.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        metrics = about["metrics"]
        if "trained_on" in about:  # something else than key segments
            continue
        low, high = metrics["auroc_ci"]
        auroc = {name: f"{metrics['evaluators'][name]['auroc']:.3f}" for name in ("capacity", "entropy", "logit_delta")}
        rows.append((
            f"`{path.stem}`", about["model"], about["data"]["documents"], auroc["capacity"],
            f"{low:.3f} - {high:.3f}", auroc["entropy"], auroc["logit_delta"],
        ))  # fmt: skip
    header = ("evaluator", "model", "documents", "AUROC", "95 % interval", "AUROC of entropy", "AUROC of the logit gap")
    return f"{as_table(header, rows)}\n\n*From `caw/evaluator/weights/*.json`; each file names its command.*"


def machine() -> str:
    """What each file was measured on."""
    lines = ["| file | machine | threads | torch | transformers | commit |", "| --- | --- | --- | --- | --- | --- |"]
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "commit" not in found:
            continue
        about, versions = found["machine"], found["versions"]
        place = about.get("gpu") or f"{about['cpu']}, {about['cores']} cores"
        lines.append(
            f"| `{path.name}` | {place} | {about['threads']} | {versions['torch']} | {versions['transformers']} "
            f"| {found['commit']} |"
        )
    return "\n".join(lines)


TABLES: dict[str, Callable[..., str]] = {
    "cost": cost, "summary": summary, "null": null,
    "guard": guard, "guard-everyday": guard_everyday, "guard-null": guard_null,
    "guard-streams": guard_streams, "guard-wording": guard_wording,
    "universal-texts": universal_texts, "universal-judged": universal_judged,
    "shipped": shipped, "machine": machine,
}  # fmt: skip
