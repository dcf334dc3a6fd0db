"""How many marked answers are still found after each attack, from the files of benchmarks/evaluation/attacked.py."""

from __future__ import annotations

from typing import Any

import attacked as attacked_texts
from result_files import as_table, read_result, share, source

PLAIN = attacked_texts.PLAIN
TITLES = {"word-d": "words deleted", "word-s": "by synonyms", "word-s-context": "by synonyms that fit"}


def attacked(run: str) -> str:
    """Share found at 1 % as written and after each attack, without and with weights."""
    name = f"attacked_{run}.json.xz"
    found = read_result(name)
    rows = list(attacked_texts.rows(found))
    attacks = sorted(found["attacks"], key=lambda attack: (found["attacks"][attack]["kind"], attack))
    lines = []
    for row in rows:
        label = "no watermark" if row["policy"] == PLAIN else row["policy"]
        lines.append((label, f"{row['right']:.2f}", *(_found(row["attacked"][attack]) for attack in (PLAIN, *attacks))))
    texts = {row["texts"] for row in rows}
    changed = "; ".join(f"{attack} {_changed(rows, attack)}" for attack in attacks)
    said = (
        f"{' or '.join(map(str, sorted(texts)))} answers a setting, and the 95 % interval of the weighted share. "
        f"Share of words that an attack changed in the mean: {changed}. {source(name)}"
    )
    header = ("setting", "right", "found at 1 % (weighted)", *(_title(found["attacks"][attack]) for attack in attacks))
    return f"{as_table(header, lines)}\n\n{said}"


def _title(attack: dict[str, Any]) -> str:
    return f"{attack['rate']:.0%} {TITLES[attack['kind']]}".replace("%", " %")


def _found(of: tuple[Any, ...]) -> str:
    plain, weighted, _ = of
    return f"{plain[0]:.2f} ({weighted[0]:.2f}; {weighted[1]:.2f} - {weighted[2]:.2f})"


def _changed(rows: list[dict[str, Any]], attack: str) -> str:
    rates = [row["attacked"][attack][2] for row in rows]
    return share(sum(rates) / len(rates))
