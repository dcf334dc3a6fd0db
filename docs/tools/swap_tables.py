"""The table of `lab/swaps.py`: whether the harm of a swapped token can be foreseen without labels."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "evaluator_swaps_smollm2-135m.json"
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def swaps() -> str:
    """AUROC by what learns, what is read, and what counts as harm."""
    found = json.loads((RESULTS / NAME).read_text(encoding="utf-8"))
    named = {"entropy": found["by_label"]["all"]["entropy"], **found["by_learner"]}
    named |= {f"regression on {read}": row for read, row in found["by_what_is_read"].items()}
    labels = {label: row["line"] for label, row in found["by_label"].items() if label != "all"}
    named |= {f"regression on all three, harm {label}": row for label, row in labels.items()}
    lines = ["| score | AUROC | 95 % interval |", "| --- | --- | --- |"]
    for name, row in named.items():
        low, high = row["auroc_ci"]
        lines.append(f"| {name} | {row['auroc']:.3f} | {low:.3f} - {high:.3f} |")
    said = f"{found['swaps']} swaps in texts of {found['prompts']} prompts, cross-validated over prompts."
    made = f"*From `benchmarks/results/{NAME}`, made by `{found['command']}`.*"
    return "\n".join(lines) + f"\n\n{said} {made}"
