"""A model cut over two processes gives the tokens of the whole one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from decoding.architectures import build

from caw.models.tensor_parallel import mesh_of

TESTS = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.slow(seconds=20)
def test_two_processes_give_the_tokens_of_one(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    common = {**os.environ, "PYTHONPATH": str(TESTS), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(free_port())}  # fmt: skip
    command = [sys.executable, "-m", "decoding.parallel_worker", str(tmp_path)]
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    workers = [subprocess.Popen(command, env={**common, **e}, stderr=subprocess.PIPE, text=True) for e in own]
    try:
        errors = [worker.communicate(timeout=240)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)[-3000:]
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"found_{rank}.json").read_text()) for rank in range(2)]
    for one in found:
        assert one["cut"] > 0, "the model was not cut"
        assert one["parts"] == one["whole"]
        assert one["batch"] == 2, "the processes agree on what fits the smaller device"
    none, fixed, capacity, _ = found[0]["whole"]
    assert len({str(none), str(fixed), str(capacity)}) == 3, "the watermark and the policy must matter"


def test_a_whole_model_is_not_taken_for_a_part(llama: Any) -> None:
    assert mesh_of(llama) is None
