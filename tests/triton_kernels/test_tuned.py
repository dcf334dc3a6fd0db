"""Tuned products: one choice for all numbers of rows, read once, and files of no use left out with a warning."""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from caw.testing import assert_close
from caw.triton_kernels import tuned
from caw.triton_kernels.block_sizes import ProductBlocks
from caw.triton_kernels.small_linear import by_torch, product, small_linear, torch_can
from caw.triton_kernels.small_linear_ref import product_ref
from caw.triton_kernels.tuned import OWN, TORCH, TORCH_PADDED, Choice, Kind, shape_key

NAME = "a GPU (of tests)"
ROW_COUNTS = (1, 2, 8, 16, 17, 33, 64)
WIDE = ProductBlocks(16, 64, 4, 3)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Its own folder, and every device one that was tuned."""
    monkeypatch.setenv("CAW_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned, "device_name", lambda device: NAME)
    tuned._kept.cache_clear()
    yield tmp_path
    tuned._kept.cache_clear()


def order_shows(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """x [64, 128] and weight [8, 128] whose sum is 0 in tiles of 32 inputs and 1 in tiles of 64, in any order inside.

    2^24 stands in the second tile of 32, 1 in the third, -2^24 in the fourth: 2^24 + 1 is 2^24 in float32; 1 - 2^24,
    which a tile of 64 adds up first, is exact.
    """
    x = torch.zeros(64, 128)
    x[:, 40], x[:, 70], x[:, 100] = 2.0**24, 1.0, -(2.0**24)
    return x.to(device), torch.ones(8, 128, device=device)


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """BLOCK_K of every launch."""
    module, found = importlib.import_module("caw.triton_kernels.small_linear"), []
    real = module.launch
    monkeypatch.setattr(module, "launch", lambda k, g, a, **o: (found.append(a["BLOCK_K"]), real(k, g, a, **o)))
    return found


def test_the_choice_changes_bits_and_is_one_for_all_numbers_of_rows(
    device: torch.device, cache: Path, tiles: list[int]
) -> None:
    """In the interpreter a tile is summed before it joins the others, so other tiles have other bits."""
    x, weight = order_shows(device)
    key = shape_key([8], 128, torch.float32, Kind())
    assert not small_linear(x, weight).any() and tiles == [32], "nothing is tuned yet"
    tuned._kept.cache_clear()
    tuned.save(NAME, {key: Choice(OWN, WIDE)})
    whole = small_linear(x, weight)
    assert device.type == "cuda" or torch.equal(whole, torch.ones_like(whole))
    for rows in ROW_COUNTS:
        assert torch.equal(small_linear(x[:rows], weight), whole[:rows])
    # what is running keeps its choice, or the sums of one text could change within it
    tuned.save(NAME, {})
    assert torch.equal(small_linear(x[:3], weight), whole[:3])
    assert tiles[1:] == [64] * (len(ROW_COUNTS) + 2)
    tuned._kept.cache_clear()
    assert not small_linear(x, weight).any() and tiles[-1] == 32


def test_other_products_keep_the_tiles_of_arithmetic(device: torch.device, cache: Path, tiles: list[int]) -> None:
    x, weight = order_shows(device)
    tuned.save(NAME, {shape_key([8], 128, torch.float32, Kind()): Choice(OWN, WIDE)})
    pair = [weight, weight]
    product(x[:2], pair, [None, None])
    product(x[:2], pair, [None, None], gated=True)
    tuned._kept.cache_clear()
    tuned.save(NAME, {shape_key([8, 8], 128, torch.float32, Kind()): Choice(OWN, WIDE)})
    product(x[:2], pair, [None, None])
    small_linear(x, weight)
    product(x, [weight], [None], blocks=WIDE)  # tiles given by the caller, as a tuner does
    assert tiles == [32, 32, 64, 32, 64]
    bias, residual = weight[:, 0].contiguous(), x[:2, :8].contiguous()
    kinds = {Kind(biased=True): 16, Kind(residual=True): 64, Kind(biased=True, residual=True): 128}
    tuned._kept.cache_clear()
    tuned.save(NAME, {shape_key([8], 128, torch.float32, kind): Choice(OWN, ProductBlocks(16, block_k, 4, 3))
                      for kind, block_k in kinds.items()})  # fmt: skip
    del tiles[:]
    for given in (([None], None), ([bias], None), ([None], residual), ([bias], residual)):
        product(x[:2], [weight], *given)
    assert tiles == [32, *kinds.values()]


@pytest.mark.parametrize("by", [TORCH, TORCH_PADDED])
def test_torch_makes_what_it_makes_in_one(
    device: torch.device, cache: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Plain products and sums with a residual; the kernel the rest, in a launch."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, residual = (
        torch.randn(*shape, generator=generator).half().to(device) for shape in ((5, 48), (24, 48), (24,), (5, 24))
    )
    single = [Kind(biased=b, residual=r) for b in (False, True) for r in (False, True)]
    tuned.save(NAME, {**{shape_key([24], 48, torch.float16, kind): Choice(by) for kind in single},
                      shape_key([24, 24], 48, torch.float16, Kind(gated=True)): Choice(by)})  # fmt: skip
    launched: list[int] = []
    module = importlib.import_module("caw.triton_kernels.small_linear")
    real = module.launch
    monkeypatch.setattr(module, "launch", lambda *a, **o: launched.append(1) or real(*a, **o))
    seen: list[int] = []
    linear, addmm = torch.nn.functional.linear, torch.addmm
    monkeypatch.setattr(module.torch.nn.functional, "linear", lambda x, *a: seen.append(len(x)) or linear(x, *a))
    monkeypatch.setattr(module.torch, "addmm", lambda c, x, w: seen.append(len(x)) or addmm(c, x, w))
    for arguments in (([None], None), ([bias], None), ([None], residual)):
        found = product(x, [weight], *arguments)
        assert found.shape == (5, 24) and found.is_contiguous()
        assert_close(found, product_ref(x, [weight], *arguments), "attention/float16")
    assert not launched and seen[:3:2] == [5 if by == TORCH else 64] * 2 and len(seen) >= 3
    both = product(x, [weight], [bias], residual)
    gated = product(x, [weight, weight], [None, None], gated=True)
    assert len(launched) == 2 and not torch_can([weight], [bias], residual, False)
    assert_close(both, product_ref(x, [weight], [bias], residual), "attention/float16")
    assert_close(gated, product_ref(x, [weight, weight], [None, None], gated=True), "attention/float16")
    assert by_torch(x[:0], weight, None, None, padded=True).shape == (0, 24)


def test_a_file_is_read_back_and_kept_for_its_device(cache: Path) -> None:
    choices = {"a": Choice(OWN, WIDE), "b": Choice(TORCH), "c": Choice(TORCH_PADDED)}
    path = tuned.save(NAME, choices)
    assert tuned.load(NAME) == choices and tuned.kept_count(NAME) == 3
    assert path.parent == cache / "tuned" and path.name.startswith("a-GPU-of-tests-triton-")
    assert tuned.load("another") == {} and tuned.kept_count("another") == 0


def test_choices_of_torch_hold_for_its_settings(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In how many bits it adds decides about speed and bits; tiles of this library know nothing of it."""
    own, mixed = {"a": Choice(OWN, WIDE)}, {"a": Choice(OWN, WIDE), "b": Choice(TORCH)}
    for choices in (own, mixed):
        tuned.save(NAME, choices)
        assert tuned.load(NAME) == choices
    matmul, words = torch.backends.cuda.matmul, re.escape("made with other settings of torch.backends.cuda")
    reduced = "allow_bf16_reduced_precision_reduction"
    for setting, other in ((reduced, not getattr(matmul, reduced)), ("fp32_precision", "tf32")):
        before = getattr(matmul, setting)
        try:
            setattr(matmul, setting, other)
            with pytest.raises(ValueError, match=words):
                tuned.load(NAME)
        finally:
            setattr(matmul, setting, before)
    assert tuned.load(NAME) == mixed
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with pytest.raises(ValueError, match=words):
        tuned.load(NAME)
    tuned.save(NAME, own)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    assert tuned.load(NAME) == own


def changed(**entries: object) -> str:
    found = json.loads(tuned.place(NAME).read_text())
    return json.dumps({**found, **entries})


@pytest.mark.parametrize(
    "text, words",
    [
        (lambda: "{", "damaged"),
        (lambda: "[]", "no file of tuned products"),
        (lambda: "\x00\xff", "damaged"),
        (lambda: "[" * 200_000, "damaged"),
        (lambda: changed(kind="something else"), "no file of tuned products"),
        (lambda: changed(products=[1]), "not as this library writes it"),
        (lambda: changed(products={"a": {"by": "nobody"}}), "a choice must be"),
        (lambda: changed(products={"a": {"by": TORCH, "block_o": 16}}), "not as this library writes it"),
        (lambda: changed(products={"a": {"by": OWN, "block_o": 48, "block_k": 64, "num_warps": 4, "num_stages": 3}}),
         "block_o must be a tile's size, got 48"),
        (lambda: changed(products={"a": {"by": OWN, "block_o": 16, "block_k": 1 << 30, "num_warps": 4,
                                         "num_stages": 3}}), "block_k must be"),
        (lambda: changed(products={"a": {"by": OWN, "block_o": True, "block_k": 64, "num_warps": 4, "num_stages": 3}}),
         "block_o must be"),
        (lambda: changed(device="another"), "another device"),
        (lambda: changed(triton="1.0"), "another triton"),
        (lambda: changed(torch="1.0 cuda None"), "another torch"),
        (lambda: changed(kernel="0"), "another kernel"),
    ],
)  # fmt: skip
def test_a_file_of_no_use_is_left_out_with_one_warning(device: torch.device, cache: Path, text, words: str) -> None:
    x, weight = order_shows(device)
    path = tuned.save(NAME, {shape_key([8], 128, torch.float32, Kind()): Choice(OWN, WIDE)})
    path.write_text(text(), encoding="latin-1")
    with pytest.warns(UserWarning, match="are left out") as caught:
        assert not small_linear(x, weight).any(), "the tiles of arithmetic"
        small_linear(x, weight)
    assert (
        len(caught) == 1
        and words in str(caught[0].message)
        and "run `python -m benchmarks tune_products` again" in str(caught[0].message)
    )
    assert str(caught[0].message).count(". ") == 0 and caught[0].filename == __file__


def test_a_file_that_cannot_be_read_is_left_out_too(device: torch.device, cache: Path) -> None:
    tuned.place(NAME).mkdir(parents=True)
    with pytest.warns(UserWarning, match="are left out"):
        assert tuned.kept_count(NAME) == 0


def test_without_a_gpu_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name, so no file: not on a CPU, nor for tensors without contents."""
    monkeypatch.setattr(tuned, "_kept", lambda name: pytest.fail("looked for a file"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("cpu", "meta"):
            assert tuned.chosen(torch.device(name), [8], 8, torch.float32, Kind()) is None
