"""Lines on a full disk: nothing is lost without a word, no half line stays, and going on gives the whole file."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.conftest import environment, model
from cli.running import KEY, generate, write_prompts
from small_disks import FullFile, ShortFile, fill, inject, mounted

import caw
from caw import ray
from caw.detection import Detector
from caw.detection.html_report import write_html
from caw.detection.weights import TokenWeights
from caw.models import load_model
from caw_lab.training.positions import Positions

pytestmark = pytest.mark.usefixtures("environment")
__all__ = ["environment", "model"]  # fixtures
COUNT = 24


def by_generate(folder: Path, inputs: Path, model: str) -> Any:
    prompts = write_prompts(inputs / "prompts.jsonl", COUNT // 2)
    out = folder / "out.jsonl"
    # one at a time: the lines come in one order, interrupted or not
    given = ("-i", str(prompts), "-o", str(out), "--batch-size", "1", "--max-new-tokens", "4")
    return generate(model, *given, *(("--resume",) if out.exists() else ()))


def by_ray(folder: Path, inputs: Path, model: str) -> None:
    settings = ray.RayRun(
        str(folder), 1, model, caw.KGW(key=3), dtype="float32", options={"max_new_tokens": 3, "batch_size": 1}
    )
    ids = np.array([f"p{i}" for i in range(2 * COUNT)], dtype=object)
    prompts = [f"the sky {i}" for i in range(2 * COUNT)]
    network, tokenizer = load_model(model, dtype="float32")
    ray.write_shard(network, tokenizer, settings, folder / "shard-00000-of-00001.jsonl", ids, prompts)


Writer = Callable[[Path, Path, str], Any]
WRITERS: dict[str, Writer] = {
    "generate": by_generate, "ray": by_ray,
}  # fmt: skip
each = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def lines_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}


def written(write: Writer, folder: Path, inputs: Path, model: str) -> dict[str, bytes]:
    """Files of lines of one uninterrupted run; commands end well."""
    folder.mkdir(exist_ok=True)
    inputs.mkdir(exist_ok=True)
    done = write(folder, inputs, model)
    assert done is None or done.exit_code == 0, done.output
    return lines_in(folder)


def assert_stops(write: Writer, folder: Path, inputs: Path, model: str) -> None:
    """The library raises, a command says so in one sentence; only whole lines stay, and some do."""
    if write is by_generate:
        result = write(folder, inputs, model)
        _, last = result.stderr.splitlines()  # it begins by saying how it marks
        assert result.exit_code == 2 and "no space left on device; free some space" in last, result.stderr
    else:
        with pytest.raises(OSError, match=r"\.jsonl") as caught:
            write(folder, inputs, model)
        assert caught.value.errno == errno.ENOSPC
    [left] = lines_in(folder).values()
    assert left.endswith(b"\n") and all(isinstance(json.loads(line), dict) for line in left.splitlines())


@each
def test_short_writes_lose_nothing(write: Writer, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = written(write, tmp_path / "plain", tmp_path / "in", model)
    inject(monkeypatch, ShortFile)
    assert written(write, tmp_path / "short", tmp_path / "in", model) == plain


@each
def test_a_full_disk(write: Writer, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = written(write, tmp_path / "plain", tmp_path / "in", model)
    [content] = plain.values()
    inject(monkeypatch, FullFile)
    monkeypatch.setattr(FullFile, "room", len(content) // 2)
    (tmp_path / "full").mkdir()
    assert_stops(write, tmp_path / "full", tmp_path / "in", model)
    monkeypatch.setattr(FullFile, "room", 10**9)  # room is made
    assert written(write, tmp_path / "full", tmp_path / "in", model) == plain


def page(path: Path, number: int) -> None:
    detector = Detector(None, caw.KGW(key=3))
    write_html(path, [(f"{number} {i}", detector([1, 2, 3] * 200)) for i in range(2 * number)], detector)


def weights(path: Path, number: int) -> None:
    TokenWeights(np.ones(number * 10_000, dtype=np.uint8), 1, {}).save(path)


WHOLE_FILES: dict[str, Callable[[Path, int], None]] = {
    "page.html": page, "weights.safetensors": weights,
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_full_disk_keeps_the_old_file(name: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        WHOLE_FILES[name](disk / name, 1)
        before = (disk / name).read_bytes()
        ballast = fill(disk, 4096)
        with pytest.raises(OSError, match=name) as caught:
            WHOLE_FILES[name](disk / name, 2)
        assert caught.value.errno == errno.ENOSPC and (disk / name).read_bytes() == before
        ballast.unlink()
        WHOLE_FILES[name](disk / name, 2)
        assert (disk / name).read_bytes() != before
        assert [path.name for path in disk.iterdir()] == [name]


def test_positions_that_do_not_fit_are_refused_at_once(tmp_path: Path) -> None:
    """Their files are mapped: with holes in them, the process was killed (SIGBUS) wherever the disk was full."""
    with mounted(tmp_path / "disk", "1m") as disk, pytest.raises(OSError, match=r"\.npy") as caught:
        Positions.create(disk / "seen", np.array([4000]), 4000)
    assert caught.value.errno == errno.ENOSPC


def test_a_real_disk_that_is_full(model: str, tmp_path: Path) -> None:
    write = by_generate
    plain = written(write, tmp_path / "plain", tmp_path / "in", model)
    [content] = plain.values()
    assert len(content) > 4500  # more than the page that is left
    with mounted(tmp_path / "disk", "256k") as disk:
        ballast = fill(disk, 4096)
        assert_stops(write, disk, tmp_path / "in", model)
        ballast.unlink()
        assert written(write, disk, tmp_path / "in", model) == plain
    assert KEY.encode() not in content
