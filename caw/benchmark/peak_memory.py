"""Peak memory of generating in one mode.

On a GPU: what torch allocated at most. On a CPU: the greatest resident size of a fresh process while it generates,
weights included; processes that ran something before keep what the allocator does not give back.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from caw.benchmark.modes import ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.benchmark.timing import Call
from caw.decoding.capture.kept_graphs import forget

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
LOCK_WHAT_IS_TOUCHED = 1 | 2 | 4  # mlockall's MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT


def on_device(call: Call, tokens: int, device: torch.device) -> dict[str, int]:
    """Bytes: before (weights and whatever else is there), peak. Graphs and caches of other calls are given back."""
    forget()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call(tokens)
        return {"before": before, "peak": torch.cuda.max_memory_allocated(device)}
    give_back()
    before = reset_peak()
    call(tokens)
    return {"before": before, "peak": resident("VmHWM")}


def in_fresh_process(question: dict[str, Any], timeout: float = 600) -> dict[str, int]:
    """`on_device` of a mode, in a process that has done nothing else.

    question: arguments of `load_subject` and `ModeInputs` by name, "mode", "batch", "prompt", "tokens", "threads".

    Raises RuntimeError with the last line of what went wrong.
    """
    command = [sys.executable, "-c", "from caw.benchmark.peak_memory import main; main()"]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"peak memory of mode {question['mode']} could not be measured: {lines[-1]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: int(value) for name, value in answer.items()}


def give_back() -> None:
    """Free pages that the C library keeps, so that they do not count as memory in use."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # a C library without malloc_trim


def keep_resident() -> bool:
    """Lock every page that this process touches in memory, so that resident means in use; False where not allowed.

    Otherwise a system that reclaims idle pages moves weights out and in again, which varies by some percent.
    """
    lock = getattr(ctypes.CDLL(None), "mlockall", None)
    return lock is not None and lock(LOCK_WHAT_IS_TOUCHED) == 0


def reset_peak() -> int:
    """Start a new peak; the present resident size in bytes. NotImplementedError where the system cannot."""
    try:
        RESET.write_text("5")
        return resident("VmRSS")
    except OSError as error:
        raise NotImplementedError(
            f"peak memory on a CPU needs Linux, which counts it by process; found none ({error.strerror}); "
            "leave memory out"
        ) from error


def resident(which: str) -> int:
    """VmRSS or VmHWM of this process, bytes."""
    found = re.search(rf"^{which}:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """In the fresh process: the question comes in as JSON on stdin, the answer goes out on stdout."""
    warnings.simplefilter("ignore")
    keep_resident()
    question = json.load(sys.stdin)
    if question["threads"]:
        torch.set_num_threads(question["threads"])
    subject = load_subject(*(question[name] for name in ("name", "shapes", "dtype", "device", "evaluator", "weights")))
    prompts = make_prompts(subject, question["batch"], question["prompt"])
    inputs = ModeInputs(subject, prompts, question["theta"], question["beta"], question["slots"])
    print(json.dumps(on_device(call_of(question["mode"], inputs), question["tokens"], subject.model.device)))
