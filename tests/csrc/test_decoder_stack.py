"""decoder_stack: bit for bit its layers in calls of their own, in one thread and in several."""

import itertools
from typing import Any

import pytest
import torch

from caw import ops
from caw.ops_ref.decoder_stack_ref import decoder_stack_ref
from caw.testing import assert_close
from caw.triton_kernels.decoder_layer_ref import FAMILIES, LLAMA
from tests.csrc.test_decoder_layer import arguments
from tests.quantized import random_blocks

L, SLOT = 3, 1


def packed_matrix(kind: int, like: torch.Tensor) -> torch.Tensor:
    inputs = 32 if kind < 10 else 256
    return ops.pack_blocks(random_blocks(kind, like.shape[0], like.shape[1] // inputs, seed=like.shape[0]), kind)


def stack(
    kind: int | tuple[int, ...] | None = None,
    windows: tuple[int, ...] = (0, 0, 0),
    family: str = LLAMA,
    softcap: float | None = None,
    rotations: tuple[int, ...] = (),
    turned: int | None = None,
    multiplier: float | None = None,
    merged: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """L random layers. kind: of blocks, or several in turns. rotations: of two kinds, by layer. turned: dimensions."""
    layers = [merged_layer(arguments(**options)) if merged else arguments(**options) for _ in range(L)]
    first = layers[0]
    if kind is not None:
        turns = itertools.cycle((kind,) if isinstance(kind, int) else kind)
        for layer in layers:
            layer["weights"] = [w if w.dim() == 1 else packed_matrix(next(turns), w) for w in layer["weights"]]
    store = torch.stack([torch.stack([layer["k_cache"], layer["v_cache"]]) for layer in layers])
    scratch = torch.stack([torch.stack([layer["k_scratch"], layer["v_scratch"]]) for layer in layers])
    biases = [b for layer in layers for b in layer["biases"]]
    given: dict[str, Any] = {"family": family, "softcap": softcap} if family != LLAMA else {}
    if multiplier is not None:
        given["multiplier"] = multiplier
    if FAMILIES[family].after_norms:
        for layer in layers:
            layer["weights"] += [torch.randn_like(layer["weights"][0]) / 2 for _ in range(2)]
    if family != LLAMA:  # such norms hold their distance from 1
        for layer in layers:
            layer["weights"] = [w - 1 if w.dim() == 1 and w.is_floating_point() else w for w in layer["weights"]]
    if rotations:
        for name in ("cos", "sin"):
            first[name] = torch.stack([layer[name] for layer in layers[:2]])
        given["rotations"] = list(rotations)
    if turned is not None:
        first |= {name: first[name][..., :turned] for name in ("cos", "sin")}
    return {
        **given,
        **{name: first[name] for name in ("hidden", "cos", "sin")}, "store": store, "scratch": scratch, "slot": SLOT,
        "lengths": first["lengths"], "weights": [w for layer in layers for w in layer["weights"]],
        "biases": biases if any(b is not None for b in biases) else [], "eps": 1e-5, "scale": first["scale"],
        "windows": list(windows),
    }  # fmt: skip


def merged_layer(given: dict[str, Any]) -> dict[str, Any]:
    """Its matrices as Phi-3 has them."""
    norm1, q, k, v, o, norm2, g, u, d, *norms = given["weights"]
    parted = given["biases"]
    biases = [torch.cat(x) if x[0] is not None else None for x in (parted[:3], parted[3:4], parted[4:6], parted[6:])]
    return {**given, "weights": [norm1, torch.cat([q, k, v]), o, norm2, torch.cat([g, u]), d, *norms], "biases": biases}


def copied(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "store": given["store"].clone(), "scratch": given["scratch"].clone()}


def layer_by_layer(given: dict[str, Any]) -> list[torch.Tensor]:
    """What the layers give in calls of their own: (hidden, store, scratch)."""
    given = copied(given)
    hidden, count, matrices = given["hidden"], len(given["weights"]) // L, len(given["biases"]) // L
    for i in range(L):
        parts = {name: given[name][i : i + 1] for name in ("store", "scratch", "windows")}
        parts |= {"weights": given["weights"][i * count : (i + 1) * count], "hidden": hidden}
        parts["biases"] = given["biases"][i * matrices : (i + 1) * matrices]
        if "rotations" in given:
            which = given["rotations"][i]
            parts |= {name: given[name][which] for name in ("cos", "sin")} | {"rotations": []}
        hidden = ops.decoder_stack(**{**given, **parts})
    return [hidden, given["store"], given["scratch"]]


def in_one(given: dict[str, Any]) -> list[torch.Tensor]:
    given = copied(given)
    return [ops.decoder_stack(**given), given["store"], given["scratch"]]


def assert_same(given: dict[str, Any]) -> None:
    for a, b in zip(in_one(given), layer_by_layer(given), strict=True):
        assert a.dtype == b.dtype and torch.equal(a.nan_to_num(7), b.nan_to_num(7))


SHAPES = {
    "plain": {},
    "primes": {"batch": 3, "candidates": 5, "width": 37, "heads": 7, "kv_heads": 1, "dim": 22, "wide": 53, "size": 31},
    "qwen3": {"head_norms": True, "size": 600},
    "qwen2 and windows": {"biases": True, "windows": (3, 0, 3)},
    "many rows": {"batch": 7, "candidates": 9},
    "Q4_0": {"kind": 2, "width": 64, "heads": 4, "dim": 16, "wide": 96, "candidates": 3},
    "mixed": {"kind": (8, 7, 8, 7, 3), "width": 64, "heads": 4, "dim": 16, "wide": 96, "batch": 3, "candidates": 3},
    "Q6_K": {"kind": 14, "width": 256, "heads": 4, "dim": 64, "wide": 256, "batch": 1, "candidates": 6},
    "gemma": {"family": "gemma", "candidates": 3},
    "gemma2": {"family": "gemma2", "softcap": 1.5, "windows": (3, 0, 3), "size": 31},
    "gemma3": {"family": "gemma2", "head_norms": True, "windows": (5, 0, 5), "rotations": (1, 0, 1), "batch": 5},
    "gemma3, Q5_0": {"family": "gemma2", "head_norms": True, "rotations": (0, 1, 1), "kind": 6, "width": 64, "heads": 2,
                     "kv_heads": 1, "dim": 32, "wide": 96, "candidates": 3},
    "granite": {"multiplier": 0.22, "biases": True},
    "granite, Q4_K": {"multiplier": 0.22, "kind": 12, "width": 256, "dim": 64, "wide": 256},
    "phi3": {"merged": True, "turned": 4, "windows": (3, 3, 3), "size": 31},
    "phi3, mixed": {"merged": True, "kind": (12, 14, 8, 14), "width": 256, "dim": 64, "wide": 256, "candidates": 3},
    "all at once": {"family": "gemma2", "multiplier": 0.5, "merged": True, "head_norms": True, "biases": True},
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_equal_to_its_layers(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16) if "kind" not in SHAPES[name] else (torch.float32,):
        assert_same(stack(dtype=dtype, **SHAPES[name]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_candidates(dtype: torch.dtype) -> None:
    given = stack(batch=3, candidates=3, dtype=dtype, size=30, windows=(0, 5, 0))
    rows, places = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([0, 1, 0, 1, 2])
    assert_same({**given, **{k: given[k][rows, places][:, None] for k in ("hidden", "cos", "sin")}, "rows": rows})


def drafted(**options: Any) -> dict[str, Any]:
    """Sequence 1: two candidates at 5, one kept behind, and a draft at 6; sequence 0: a token at 8."""
    given = stack(batch=1, candidates=4, size=9, **options)
    given["store"] = torch.randn(L, 2, 2, *given["store"].shape[3:]).to(given["hidden"].dtype)
    at = {"rows": [1, 1, 1, 0], "lengths": [5, 5, 6, 8], "places": [5, 7, 6, 8]}
    return {**given, **{name: torch.tensor(value) for name, value in at.items()}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_drafts_and_prompts(dtype: torch.dtype) -> None:
    assert_same(drafted(dtype=dtype, head_norms=True, windows=(0, 4, 0)))
    assert_same(drafted(dtype=dtype, family="gemma2", softcap=2.0, rotations=(0, 1, 0), windows=(4, 0, 4)))


FAMILIED = {
    "gemma": {"family": "gemma", "biases": True},
    "gemma2": {"family": "gemma2", "softcap": 0.5, "windows": (3, 0, 3)},
    "gemma3": {"family": "gemma2", "head_norms": True, "windows": (3, 0, 3), "rotations": (1, 0, 1)},
    "a part of each head": {"turned": 4},
    "granite": {"multiplier": 0.22},
    "phi3": {"merged": True, "turned": 4, "windows": (3, 3, 3), "biases": True},
    "all at once": {"family": "gemma2", "multiplier": 0.5, "merged": True, "head_norms": True, "biases": True},
}


@pytest.mark.parametrize("name", FAMILIED)
def test_rows_of_families_are_independent(name: str) -> None:
    given = stack(batch=3, candidates=2, **FAMILIED[name])
    together = ops.decoder_stack(**copied(given))
    which = -3 if given["cos"].dim() == 4 else 0
    for b in range(1, 3):
        rotary = {name: given[name].narrow(which, 0, b) for name in ("cos", "sin")}
        fewer = {"hidden": given["hidden"][:b], "lengths": given["lengths"][:b], **rotary}
        assert torch.equal(ops.decoder_stack(**{**copied(given), **fewer}), together[:b])


@pytest.mark.parametrize("name", ["llama", *FAMILIED])
def test_equal_to_the_reference(name: str) -> None:
    options = FAMILIED.get(name, {})
    for given in (stack(**{"biases": True, "windows": (3, 0, 0), **options}), drafted(**options)):
        given["store"].nan_to_num_(0)
        own = copied(given)
        wide = {
            name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point()
            else [x.double() if isinstance(x, torch.Tensor) else x for x in value] if isinstance(value, list) else value
            for name, value in copied(given).items()
        }  # fmt: skip
        assert_close(ops.decoder_stack(**own), decoder_stack_ref(**wide).float(), "forward")
        for name in ("store", "scratch"):
            assert_close(own[name], wide[name].float(), "forward")


MERGED = {
    "float32": {"biases": True, "head_norms": True},
    "bfloat16": {"dtype": torch.bfloat16, "biases": True},
    "Q8_0": {"kind": 8, "width": 64, "heads": 4, "dim": 16, "wide": 96},
    "Q4_K": {"kind": 12, "width": 256, "heads": 4, "kv_heads": 1, "dim": 64, "wide": 256},
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_matrices_give_the_bits_of_their_parts(name: str) -> None:
    """They are read where they lie; packed, each begins with a tile of its own."""
    kind = MERGED[name].get("kind")
    given = stack(candidates=3, **{key: value for key, value in MERGED[name].items() if key != "kind"})
    count = len(given["weights"]) // L
    if kind is not None:
        across = [w.shape[-1] // (32 if kind < 10 else 256) for w in given["weights"]]
        given["weights"] = [w if w.dim() == 1 else random_blocks(kind, w.shape[0], n, seed=i)
                            for i, (w, n) in enumerate(zip(given["weights"], across, strict=True))]  # fmt: skip
    layers = [
        merged_layer({"weights": given["weights"][i * count : (i + 1) * count],
                      "biases": given["biases"][i * 7 : (i + 1) * 7] or [None] * 7})
        for i in range(L)
    ]  # fmt: skip
    merged = {**given, **{key: [x for layer in layers for x in layer[key]] for key in ("weights", "biases")}}
    if kind is not None:
        for one in (given, merged):
            one["weights"] = [w if w.dim() == 1 else ops.pack_blocks(w, kind) for w in one["weights"]]
    for a, b in zip(in_one(merged), in_one(given), strict=True):
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_packed_rows_are_merged_in_whole_tiles() -> None:
    given = stack(merged=True, kind=8, width=64, heads=2, kv_heads=1, dim=32, wide=40)
    with pytest.raises(RuntimeError, match=r"^weights\[4\] must have matrices of multiples of 16 packed rows"):
        ops.decoder_stack(**given)


@pytest.mark.serial
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    """Two threads share the layers' work, wait for each other a dozen times a layer, and meet all of it."""
    given = stack(dtype=dtype, batch=3, candidates=2, width=512, wide=1024, heads=8, kv_heads=2, dim=32, size=600)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = in_one(given)
        for threads in (2, 3):
            torch.set_num_threads(threads)
            for a, b in zip(in_one(given), alone, strict=True):
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    finally:
        torch.set_num_threads(before)


def test_no_rows() -> None:
    given = stack(batch=1)
    given.update({k: given[k][:0] for k in ("hidden", "cos", "sin", "lengths")})
    assert ops.decoder_stack(**given).shape == (0, 2, 24)


def test_layers_that_differ_are_named() -> None:
    given = stack()
    count = len(given["weights"]) // L
    for i, shape in ((6, (41, 24)), (7, (41, 24)), (8, (24, 41))):
        given["weights"][count + i] = torch.randn(shape)
    with pytest.raises(RuntimeError, match="must be alike in all layers, and those of layer 1 differ"):
        ops.decoder_stack(**given)
    given = stack()
    given["weights"][2 * count + 3] = torch.randn(12, 23)
    with pytest.raises(RuntimeError, match=rf"^weights\[{2 * count + 3}\] must have shape \[12, 24\]"):
        ops.decoder_stack(**given)


def test_bad_merged_matrices_are_named() -> None:
    heads = r"weights\[1\] must have shape \[H \* D, E\], or"
    for place, shape, words in ((1, 49, heads), (1, 18, heads), (4, 81, r"weights\[4\] must have shape \[80, 24\]")):
        given = stack(merged=True)
        given["weights"][place] = torch.randn(shape, 24)
        with pytest.raises(RuntimeError, match=f"^{words}"):
            ops.decoder_stack(**given)
