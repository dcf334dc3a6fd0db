"""A copy of a run that may be shown to anyone: ids, answers, scores and results; no questions, no generated texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from caw.evaluation.config import CellPlan
from caw.evaluation.scoring import Scorer
from caw.evaluation.store import replace_file, write_json
from caw.jsonl import encode

LONGEST_ANSWER = 32  # characters
DERIVED = ("scores.jsonl", "attacks.json", "perplexity.jsonl")  # without texts
PUBLISHED = ("results.json", "answers.jsonl", *DERIVED)


def publish(scorer: Scorer, plans: Sequence[CellPlan], folder: str | Path) -> int:
    """Write results.json, scores.jsonl, answers.jsonl, runs/ and cells/*/cell.json, and what attacks and a second model
    left of numbers (DERIVED); returns the number of answers.

    A line of answers.jsonl: cell, id, answer, extraction, correct, finish_reason, tokens (their number), marked,
    changed; answers longer than a number or a letter are left out (null), as they may be whole texts. Replaces what is
    there. Raises ValueError if `folder` is the run's own.
    """
    store, place = scorer.store, Path(folder)
    if place.exists() and store.path.exists() and place.samefile(store.path):
        raise ValueError(f"--publish must name another folder than the run's, got {place} for both; name a new one")
    lines, runs = list[bytes](), set[str]()
    for plan in {plan.name: plan for plan in plans}.values():
        made = scorer.generations(plan)
        if not made:
            continue
        write_json(place / "cells" / plan.name / "cell.json", store.cell(plan.name).manifest)
        for g in made:
            runs.add(g.run)
            lines.append(
                encode(
                    {
                        "cell": plan.name, "id": g.id, "answer": _short(g.answer), "extraction": g.extraction,
                        "correct": g.correct, "finish_reason": g.finish_reason, "tokens": len(g.tokens),
                        "marked": g.marked, "changed": g.changed,
                    }
                )
            )  # fmt: skip
    for run in sorted(runs):
        write_json(place / "runs" / f"{run}.json", store.run(run))
    replace_file(place / "answers.jsonl", b"".join(lines))
    for name in DERIVED:
        if (store.path / name).exists():
            replace_file(place / name, (store.path / name).read_bytes())
    write_json(place / "results.json", store.results)
    return len(lines)


def _short(answer: str | None) -> str | None:
    return answer if answer is None or len(answer) <= LONGEST_ANSWER else None
