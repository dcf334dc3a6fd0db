"""What a mark costs everyday texts, and whether they are found: gathered from the runs everyday-*.yaml (README.md).

    python everyday.py runs/everyday-qwen05 --output ../results/everyday_qwen05.json.xz

With --onto FILE, cells of a published file that the folder has no texts of stay. The file holds numbers of each text
and no texts: p-values, as written and after each attack, length, repetition, and
perplexity where it was read. `rows` makes of it what the documentation shows. Numbers have 3 digits; a p-value that
this would carry over the level is kept whole.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from caw.io.json_files import compress, read_lines, replace_file
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.config_file import read_config
from caw_lab.evaluation.metrics.accuracy import wilson
from caw_lab.evaluation.metrics.judge import PERPLEXITY_FILE
from caw_lab.evaluation.metrics.scoring import MODEL, Scorer
from caw_lab.evaluation.metrics.style import SIZES
from caw_lab.evaluation.store import Score, Store

LEVEL = 1e-3
PLAIN = "none"  # the attack that is none, and the policy of unmarked texts
DIGITS = 3
TESTED = {"detectable_at", "found_at"}  # the setting of texts that are tested, and its name in older files


def gather(folder: Path) -> dict[str, Any]:
    """Everything that is published of a run's folder; cells without texts are left out."""
    config, store = read_config(folder / "config.yaml"), Store(folder)
    scorer = Scorer(config, store)
    scores: dict[str, dict[str, dict[str, Score]]] = {}
    for score in scorer.every_score():
        if score.source == MODEL:
            scores.setdefault(score.cell, {}).setdefault(score.attack, {})[score.id] = score
    marks = {(plan.watermark, plan.key) for plan in config.plan() if plan.watermark}
    assert len(marks) == 1, f"unmarked texts are scored under one key, found {sorted(marks)}"
    read = {(line["cell"], line["id"]): line for line in read_lines(folder / PERPLEXITY_FILE, missing_ok=True)}
    cells, runs = {}, set[str]()
    for plan in {plan.name: plan for plan in config.plan()}.values():
        made = scorer.answers(plan)
        if made.answers:
            cells[plan.name] = _cell(plan, scorer, scores.get(plan.name, {}), read)
            runs |= set(made.runs)
    judges = {(line["model"], line["given"]) for line in read.values()}
    assert len(judges) < 2, judges
    model, given = next(iter(judges), ("", ""))
    return {"judge": model, "given": given, "runs": {run: store.run(run) for run in sorted(runs)}, "cells": cells}


def joined(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of both; where both have one, the later, which must know as much as the other."""
    for said, option in (("judge", "--model"), ("given", "--given")):
        if before[said] and now[said] and before[said] != now[said]:
            raise SystemExit(
                f"expected perplexity by {before[said]!r}, as in --onto, got {now[said]!r}; "
                f"run caw evaluate perplexity with {option} {before[said]}, or leave --onto out"
            )
    for name in before["cells"].keys() & now["cells"].keys():
        old, new = (_known(found["cells"][name]) for found in (before, now))
        if missing := sorted(old - new):
            raise SystemExit(
                f"expected {name} with all that --onto has of it, found no {', '.join(missing)}; "
                f"make that, or gather a folder without this cell"
            )
    said = {name: now[name] or before[name] for name in ("judge", "given")}
    return {**said, **{name: {**before[name], **now[name]} for name in ("runs", "cells")}}


def _known(cell: Mapping[str, Any]) -> set[str]:
    """What there is of a cell: its texts, attacks, and perplexities."""
    found = {f"text {number}" for number in cell["ids"]} | {f"attack {name}" for name in cell["p"]}
    return found | ({"perplexity"} if any(value is not None for value in cell["perplexity"]) else set())


def _cell(
    plan: CellPlan, scorer: Scorer, scores: Mapping[str, Mapping[str, Score]], read: Mapping[tuple[str, str], Any]
) -> dict[str, Any]:
    """A cell's manifest, and its columns: a value for each text."""
    found = scorer.answers(plan)
    ids = [answer.id for answer in found.answers]
    styles = [answer.style for answer in found.answers]
    plain = scores.get(PLAIN, {})
    lines = [read.get((plan.name, name)) for name in ids]
    return {
        "manifest": dict(found.manifest),
        "ids": [int(name.rsplit("/", 1)[1]) for name in ids],
        "tokens": [answer.tokens for answer in found.answers],
        "ended": [int(answer.finish_reason in ("eos", "stop")) for answer in found.answers],
        "attempts": [answer.attempts for answer in found.answers],
        "scored": [plain[name].num_scored if name in plain else None for name in ids],
        "distinct": [[short(s.distinct[n - 1]) if s else None for s in styles] for n in SIZES],
        "repeated": [short(s.repeated) if s else None for s in styles],
        "perplexity": [short(line["given_prompt"] or line["alone"]) if line else None for line in lines],
        "p": {
            attack: [short(by_id[name].p_value, LEVEL) if name in by_id else None for name in ids]
            for attack, by_id in sorted(scores.items())
        },
        "edit_rate": {
            attack: short(float(np.mean([score.edit_rate for score in by_id.values()])))
            for attack, by_id in sorted(scores.items())
            if attack != PLAIN
        },
    }


def short(value: float | None, level: float | None = None) -> float | None:
    """With `DIGITS` digits, or whole where this would carry it over the level."""
    if value is None:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return value if level is not None and (short <= level) != (value <= level) else short


def read_everyday(path: Path) -> dict[str, Any]:
    """The content of a file that this script wrote."""
    found: dict[str, Any] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def rows(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each cell, unmarked texts first within a task.

    found: share of p-values up to `LEVEL`, of unmarked texts the false alarms; None where nothing was scored. made:
    mean number of attempts, None where texts are not tested. scored: median number of tokens that count. distinct,
    repeated: means, see `Style`. perplexity: over that of the unmarked texts to the same prompts, the geometric mean of
    the ratios; repeated_over: mean difference to theirs. after: by attack, the share found, and the share of words that
    it changed. found, perplexity and repeated_over are followed by their 95 % interval: Wilson's, and Student's over
    prompts.
    """
    cells = found["cells"]
    for cell in cells.values():
        manifest = cell["manifest"]
        bare = cells.get(f"{manifest['model']}.{manifest['task']}.none")
        asked, marked = manifest["generation"], manifest["policy"] is not None
        yield {
            "model": manifest["model"],
            "task": manifest["task"],
            "decoding": f"temperature {asked['temperature']:g}" if asked["do_sample"] else "greedy",
            "limit": asked["max_new_tokens"],
            "policy": manifest["policy"] or PLAIN,
            "texts": len(cell["ids"]),
            "found": _found(cell["p"].get(PLAIN, [])),
            "made": float(np.mean(cell["attempts"])) if TESTED & asked.keys() else None,
            "tokens": float(np.median(cell["tokens"])),
            "ended": float(np.mean(cell["ended"])),
            "scored": _median(cell["scored"]),
            "distinct": [_mean(column) for column in cell["distinct"]],
            "repeated": _mean(cell["repeated"]),
            "perplexity": _over(cell, bare, "perplexity", np.log, np.exp) if marked else None,
            "repeated_over": _over(cell, bare, "repeated") if marked else None,
            "after": {
                attack: (_found(p), cell["edit_rate"][attack]) for attack, p in cell["p"].items() if attack != PLAIN
            },
        }


def _found(p: Sequence[float | None]) -> tuple[float, float, float] | None:
    """(share found, low, high); None for no values."""
    known = [value <= LEVEL for value in p if value is not None]
    return (float(np.mean(known)), *wilson(sum(known), len(known))) if known else None


def _over(
    cell: Mapping[str, Any],
    bare: Mapping[str, Any] | None,
    name: str,
    scale: Callable[[Any], Any] = lambda values: values,
    back: Callable[[Any], Any] = lambda values: values,
) -> tuple[float, float, float] | None:
    """(mean difference to the unmarked texts of the same prompts, low, high), on a scale and brought back from it.

    None for fewer than two pairs.
    """
    if bare is None:
        return None
    plain = dict(zip(bare["ids"], bare[name], strict=True))
    pairs = [(a, plain.get(i)) for i, a in zip(cell["ids"], cell[name], strict=True)]
    kept = np.array([(a, b) for a, b in pairs if a is not None and b is not None], dtype=np.float64).reshape(-1, 2)
    if len(kept) < 2:
        return None
    mean, low, high = mean_interval(scale(kept[:, 0]) - scale(kept[:, 1]))
    return float(back(mean)), float(back(low)), float(back(high))


def mean_interval(values: np.ndarray) -> tuple[float, float, float]:
    """(mean, low, high): the mean of two or more independent numbers and its 95 % interval by Student's t."""
    mean, count = float(values.mean()), len(values)
    half = float(stats.t.ppf(0.975, count - 1) * values.std(ddof=1) / count**0.5)
    return mean, mean - half, mean + half


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output of `caw evaluate run`")
    parser.add_argument("--output", type=Path, required=True, help="a .json.xz file")
    parser.add_argument("--onto", type=Path, help="a file that this script wrote")
    given = parser.parse_args()
    found = gather(given.folder) if given.onto is None else joined(read_everyday(given.onto), gather(given.folder))
    content = json.dumps(found, separators=(",", ":")).encode() + b"\n"
    replace_file(given.output, compress(content))
    for row in rows(read_everyday(given.output)):
        share = "-" if row["found"] is None else f"{row['found'][0]:.3f}"
        print(f"{row['task']:12} {row['policy']:12} {row['texts']:4} texts, found {share}, made {row['made'] or 1:.2f}")
    print(f"{given.output}: {given.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
