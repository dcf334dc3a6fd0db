"""What is measured beside the model of a step: by launch where replay and model agree, else by name."""

from typing import Any
from unittest.mock import Mock

import kernel_times
import pytest
import step_model
from bench_step_model import show
from kernel_times import Kernel, measure


def test_measured_columns_stand_beside_the_model(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """On a CPU with a trace in place of the profiler's; a mode that fails takes none along."""
    found = step_model.run("h200", ["plain", "kgw"], "tiny", "float32", [1], [9])
    with pytest.raises(ValueError, match="expected a CUDA device to measure a step on, got cpu"):
        measure(found, "cpu")
    assert "measured_on" not in found
    names = [name for name, *_ in found["rows"][0]["each"]]
    trace = [Kernel(f"_{name}" if name.endswith("_kernel") else "other", 2.0) for name in names]
    monkeypatch.setattr(kernel_times, "check_device", lambda device: None)
    # Triton's OutOfResources and CompilationError are plain exceptions too
    monkeypatch.setattr(kernel_times, "traced", Mock(side_effect=[[trace] * 3, Exception("out of resource\nmore")]))
    measure(found, "cpu")
    plain, kgw = (row["measured"] for row in found["rows"])
    assert plain["aligned"] and plain["step_us"] > 0 and plain["kernels_us"] == 2 * len(names) > 40
    assert plain["kernels"]["product_kernel"] == 18.0 and kgw == {"error": "Exception: out of resource"}
    show(found["rows"], found)
    said = " ".join(capsys.readouterr().out.split())
    assert "took" in said and "kernels 44 us" in said and "not measured here: Exception" in said
    monkeypatch.setattr(kernel_times, "load_subject", Mock(side_effect=AssertionError("too large\nmore")))
    again = measure({"arguments": found["arguments"], "rows": [{}, {}]}, "cpu")
    assert again["rows"] == [{"measured": {"error": "AssertionError: too large"}}] * 2 and "measured_on" not in again
