"""`bench_detect.py` under pytest-benchmark: time to score and detect 1000 tokens, beside other systems' detectors."""

import functools
from typing import Any

import bench_detect
import pytest
import torch

from caw.models import DEMO_MODEL, load_tokenizer

TEXTS = {"smoke": 20, "normal": 5000, "full": 100_000}
TOKENS = 200
NAMES = ("caw score: KGW lefthash", "caw detect: KGW lefthash", "caw detect: EXP", "transformers: lefthash")


@functools.cache
def rows(size: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(DEMO_MODEL)
    ids = bench_detect.windows(None, tokenizer, len(tokenizer), TEXTS[size], TOKENS)
    found = bench_detect.contenders(tokenizer, ids, len(tokenizer))
    wanted = {name: run for name, run in found.items() if size == "full" or name in NAMES}
    return {row["name"]: row for row in bench_detect.measure(wanted)}


@pytest.mark.parametrize("name", NAMES)
def test_detect(benchmark: Any, replay: Any, name: str, pytestconfig: pytest.Config) -> None:
    try:
        row = rows(pytestconfig.getoption("--size"))[name]
    except FileNotFoundError as error:
        pytest.skip(f"needs the demo model's tokenizer: {error}")
    seconds = [1000 / speed for speed in row["rounds"]]
    replay.play(benchmark, "1000 tokens, one thread", seconds, tokens_per_second=row["tokens_per_second"])
