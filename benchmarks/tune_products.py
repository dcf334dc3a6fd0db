"""Choose the kernel and tiles of each matrix product of a model on this GPU, and save the choices for later runs.

    python benchmarks/tune_products.py [--model smollm2-135m | --shapes llama-3-8b] [--dtype bfloat16]

For each product the fastest kernel whose rows do not depend on the rest of the batch is saved for this GPU and Triton
version (in CAW_CACHE, default ~/.cache/caw) and used from the next run on.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import product_tuner

from caw.benchmark.sizes import SHAPES
from caw.io.files import write_text
from caw.models import DEMO_MODEL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", help="fp8, int8 or int4")
    parser.add_argument("--device")
    parser.add_argument("--max-seconds", type=float)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()

    def saved(results: dict[str, Any]) -> None:
        if asked.json is not None:
            write_text(asked.json, json.dumps(results, indent=1) + "\n")
        print(summary(results["rows"][-1]), flush=True)

    try:
        target = product_tuner.tunable(asked.device)
        products = product_tuner.products_to_tune(asked.model, asked.shapes, asked.dtype, target, asked.quantization)
    except ValueError as error:
        sys.exit(str(error))
    results = product_tuner.tune(target, products, asked.max_seconds, saved=saved)
    print(f"{target.name}: choices for {len(results['rows'])} products are saved in {results['file']}")
    sys.exit(results["wrong"] or None)


def summary(row: dict[str, Any]) -> str:
    """One product in a line: the chosen kernel, and its time for a row alone beside the usual tiles' and torch's."""
    us = {maker["name"]: next(iter(maker["us"].values())) for maker in row["makers"] if "us" in maker}
    usual, torch = row["makers"][0]["name"], row["makers"][1]["name"]
    names = dict.fromkeys((row["chosen"], usual, torch))
    times = ", ".join(f"{name} {us[name]:.1f} us" for name in names if name in us)
    return f"{row['product']}: {row['chosen'] or 'none'} of {times}; at least {row['floor_us']:.1f} us"


if __name__ == "__main__":
    main()
