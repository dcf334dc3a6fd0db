"""What is measured beside the model of a step: by launch where replay and model agree, else by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import kernel_times
import pytest
import step_model
import torch
from bench_step_model import show
from kernel_times import Kernel, beside, kernels_of, measure
from step_times import Step

LAUNCHES = ["embedding", "norm_kernel", "product_kernel", "index", "product_kernel"]
TRACE = [Kernel("void at::native::gather<float>", 2.0), Kernel("_norm_kernel", 1.0), Kernel("_product_kernel", 5.0),
         Kernel("void at::native::index<long>", 3.0), Kernel("_product_kernel", 7.0)]  # fmt: skip


def test_launches_that_agree_have_a_time_each() -> None:
    found = beside(TRACE, LAUNCHES)
    assert found["aligned"] and found["each"] == [[n, k.us] for n, k in zip(LAUNCHES, TRACE, strict=True)]
    assert found["kernels"] == {"embedding": 2.0, "norm_kernel": 1.0, "product_kernel": 12.0, "index": 3.0}


def test_a_replay_is_watched_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more than asked, because the first one starts the profiler; host events are no kernels."""
    order: list[str] = []
    gpu, host = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU

    def event(name: str, start: float, end: float, device: Any = gpu) -> Any:
        return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=start, end=end))

    events = [event("_b", 5.0, 7.5), event("cudaGraphLaunch", 0.0, 9.0, host), event("_a", 1.0, 4.0)]

    class Profile:
        def __init__(self, activities: Any) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Profile:
            order.append("watch")
            return self

        def __exit__(self, *_: Any) -> None:
            order.append("done")

        def events(self) -> list[Any]:
            return events

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    graph = SimpleNamespace(replay=lambda: order.append("replay"))
    found = kernel_times.traced(Step(lambda: None, lambda: order.append("reset"), graph, 0), 2)
    assert found == [[Kernel("_a", 3.0), Kernel("_b", 2.5)]] * 2 and kernels_of(events[1:2]) == []
    assert order == ["reset", "wait", "watch", "replay", "wait", "done"] * 3


@pytest.mark.parametrize("gpu, name", [("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA H100 80GB HBM3", "h100"),
                                       ("NVIDIA H200", "h200"), ("NVIDIA B200", "b200"), ("NVIDIA GH200 480GB", None),
                                       ("NVIDIA GB200", None)])  # fmt: skip
def test_a_gpu_is_known_by_a_whole_word(gpu: str, name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    assert [each for each in step_model.DEVICES if kernel_times.at_hand(each)] == [name] * (name is not None)


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
