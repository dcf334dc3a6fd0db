"""python -m gates list | run: see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gates
from gates import receipts
from gates.digest import files
from gates.receipts import PASSED, Receipt
from gates.running import digest_of, run
from gates.table import GATES, Gate

ROOT = Path(__file__).resolve().parents[1]
RECEIPTS = ROOT / "gates" / "receipts"


def states(table: tuple[Gate, ...], root: Path, folder: Path) -> dict[str, str]:
    """Of every gate."""
    every = files(root)
    return {g.name: receipts.state(receipts.read(folder, g.name), digest_of(g, root, every)) for g in table}


def show(receipt: Receipt) -> None:
    counts = ", ".join(f"{count} {what}" for what, count in receipt.counts.items() if count)
    what = "; ".join(part for part in (counts, receipt.reason) if part)
    print(f"gate {receipt.gate}: {receipt.outcome} in {receipt.seconds:.0f} s ({what})", flush=True)


def run_all(table: tuple[Gate, ...], root: Path, folder: Path | None) -> int:
    """1 if any did not pass: neither a failed gate nor one whose tool is missing did."""
    made = []
    for gate in table:
        print(f"gate {gate.name}: {gate.checks} (about {gate.minutes:g} min)", flush=True)
        receipt = run(gate, root)
        if folder is not None:
            receipt.write(folder)
        show(receipt)
        made.append(receipt)
    print("\n".join(f"{r.outcome:12} {r.gate:14} {r.seconds:7.1f} s  {r.reason}" for r in made), flush=True)
    lacking = [r.gate for r in made if r.outcome != PASSED]
    if lacking:
        print(f"{', '.join(lacking)} did not pass; mend it, or run `make gate NAME={lacking[0]}` where its tools are "
              "and commit its receipt", file=sys.stderr)  # fmt: skip
    return int(bool(lacking))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gates", description=gates.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if none is named")
    parser.add_argument("--stale", action="store_true", help="only those whose receipt does not hold")
    parser.add_argument("--no-receipts", action="store_true", help="write none: the outcomes are printed")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {gate.name for gate in GATES}
    if unknown:
        known = ", ".join(gate.name for gate in GATES)
        parser.error(f"expected gates among {known}, got {', '.join(sorted(unknown))}; name one of them")
    table = tuple(gate for gate in GATES if not options.names or gate.name in options.names)
    found = states(table, ROOT, RECEIPTS)
    table = tuple(gate for gate in table if not options.stale or found[gate.name] != "holds")
    if options.what == "list":
        for gate in table:
            print(f"{found[gate.name]:12} {gate.name:14} {gate.minutes:3g} min  {gate.checks}")
        return 0
    if not table:
        print("no gate is stale")
        return 0
    return run_all(table, ROOT, None if options.no_receipts else RECEIPTS)


if __name__ == "__main__":
    sys.exit(main())
