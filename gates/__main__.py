"""python -m gates list | run: see the package."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import gates
from gates import receipts
from gates.digest import files
from gates.receipts import PASSED, UNAVAILABLE, Receipt
from gates.running import digest_of, run
from gates.table import GATES, Gate

ROOT = Path(__file__).resolve().parents[1]
RECEIPTS = ROOT / "gates" / "receipts.jsonl"


def states(table: tuple[Gate, ...], root: Path, path: Path) -> dict[str, str]:
    """Of every gate."""
    every, found = files(root), receipts.read(path)
    return {g.name: receipts.state(found.get(g.name), digest_of(g, root, every)) for g in table}


def show(receipt: Receipt) -> None:
    counts = ", ".join(f"{count} {what}" for what, count in receipt.counts.items() if count)
    what = "; ".join(part for part in (counts, receipt.reason) if part)
    print(f"gate {receipt.gate}: {receipt.outcome} in {receipt.seconds:.0f} s ({what})", flush=True)


def run_all(
    table: tuple[Gate, ...],
    root: Path,
    path: Path | None,
    seconds: dict[str, float] | None = None,
    budget: float = math.inf,
) -> int:
    """1 if any did not pass: neither a failed gate nor one whose tool is missing did.

    seconds: what each gate took when it ran last. budget: minutes. With one, this machine runs what it can: a gate that
    may not fit, or whose tool is missing, is named and stays stale, and only a failure gives 1.
    """
    made, started, known = [], time.monotonic(), seconds or {}
    for gate in table:
        spent, expected = time.monotonic() - started, known.get(gate.name, 60 * gate.minutes)
        if spent + expected > 60 * budget:
            print(f"gate {gate.name}: not run, it stays stale: {expected:.0f} s do not fit the budget", flush=True)
            continue
        print(f"gate {gate.name}: {gate.checks} (about {gate.minutes:g} min)", flush=True)
        receipt = run(gate, root)
        if path is not None:
            receipt.write(path)
        show(receipt)
        made.append(receipt)
    print("\n".join(f"{r.outcome:12} {r.gate:14} {r.seconds:7.1f} s  {r.reason}" for r in made), flush=True)
    for r in made:
        if budget < math.inf and r.outcome == UNAVAILABLE:
            print(f"gate {r.gate}: not run, it stays stale: {r.reason}", flush=True)
    passing = (PASSED, UNAVAILABLE) if budget < math.inf else (PASSED,)
    lacking = [r.gate for r in made if r.outcome not in passing]
    if lacking:
        print(f"{', '.join(lacking)} did not pass; mend it, or run `make gate NAME={lacking[0]}` where its tools are "
              "and commit the receipts", file=sys.stderr)  # fmt: skip
    return int(bool(lacking))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gates", description=gates.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if none is named")
    parser.add_argument("--stale", action="store_true", help="only those whose receipt does not hold")
    parser.add_argument("--no-receipts", action="store_true", help="write none: the outcomes are printed")
    parser.add_argument(
        "--budget", type=float, default=math.inf, metavar="MINUTES", help="quickest first, while they fit"
    )
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
    seconds = {name: receipt.seconds for name, receipt in receipts.read(RECEIPTS).items()}
    if options.budget < math.inf:
        table = tuple(sorted(table, key=lambda gate: seconds.get(gate.name, 60 * gate.minutes)))
    return run_all(table, ROOT, None if options.no_receipts else RECEIPTS, seconds, options.budget)


if __name__ == "__main__":
    sys.exit(main())
