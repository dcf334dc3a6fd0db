"""Compile every kernel configuration that ships to cubin, without a GPU, and check the assembler's reports.

    python benchmarks/aot_all.py [--capability 80 90 100] [--checked | --few | --trials]

One line a kernel: registers, shared memory, asynchronous copies, tensor-core instructions. Exit code 1 if any spills,
needs more registers than its bound, or (attention) does not copy asynchronously. Speed is not measured here.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=[90], help="compute capabilities, e.g. 80 90 100")
    parser.add_argument("--checked", action="store_true", help="only the configurations that the tests compile")
    parser.add_argument("--few", action="store_true", help="the dozen of those that differ most between cards")
    parser.add_argument("--trials", action="store_true", help="the tiles that tune_products.py tries on such cards")
    options = parser.parse_args()
    if os.environ.pop("TRITON_INTERPRET", None):
        print("TRITON_INTERPRET is ignored: this compiles", file=sys.stderr)
    # after the environment is settled: Triton decides at its import
    import aot
    import aot_configurations as lists

    failures = count = 0

    def wanted(capability: int) -> Iterable[Any]:
        if options.trials:
            return lists.trials(capability // 10)
        return lists.few() if options.few else lists.checked() if options.checked else lists.shipped()

    for capability, configuration in ((k, c) for k in options.capability for c in wanted(k)):
        for launch in aot.record(configuration.call):
            report = aot.compile_launch(launch, capability)
            wrong = lists.complaints(report, configuration.registers)
            count, failures = count + 1, failures + bool(wrong)
            print(
                f"sm_{capability} {configuration.name} {report.kernel}: registers {report.registers} "
                f"shared {report.shared} async {report.async_copies} mma {report.tensor_ops}"
                + "".join(f" WRONG: {w}" for w in wrong),
                flush=True,
            )
    print(f"{count} kernels compiled, {failures} outside their bounds")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
