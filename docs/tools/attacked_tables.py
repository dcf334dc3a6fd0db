"""How many marked answers are still detected after each attack, from the files of benchmarks/evaluation/attacked.py."""

from __future__ import annotations

from typing import Any

import attacked as attacked_texts
from result_files import as_table, per_cent, read_result, share, source

PLAIN = attacked_texts.PLAIN
TITLES = {"word-d": "words deleted", "word-s": "by synonyms", "word-s-context": "by synonyms that fit"}


def attacked(run: str) -> str:
    """Share detected at 1 % as written and after each attack, without and with weights."""
    name = f"attacked_{run}.json.xz"
    found = read_result(name)
    rows = list(attacked_texts.rows(found))
    attacks = sorted(found["attacks"], key=lambda attack: (found["attacks"][attack]["kind"], attack))
    lines = []
    for row in rows:
        label = "no watermark" if row["policy"] == PLAIN else row["policy"]
        found_after = (_found(row["attacked"][attack]) for attack in (PLAIN, *attacks))
        lines.append((label, per_cent(row["right"], 0), *found_after))
    texts = {row["texts"] for row in rows}
    changed = "; ".join(f"{attack} {_changed(rows, attack)}" for attack in attacks)
    said = (
        f"{' or '.join(map(str, sorted(texts)))} answers per setting; brackets hold the weighted share and its 95 % "
        f"interval. Mean share of words that an attack changed: {changed}. {source(name)}"
    )
    titles = (_title(found["attacks"][attack]) for attack in attacks)
    header = ("setting", "accuracy", "detected at 1 % (weighted)", *titles)
    return f"{as_table(header, lines)}\n\n{said}"


def _title(attack: dict[str, Any]) -> str:
    return f"{attack['rate']:.0%} {TITLES[attack['kind']]}".replace("%", " %")


def _found(of: tuple[Any, ...]) -> str:
    plain, weighted, _ = of
    span = f"{100 * weighted[1]:.0f} - {100 * weighted[2]:.0f}"
    return f"{per_cent(plain[0], 0)} ({'; '.join((per_cent(weighted[0], 0), span))})"


def _changed(rows: list[dict[str, Any]], attack: str) -> str:
    rates = [row["attacked"][attack][2] for row in rows]
    return share(sum(rates) / len(rates))
