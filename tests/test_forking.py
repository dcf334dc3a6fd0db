"""A forked child computes: it used to wait for ever for threads that a fork does not copy."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
import numpy as np, torch, caw
torch.set_num_threads(2)
IDS = np.random.default_rng(0).integers(0, 50_000, 200_000).tolist()

def detect():
    return repr(caw.detect(IDS, None, caw.KGW(key=1)).p_value)

def generate():
    from decoding.architectures import build, tokenizer
    # wide enough that torch shares it among threads
    torch.randn(2000, 500) @ torch.randn(500, 500)
    out = caw.generate(build("llama"), tokenizer(), [[5, 6, 7]], watermark=caw.KGW(key=1), max_new_tokens=5)
    return str(out.sequences)

work = {"detect": detect, "generate": generate}[sys.argv[1]]
expected = work()
child = os.fork()
if child == 0:
    if sys.argv[1] == "generate":
        torch.randn(2000, 500) @ torch.randn(500, 500)
    alone = sys.argv[1] == "detect" or torch.get_num_threads() == 1  # detection starts none of torch's threads
    os._exit(0 if work() == expected and alone else 1)
for _ in range(600):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.1)
else:
    os.kill(child, 9)
    os.waitpid(child, 0)
    sys.exit("the child hangs")
print("status", status, "threads", torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
@pytest.mark.parametrize("what", ["detect", "generate"])
def test_a_child_of_a_process_that_used_two_threads(what: str) -> None:
    tests = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, tests])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, what],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "status 0 threads 2", done.stderr
