"""What the launchers ask for compiles to cubin within its bounds without a GPU, in processes without interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_CONFIGURATIONS = 57


def compiled(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT / "benchmarks")
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.gate("aot")
@pytest.mark.parametrize("options, kernels", [
    (["--capability", "90", "--checked"], 197), (["--capability", "80", "100", "--few"], 100),
    (["--capability", "80", "90", "100", "--trials"], 150),
], ids=["sm_90", "sm_80-and-sm_100", "tuner"])  # fmt: skip
def test_every_checked_configuration_is_within_its_bounds(options, kernels):
    done = compiled("benchmarks/aot_all.py", *options)
    wrong = [line for line in done.stdout.splitlines() if "WRONG" in line]
    assert done.returncode == 0 and not wrong, wrong or done.stderr
    assert f"{kernels} kernels compiled, 0 outside their bounds" in done.stdout


def test_the_list_is_short_and_names_are_unique(device):
    from aot_configurations import checked, shipped

    names = [c.name for c in checked()]
    assert len(names) <= MAX_CONFIGURATIONS and len(set(names)) == len(names)
    everything = [c.name for c in shipped()]
    assert len(set(everything)) == len(everything)


def test_the_evaluators_of_this_library_are_among_what_is_compiled(device):
    """Their inputs too: those with token classes have some behind the probabilities, which is another kernel."""
    from aot_configurations import checked, shipped

    from caw.evaluator import Evaluator
    from caw.evaluator.shelf import shipped as evaluators
    from caw.op_indices import TRANSFORMS

    found = set()
    for name in evaluators():
        evaluator = Evaluator.load(name)
        spec, (hidden, inputs) = evaluator.spec, evaluator.weights()[2].shape
        transform = TRANSFORMS.index(spec.transform)
        kind = f"evaluator b2 h{hidden} p{spec.positions} t{transform}", f"x{inputs - spec.positions * spec.k}"
        assert any(c.name.startswith(kind[0]) and c.name.endswith(kind[1]) for c in shipped()), kind
        found.add(kind[1])
    assert found == {"x0", "x11", "x33"} and any(c.name.endswith(" x33") for c in checked())


def test_the_gate_can_fail(device):
    from aot import Report
    from aot_configurations import complaints

    fine = {"registers": 60, "stack": 0, "local": 0, "shared": 0, "async_copies": 4, "tensor_ops": 1,
            "fused_multiply_adds": 0}  # fmt: skip
    assert not complaints(Report("_split_kernel", **fine))
    for kernel, change, words in [
        ("_split_kernel", {"stack": 8}, "spills"),
        ("_split_kernel", {"registers": 255}, "registers"),
        ("_race_kernel", {"registers": 65}, "registers"),
        ("_split_kernel", {"async_copies": 0}, "asynchronous"),
        ("_product_kernel", {"async_copies": 0}, "asynchronous"),
        ("_product_kernel", {"repeated": 2.0}, "2 times the multiply-adds"),
        ("_product_kernel", {"instructions": 7.6, "numbers": "int4 float16"}, "7.60 instructions a weight"),
        ("_select_kernel", {"fused_multiply_adds": 1}, "round twice"),
    ]:
        assert re.search(words, " ".join(complaints(Report(kernel, **{**fine, **change}))))


def test_compiling_in_the_interpreter_is_refused(device):
    import aot

    from caw.triton_kernels import launching

    if launching.INTERPRETED:
        with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
            aot.record(lambda: None)
