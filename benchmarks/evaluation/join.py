"""Add the cells of one published copy of a run to another, of the same config with fewer keys.

    caw evaluate run --config qwen05others.yaml --scores-only --publish MORE
    python join.py ../results/evaluation_qwen05others MORE
    caw evaluate report ../results/evaluation_qwen05others --output ../results/evaluation_qwen05others --anew

A published copy has no texts, so that its run cannot be gone on with elsewhere. Where both have a cell (of unmarked
texts), the first one's answers stay, and the second one's scores count under the keys that the first one lacks. These
are of the second one's texts, which another machine may have made otherwise, as it rounds sums otherwise. The second
one's config, with more keys, replaces the first one's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caw.io.json_files import read_lines, replace_file
from caw_lab.evaluation.publishing import ANSWERS_FILE, Published, write_cells, write_lines
from caw_lab.evaluation.store import SCORES_FILE

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="changed")
    parser.add_argument("more", type=Path)
    args = parser.parse_args()
    join(Published(args.folder), Published(args.more))


def join(copy: Published, more: Published) -> None:
    """Write the cells, answers, scores and config of both into the first one's folder; its results are made by report.

    Raises ValueError where a cell that both have was asked for something else.
    """
    both, order = copy.manifests.keys() & more.manifests.keys(), [*copy.manifests, *more.manifests]
    for cell in both:
        if asked(copy.manifests[cell]) != asked(more.manifests[cell]):
            raise ValueError(f"{cell} was made otherwise in {more.folder} than in {copy.folder}; join parts of one run")
    answers, scores = lines_of(copy, more, ANSWERS_FILE), lines_of(copy, more, SCORES_FILE)
    new = [line for line in answers[1] if line["cell"] not in both]
    had = {(line["cell"], line["watermark"], line["key"]) for line in scores[0]}
    further = [line for line in scores[1] if (line["cell"], line["watermark"], line["key"]) not in had]
    cells = {**more.about["cells"], **copy.about["cells"]}
    records, used = (
        {**copy.about["runs"], **more.about["runs"]},
        {run for cell in cells.values() for run in cell["runs"]},
    )
    write_cells(
        copy.folder, {name: cells[name] for name in sorted(cells, key=lambda name: place(name, order))},
        {run: record for run, record in records.items() if run in used},
        [name for name in copy.not_begun if name not in cells],
    )  # fmt: skip
    write_lines(copy.folder / ANSWERS_FILE, sorted(answers[0] + new, key=lambda line: place(line["cell"], order)))
    write_lines(copy.folder / SCORES_FILE, sorted(scores[0] + further, key=lambda line: place(line["cell"], order)))
    if (config := copy.folder / "config.yaml").exists():
        replace_file(config, (more.folder / "config.yaml").read_bytes())
    print(f"{len(new)} answers and {len(further)} scores are new")


def asked(manifest: Line) -> Line:
    """What a cell was asked for, without where its model lay."""
    return {name: value for name, value in manifest.items() if name != "source"}


def lines_of(copy: Published, more: Published, file: str) -> tuple[list[Line], list[Line]]:
    return read_lines(copy.folder / file), read_lines(more.folder / file)


def place(cell: str, order: Sequence[str]) -> tuple[int, int]:
    """Where a cell belongs: behind the first of its kind, keys in order."""
    return next(at for at, name in enumerate(order) if kind(name) == kind(cell)), order.index(cell)


def kind(cell: str) -> str:
    """A cell's name without its key."""
    name, _, key = cell.rpartition(".")
    return name if key.isdigit() else cell


if __name__ == "__main__":
    main()
