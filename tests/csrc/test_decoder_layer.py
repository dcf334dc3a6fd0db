"""A stack of one layer: equal to its reference, rows independent of each other, bad input named."""

from typing import Any

import pytest
import torch
from pairwise import pairwise

from caw import ops
from caw.testing import assert_close
from caw.triton_kernels.decoder_layer_ref import decoder_layer_ref

ROWS = (*range(1, 10), 16, 17, 31, 33, 64, 96)
SEQUENCES = {1: ROWS, 2: (1, 3, 8, 17, 48), 8: (1, 2, 5, 12)}  # of so many candidates each, 96 rows at most


def arguments(
    batch: int = 2,
    candidates: int = 2,
    width: int = 24,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 6,
    wide: int = 40,
    size: int = 9,
    dtype: torch.dtype = torch.float32,
    head_norms: bool = False,
    biases: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """A random layer; the cache beyond `lengths` is NaN, as nothing may read it."""

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape) / max(1, shape[-1]) ** 0.5).to(dtype)

    lengths = torch.tensor([(5 * b + size) % (size + 1) for b in range(batch)])
    cache = torch.randn(2, batch, kv_heads, size, dim).to(dtype)
    for b, length in enumerate(lengths.tolist()):
        cache[:, b, :, length:] = torch.nan
    angles = torch.rand(batch, candidates, dim // 2) * 6
    rotary = [torch.cat([f(angles)] * 2, dim=-1).to(dtype) for f in (torch.cos, torch.sin)]
    inner, kv = heads * dim, kv_heads * dim
    shapes = [(inner, width), (kv, width), (kv, width), (width, inner), (wide, width), (wide, width), (width, wide)]
    q, k, v, o, g, u, d = (random(*shape) for shape in shapes)
    norms = [(1 + 0.3 * torch.randn(n)).to(dtype) for n in (width, width, *((dim, dim) if head_norms else ()))]
    scratch = torch.zeros(2, batch + 1, candidates + 1, kv_heads, dim, dtype=dtype)
    return {
        "hidden": torch.randn(batch, candidates, width).to(dtype), "cos": rotary[0], "sin": rotary[1],
        "k_cache": cache[0], "v_cache": cache[1], "k_scratch": scratch[0], "v_scratch": scratch[1], "slot": 1,
        "lengths": lengths,
        "weights": [norms[0], q, k, v, o, norms[1], g, u, d, *norms[2:]],
        "biases": [random(shape[0]) if biases else None for shape in shapes], "eps": 1e-5, "scale": dim**-0.5,
        **options,
    }  # fmt: skip


def layer(
    hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    k_scratch: torch.Tensor, v_scratch: torch.Tensor, slot: int, lengths: torch.Tensor, weights: list[Any],
    biases: list[Any], eps: float, scale: float, window: int | None = None, rows: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    store, scratch = torch.stack([k_cache, v_cache])[None], torch.stack([k_scratch, v_scratch])[None]
    given = hidden, cos, sin, store, scratch, slot, lengths, weights, biases, eps, scale, [window or 0], rows
    out = ops.decoder_stack(*given)
    k_scratch.copy_(scratch[0, 0])
    v_scratch.copy_(scratch[0, 1])
    return out


def one_each() -> dict[str, Any]:
    return {k: torch.zeros(2, 1, n) for k, n in (("hidden", 24), ("cos", 6), ("sin", 6))}


def both(given: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(result, key scratch, value scratch) of the kernel and of the reference in float64."""
    wide = {
        name: value.double()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else [None if x is None else x.double() for x in value]
        if isinstance(value, list)
        else value
        for name, value in given.items()
    }
    found = layer(**given)
    expected = decoder_layer_ref(**wide)
    return [found, given["k_scratch"], given["v_scratch"]], [expected, wide["k_scratch"], wide["v_scratch"]]


SHAPES = {
    "plain": {},
    "one of each": {"batch": 1, "candidates": 1, "width": 1, "heads": 1, "kv_heads": 1, "dim": 2, "wide": 1, "size": 1},
    "primes": {"batch": 3, "candidates": 5, "width": 37, "heads": 7, "kv_heads": 1, "dim": 22, "wide": 53, "size": 31},
    "many rows": {"batch": 8, "candidates": 8, "width": 32, "wide": 100},
    "long": {"batch": 2, "size": 1100, "kv_heads": 4},
    "head norms": {"head_norms": True},
    "biases": {"biases": True},
    "window": {"window": 3},
}


@pytest.mark.parametrize("name", SHAPES)
def test_equal_to_the_reference(name: str) -> None:
    found, expected = both(arguments(**SHAPES[name]))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert_close(a, b.float(), "float32")


def test_bfloat16() -> None:
    found, expected = both(arguments(dtype=torch.bfloat16, width=64, wide=96, size=40))
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.bfloat16
        assert_close(a, b.to(torch.bfloat16), "layer/bfloat16")


@pytest.mark.parametrize(
    "candidates, options, dtype",
    pairwise(SEQUENCES, [{}, {"head_norms": True, "biases": True, "window": 5}], [torch.float32, torch.bfloat16]),
)
def test_rows_do_not_depend_on_their_neighbours(candidates: int, options: dict[str, Any], dtype: torch.dtype) -> None:
    batch = 96 // candidates
    given = arguments(batch=batch, candidates=candidates, width=40, wide=72, size=70, dtype=dtype, **options)
    together = layer(**given)
    for count in SEQUENCES[candidates]:
        for part in (slice(0, count), slice(batch - count, batch)):
            some = {k: v[part] if k in ("hidden", "cos", "sin", "k_cache", "v_cache", "lengths") else v
                    for k, v in given.items()}  # fmt: skip
            assert torch.equal(layer(**some), together[part]), count
    fewer = {k: given[k][:, : (candidates + 1) // 2] for k in ("hidden", "cos", "sin")}
    assert torch.equal(layer(**given | fewer), together[:, : (candidates + 1) // 2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_matrices_of_16_bits_give_the_bits_of_the_same_in_float32(dtype: torch.dtype) -> None:
    given = arguments(width=40, wide=72, head_norms=True, biases=True)
    kept = [w.to(dtype) if w.dim() == 2 else w for w in given["weights"]]
    found = layer(**{**given, "weights": kept})
    assert torch.equal(found, layer(**{**given, "weights": [w.float() for w in kept]}))


def packed(given: dict[str, Any], counts: tuple[int, ...]) -> dict[str, Any]:
    rows = torch.tensor([b for b, count in enumerate(counts) for _ in range(count)])
    places = torch.tensor([c for count in counts for c in range(count)])
    parts = {k: given[k][rows, places][:, None] for k in ("hidden", "cos", "sin")}
    return {**given, **parts, "rows": rows}


@pytest.mark.parametrize("counts", [(2, 1, 3), (0, 3, 1), (1, 1, 1), (0, 0, 2)])
def test_packed_candidates(counts: tuple[int, ...]) -> None:
    given = arguments(batch=3, candidates=3, window=4, head_norms=True, size=30)
    given["k_scratch"][:], given["v_scratch"][:] = 7.0, 7.0
    found, expected = both(packed(given, counts))
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b.float(), "float32")
    rectangle = layer(**given)
    same = torch.cat([rectangle[b, :count] for b, count in enumerate(counts)])
    assert_close(found[0][:, 0], same, "float32")


def test_packed_rows_do_not_depend_on_their_neighbours() -> None:
    given = arguments(batch=3, candidates=3, size=600)
    together = layer(**packed(given, (2, 3, 1)))
    assert torch.equal(layer(**packed(given, (2, 0, 0))), together[:2])
    assert torch.equal(layer(**packed(given, (0, 3, 1))), together[2:])


def test_only_the_named_slots_of_scratch_are_written() -> None:
    given = arguments()
    given["k_scratch"][:], given["v_scratch"][:] = 7.0, 7.0
    layer(**given)
    for scratch in (given["k_scratch"], given["v_scratch"]):
        assert bool((scratch[:, 0] == 7).all()) and bool((scratch[2:] == 7).all())
        assert bool((scratch[:2, 1:] != 7).any(dim=-1).all())


def test_strided_inputs() -> None:
    given = arguments()
    expected = layer(**given)
    given["hidden"] = given["hidden"].transpose(0, 1).contiguous().transpose(0, 1)
    given["cos"] = torch.stack([given["cos"]] * 2, dim=-1)[..., 0]
    assert torch.equal(layer(**given), expected)


def test_large_gates_do_not_overflow() -> None:
    given = arguments(width=8, wide=16)
    given["weights"][6] *= 1e4
    found, expected = both(given)
    assert bool(found[0].isfinite().all())
    assert_close(found[0], expected[0].float(), "float32")


def test_no_rows() -> None:
    given = arguments(batch=1)
    given.update({k: given[k][:0] for k in ("hidden", "cos", "sin", "k_cache", "v_cache", "lengths")})
    assert layer(**given).shape == (0, 2, 24)


@pytest.mark.parametrize("change,names", [
    ({"hidden": torch.zeros(2, 24)}, "hidden"), ({"hidden": torch.zeros(2, 2, 24).bfloat16()}, "store and scratch"),
    ({"cos": torch.zeros(2, 2, 6).bfloat16()}, "cos and sin"), ({"cos": torch.zeros(2, 2, 5)}, "cos"),
    ({"slot": 2}, "slot"), ({"slot": -1}, "slot"), ({"slot": 2**63 - 1}, "slot"),
    ({"rows": torch.tensor([0, 1])}, "hidden"), ({"rows": torch.tensor([0, 2]), **one_each()}, "rows"),
    ({"rows": torch.tensor([1, 0]), **one_each()}, "rows"),
    ({"rows": torch.tensor([0, 1]).int(), **one_each()}, "rows"),
    ({name: torch.zeros(1, 3, 2, 6) for name in ("k_scratch", "v_scratch")}, "scratch"),
    ({"lengths": torch.tensor([1, 10])}, "lengths"), ({"biases": [None] * 3}, "biases"),
    ({"weights": [torch.zeros(24)] * 3}, "weights"),
])  # fmt: skip
def test_bad_input_names_the_argument(change: dict[str, Any], names: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{names} must"):
        layer(**{**arguments(), **change})


def test_bad_weights_name_the_argument() -> None:
    for index, bad in ((1, torch.zeros(24, 23)), (6, torch.zeros(24, 40).T), (8, torch.zeros(24, 40).double())):
        given = arguments()
        given["weights"][index] = bad
        with pytest.raises(RuntimeError, match=rf"^weights\[{index}\] must"):
            layer(**given)
