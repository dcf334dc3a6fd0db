"""Real texts of the demo model on a GPU beside a CPU's, greedy and drawn, token by token.

    python benchmarks/real_texts.py --split        # where the model is: files of 48 MiB in .benchmarks/weights/
    python benchmarks/real_texts.py [--json FILE]

The files are for a card without a network: carried there one by one, they are joined where the model's package is not.
"""

import argparse
import json
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from caw.benchmark.equality import compare_tokens
from caw.benchmark.modes import PLAIN, ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.defaults import THETA
from caw.io.files import write_text
from caw.models import DEMO_MODEL
from caw.models.sources import DEMO_FILE, file_or_folder

PARTS, SIZE = Path(__file__).resolve().parents[1] / ".benchmarks" / "weights", 48 << 20
MODES = (PLAIN, "kgw+caw", "exp+caw", "plain/drawn", "exp/drawn")


def split() -> None:
    """Write the model's file in parts, and the packages that read it."""
    PARTS.mkdir(parents=True, exist_ok=True)
    whole = file_or_folder(DEMO_MODEL).read_bytes()
    for start in range(0, len(whole), SIZE):
        (PARTS / f"part-{start:012}").write_bytes(whole[start : start + SIZE])
    with zipfile.ZipFile(PARTS / "packages.zip", "w", zipfile.ZIP_DEFLATED) as packages:
        for name in ("gguf", "accelerate"):
            folder = Path(str(find_spec(name).origin)).parent  # type: ignore[union-attr]
            for path in folder.rglob("*.py"):
                packages.write(path, path.relative_to(folder.parent))


def joined() -> str:
    """Return the file of the parts, which its reader rejects if one is missing; without any the demo model's name."""
    parts, whole = sorted(PARTS.glob("part-*")), PARTS / DEMO_FILE
    if not parts:
        return DEMO_MODEL
    sys.path.append(str(PARTS / "packages.zip"))
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    return str(whole)


def compare(shapes: str | None) -> list[dict[str, Any]]:
    """A row for each mode: equal texts, near ties (of logits, as beside transformers), the first other difference."""
    texts, tokens = (1, 2) if shapes else (8, 40)
    model, evaluator = ("", None) if shapes else (joined(), DEMO_MODEL)
    subjects = [load_subject(model, shapes, "float32", device, evaluator) for device in ("cpu", None)]
    prompts, rows = make_prompts(subjects[0], texts, 9 if shapes else 60), []
    for mode in MODES:
        cpu, gpu = (call_of(mode, ModeInputs(subject, prompts, THETA, None))(tokens) for subject in subjects)
        check = compare_tokens(subjects[0].model, prompts, (mode, cpu), ("transformers", gpu))
        rows.append({"mode": mode, "texts": texts, "equal": check.equal, "near_ties": check.near_ties,
                     "first": check.first, "cpu": cpu.tokens, "gpu": gpu.tokens})  # fmt: skip
        print(f"{mode}: {check.equal} of {texts} equal, {check.near_ties} near ties {check.first}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--shapes", help="random weights of these instead, for a rehearsal")
    parser.add_argument("--json", type=Path, default=PARTS.parent / "real_texts.json")
    asked = parser.parse_args()
    if asked.split:
        return split()
    rows = compare(asked.shapes)
    write_text(asked.json, json.dumps({"command": " ".join(sys.argv), "rows": rows}) + "\n")
    if wrong := [row["mode"] for row in rows if row["first"] and row["mode"] in (PLAIN, "kgw+caw")]:
        sys.exit(f"expected a CPU's greedy tokens but at near ties, found others: {', '.join(wrong)}; see its rows")


if __name__ == "__main__":
    main()
