"""The tuner of products: which products a model has, who may win, and what is kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import product_tuner
import pytest
import torch
from product_makers import Data, Maker, Product, makers
from product_tuner import TIMED_ROWS, Device, products_of, tune

from caw.benchmark.subjects import random_model
from caw.triton_kernels import tuned
from caw.triton_kernels.block_sizes import ProductBlocks
from caw.triton_kernels.packed_weights_ref import FP8, INT4, INT8
from caw.triton_kernels.tuned import OWN, TORCH, Choice

NAME = "a GPU (of tests)"
TARGET = Device(torch.device("cpu"), NAME, 9, few=True)
BLOCKS = ProductBlocks(16, 64, 4, 3)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("CAW_CACHE", str(tmp_path))
    tuned._kept.cache_clear()
    yield tmp_path
    tuned._kept.cache_clear()


def test_products_of_a_model_are_those_of_its_step() -> None:
    """Fused layers make four of seven matrices; the vocabulary's stands alone. The most bytes come first."""
    found = products_of(random_model("tiny", "float16", "meta"))
    keys = {one.key: (one.count, one.residual, one.biased) for one in found}
    assert keys == {
        "2000 x 64 float16": (1, False, False), "64+64+64 x 64 float16": (2, False, False),
        "96+96 x 64 float16 gated": (2, False, False), "64 x 96 float16 residual": (2, True, False),
        "64 x 64 float16 residual": (2, True, False),
    }  # fmt: skip
    assert [one.bytes * one.count for one in found] == sorted((one.bytes * one.count for one in found), reverse=True)
    assert sum(one.bytes * one.count for one in found) == 2 * (2 * (4 * 64 * 64 + 3 * 64 * 96) + 2000 * 64)
    qwen = products_of(random_model("qwen2.5-1.5b", "bfloat16", "meta"))
    assert {one.key: one.biased for one in qwen}["1536+256+256 x 1536 bfloat16 biased"] is True
    assert [one.key for one in products_of(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(3, 5)))] == [
        "5 x 3 float32 biased"
    ]


def fake_makers(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[str]:
    """One that depends on what stands beside it, one that is wrong, one for comparison, one that fails; their times."""
    timed: list[str] = []

    def made(data: Data, capability: int) -> Iterator[Maker]:
        right = data.expected()

        def beside(rows: slice, i: int) -> torch.Tensor:
            return right[rows] + 1e-6 * (rows.stop - rows.start < 64)

        def fails(rows: slice, i: int) -> torch.Tensor:
            raise RuntimeError("out of resource: shared memory\nmore")

        yield Maker("usual", Choice(OWN, ProductBlocks(16, 32, 4, 4)), lambda rows, i: right[rows])
        yield Maker("tiles", Choice(OWN, BLOCKS), lambda rows, i: right[rows].clone())
        yield Maker("beside", Choice(TORCH), beside)
        yield Maker("wrong", Choice(TORCH), lambda rows, i: right[rows] + 1)
        yield Maker("compared", None, lambda rows, i: right[rows])
        yield Maker("fails", Choice(TORCH), fails)

    def timers_of(maker: Maker, data: Data, target: Device) -> dict[int, Any]:
        timed.append(maker.name)
        return {m: lambda: seconds[maker.name] for m in TIMED_ROWS}

    monkeypatch.setattr(product_tuner, "makers", made)
    monkeypatch.setattr(product_tuner, "timers_of", timers_of)
    monkeypatch.setattr(product_tuner, "read_bandwidth", lambda device, few: 1e9)
    return timed


def test_the_fastest_that_is_blind_to_other_rows_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"usual": 4e-6, "tiles": 3e-6, "beside": 2e-6, "compared": 1e-6}
    timed = fake_makers(monkeypatch, seconds)
    wanted = Product((8,), 50, torch.float32, count=3)
    saved: list[Any] = []
    found = tune(TARGET, [wanted], None, saved=lambda now: saved.append(json.loads(json.dumps(now))))
    (row,) = found["rows"]
    by_name = {maker["name"]: maker for maker in row["makers"]}
    assert row["chosen"] == "tiles" and tuned.load(NAME) == {wanted.key: Choice(OWN, BLOCKS)}
    assert (row["count"], row["bytes"], row["floor_us"]) == (3, 1600, 1.6) and found["complete"] and len(saved) == 1
    assert timed == ["usual", "tiles", "beside", "compared"]
    assert {name: maker.get("row_invariant") for name, maker in by_name.items()} == {
        "usual": True, "tiles": True, "beside": False, "wrong": None, "compared": True, "fails": None,
    }  # fmt: skip
    assert by_name["beside"]["usual_bits"] and by_name["tiles"]["share_of_bandwidth"] == 0.533
    assert "AssertionError" in by_name["wrong"]["error"]
    assert by_name["fails"]["error"] == "RuntimeError: out of resource: shared memory"
    assert by_name["compared"] == {**by_name["tiles"], "name": "compared", "selectable": False,
                                   "us": dict.fromkeys(TIMED_ROWS, 1.0), "share_of_bandwidth": 1.6}  # fmt: skip


def test_without_time_the_usual_ones_are_still_measured_and_other_shapes_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = fake_makers(monkeypatch, {"usual": 4e-6, "tiles": 3e-6, "beside": 2e-6})
    before, wanted = {"another product": Choice(TORCH)}, Product((8,), 50, torch.float32)
    tuned.save(NAME, {**before, wanted.key: Choice(OWN, BLOCKS)})
    found = tune(TARGET, [wanted], 0.0)
    assert timed == ["usual", "tiles", "beside"] and found["rows"][0]["chosen"] == "tiles"
    errors = {maker["name"]: maker.get("error") for maker in found["rows"][0]["makers"]}
    assert errors["compared"] == "left out, no time"
    assert tuned.load(NAME) == {**before, wanted.key: Choice(OWN, BLOCKS)}
    tuned.place(NAME).write_text("{")  # damaged: written anew
    tune(TARGET, [wanted], 0.0)
    assert tuned.load(NAME) == {wanted.key: Choice(OWN, BLOCKS)}


@pytest.mark.parametrize("wanted", [
    Product((24,), 40, torch.float16, residual=True), Product((24, 8, 8), 40, torch.bfloat16, biased=True),
    Product((24, 24), 40, torch.float32, gated=True), Product((32,), 96, torch.float16, residual=True, form=INT4),
    Product((24, 8, 8), 96, torch.float16, biased=True, form=FP8),
    Product((24, 24), 96, torch.float32, gated=True, form=INT8),
], ids=lambda wanted: wanted.key)  # fmt: skip
def test_every_maker_gives_the_references_numbers(wanted: Product) -> None:
    data = Data(wanted, torch.device("cpu"), few=True)
    found = list(makers(data, 9))
    for maker in found:
        product_tuner.judged(maker, data.expected(), few=True)
    names, able = [maker.name for maker in found], [maker.choice for maker in found]
    assert (
        len(set(names)) == len(names) >= (4 if wanted.form is None else 2) and able[0] is not None and able[0].by == OWN
    )
    torchs = [c for m, c in zip(found, able, strict=True) if m.name.startswith("torch")]
    single = len(wanted.outputs) == 1 and wanted.form is None
    assert len(torchs) == (1 + (single or wanted.form in (INT4, FP8))) and all(
        (c is not None) == single for c in torchs
    )
