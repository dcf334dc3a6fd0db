"""`caw benchmark --tune`: choose the kernel of each matrix product of a model on this GPU, and save the choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caw.cli.errors import complain
from caw.io.files import check_paths, write_text
from caw.io.progress import Bar


def tune_products(
    model: str, shapes: str | None, dtype: str, device: str | None, seconds: float | None, json_file: Path | None,
    weights: str | None = None,
) -> None:  # fmt: skip
    """Tune; show a table for each product as soon as it is done, and print where the choices are saved."""
    from caw.benchmark import product_tuner

    check_paths({"--model": model}, {"--json": json_file})
    target = product_tuner.tunable(device)

    def saved(found: dict[str, Any]) -> None:
        if json_file is not None:
            write_text(json_file, json.dumps(found, indent=1) + "\n")
        show(found["rows"][-1])

    with Bar(None, "starting") as bar:
        products = product_tuner.products_to_tune(model, shapes, dtype, target, weights)
        found = product_tuner.tune(target, products, seconds, bar.note, saved)
    for row in found["rows"]:
        print(summary(row))
    complain(f"{target.name}: choices for {len(found['rows'])} products are saved in {found['file']}")
    if json_file is not None:
        complain(f"wrote {json_file}")


def summary(row: dict[str, Any]) -> str:
    """Describe one product in one line: the chosen kernel, and its time for a single row beside the default tiles' and
    torch's.
    """
    us = {maker["name"]: next(iter(maker["us"].values())) for maker in row["makers"] if "us" in maker}
    usual, torch = row["makers"][0]["name"], row["makers"][1]["name"]
    said = ", ".join(f"{name} {us[name]:.1f} us" for name in dict.fromkeys((row["chosen"], usual, torch)) if name in us)
    return f"{row['product']}: {row['chosen'] or 'none'} of {said}; at least {row['floor_us']:.1f} us"


def show(row: dict[str, Any]) -> None:
    """Print the table of one product: microseconds by number of rows, with the chosen kernel marked."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    title = f"{row['product']}, {row['count']} in the model, at least {row['floor_us']:.1f} us"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("made by", overflow="fold")
    counts: dict[str, float] = next((maker["us"] for maker in row["makers"] if "us" in maker), {})
    for name in (*(f"{m} rows, us" for m in counts), "a row alone"):
        table.add_column(name, justify="right", no_wrap=True)
    wrong = []
    for maker in row["makers"]:
        mark = "* " if maker["name"] == row["chosen"] else "" if maker["selectable"] else "~ "
        if "error" in maker:
            wrong.append(f"{maker['name']}: {maker['error']}")
        else:
            alone = "same" if maker["row_invariant"] else "differ"
            table.add_row(f"{mark}{maker['name']}", *(f"{us:.1f}" for us in maker["us"].values()), alone)
    table.caption = "\n".join(["*: chosen; ~: for comparison only; caw OUTPUTSxINPUTS/WARPS/STAGES: a tile", *wrong])
    table.caption_justify = "left"
    Console().print(table)
