"""Runs a script or module as on a GPU, without one: kernels interpreted, steps as a graph holds them, no clock.

    python benchmarks/rehearsal.py benchmarks/bench_kernels.py --smoke --device cpu
    python benchmarks/rehearsal.py -m caw.cli benchmark --shapes tiny --device cpu --tokens 3

Operators that have a Triton kernel take it on CPU tensors too, layers and products are those of a GPU, and the clocks
count kernel launches, so that no figure can be mistaken for a time.
"""

import importlib
import os
import runpy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton, which decides then
ROOT = Path(__file__).resolve().parents[1]
NAME = "rehearsal"  # of the device whose products are tuned
READING = 1e-6  # what a look at the clock adds: no two are equal


class Launches:
    """A clock: how many kernels were launched so far."""

    def __init__(self) -> None:
        self.count, self.readings = 0, 0

    def __call__(self) -> float:
        self.readings += 1
        return self.count + READING * self.readings

    def counted(self, launch: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            self.count += 1
            launch(*args, **options)

        return call


def kernels() -> Iterator[tuple[Any, str]]:
    """(module, operator) of every operator that a Triton kernel serves."""
    import torch

    from caw import ops

    operators = [name for name, op in vars(ops).items() if isinstance(op, torch._ops.OpOverload)]
    for path in sorted((ROOT / "triton_kernels").glob("*.py")):
        module = importlib.import_module(f"caw.triton_kernels.{path.stem}")
        for name in operators:
            if getattr(getattr(module, name, None), "__module__", "") == module.__name__:
                yield module, name


def as_on_a_gpu(clock: Launches) -> Any:
    """Change this process; what must be kept for as long as it is to stay so."""
    import product_tuner
    import replays
    import torch

    from caw import _ext, ops
    from caw.benchmark import timing
    from caw.decoding import plan
    from caw.decoding.forward import fused_layers, fused_stack
    from caw.triton_kernels import tuned

    compiled = torch.compile
    torch.compile = lambda f=None, **options: compiled(f, **{**options, "backend": "eager"})  # minutes otherwise
    library, served = torch.library.Library(ops.NAMESPACE, "IMPL"), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the CPU's own kernels are replaced
        for module, name in kernels():
            library.impl(name, getattr(module, name), "CPU", allow_override=True)
            served[module.__name__] = module
    for module in served.values():
        module.launch = clock.counted(module.launch)
    replays.launch = clock.counted(replays.launch)
    _ext.WHY_MISSING = "a GPU has no use for the CPU's layers"
    fused_layers.on_gpu = lambda tensor: True
    fused_stack.runs_as_one = lambda body, layers: False  # all layers as one operator are a CPU's
    plan.will_capture = always_captured(plan.will_capture)
    product_tuner.tunable = lambda device: product_tuner.Device(torch.device("cpu"), NAME, 9, few=True)
    tuned.device_name = lambda device: NAME
    timing.clock_for = lambda device, threads: ("kernel launches, no time: a rehearsal", clock)
    time.perf_counter = time.thread_time = clock
    return library


def always_captured(will_capture: Callable[..., bool]) -> Callable[..., bool]:
    """`will_capture` that answers as on a GPU, and refuses to rehearse what a GPU would not capture either."""

    def will(facts: Any, *rest: Any, **options: Any) -> bool:
        *known, asked = rest
        if not will_capture(facts, *known, True if asked is None else asked, **options):
            raise RuntimeError("expected steps that a GPU captures, found others; rehearse what gpu_check.py times")
        return True

    return will


def main() -> int:
    clock = Launches()
    kept = as_on_a_gpu(clock)
    arguments = sys.argv[1:]
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    assert kept is not None
    if not clock.count:
        print("expected kernels to run in the interpreter, found none; look at their operators", file=sys.stderr)
    return int(not clock.count)


if __name__ == "__main__":
    sys.exit(main())
