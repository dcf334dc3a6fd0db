"""A whole layer by its kernels against the reference in float64: shapes, parts of the prefix, scratch, wrong input."""

import pytest
import torch
from csrc.test_decoder_layer import arguments

from caw.testing import assert_close
from caw.triton_kernels.decoder_layer import LayerAttention, decoder_layer
from caw.triton_kernels.decoder_layer_ref import decoder_layer_ref
from caw.triton_kernels.launching import INTERPRETED, recorded

ROWS = {torch.float32: "float32", torch.bfloat16: "layer/bfloat16", torch.float16: "layer/bfloat16"}
CASES = {
    "one of each": {"batch": 1, "candidates": 1, "width": 1, "heads": 1, "kv_heads": 1, "dim": 2, "wide": 1, "size": 1},
    "primes": {"batch": 3, "candidates": 5, "width": 37, "heads": 7, "kv_heads": 1, "dim": 22, "wide": 53, "size": 31},
    "norms, biases, window": {"head_norms": True, "biases": True, "window": 4, "dtype": torch.float16},
    "parts": {"candidates": 3, "heads": 4, "kv_heads": 1, "dim": 16, "size": 300, "dtype": torch.bfloat16},
    "parts and tiles": {"batch": 1, "candidates": 12, "heads": 4, "kv_heads": 2, "dim": 8, "size": 200},
}


def on(given, device):
    def move(x):
        return [move(y) for y in x] if isinstance(x, list) else x.clone().to(device) if torch.is_tensor(x) else x

    return {name: move(value) for name, value in given.items()}


def wide(given):
    def widen(x):
        return x.double() if torch.is_tensor(x) and x.is_floating_point() else x

    return {name: [widen(y) for y in x] if isinstance(x, list) else widen(x) for name, x in given.items()}


def assert_as_reference(kernel, reference, given, device):
    """The result, and the keys and values that were written; other slots and sequences are left alone."""
    own, exact = on(given, device), wide(given)
    actual, expected = kernel(**own), reference(**exact)
    assert actual.dtype == given["hidden"].dtype and actual.is_contiguous()
    assert_close(actual.cpu(), expected.float(), ROWS[actual.dtype])
    coarse = INTERPRETED and actual.dtype == torch.bfloat16  # there the interpreter truncates
    for name in ("k_scratch", "v_scratch"):
        assert_close(own[name].cpu(), exact[name].float(), "int8" if coarse else ROWS[actual.dtype])
        assert (own[name].cpu()[exact[name] == 0] == 0).all()


@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(device, case):
    torch.manual_seed(3)
    assert_as_reference(decoder_layer, decoder_layer_ref, arguments(**CASES[case]), device)


def close_rows(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    assert_close(actual, expected, ROWS[torch.float32])
    return True


@pytest.mark.parametrize("case", ["one part", "parts"])
def test_packed_rows_have_the_bits_of_whole_ones(device, case):
    """Slots that nobody carries stay. Bit for bit on a GPU; the interpreter's sums are NumPy's."""
    same = torch.equal if device.type == "cuda" else close_rows
    torch.manual_seed(5)
    one = {"batch": 4, "candidates": 3, "head_norms": True, "window": 4}
    given = arguments(**(one if case == "one part" else {**CASES[case], "dtype": torch.float32}))
    batch, candidates = given["hidden"].shape[:2]
    given["k_scratch"], given["v_scratch"] = (given[name][:, : candidates + 1] for name in ("k_scratch", "v_scratch"))
    counts = [1, 3, 2, 1] if case == "one part" else [candidates, 2]
    rows = torch.tensor([b for b in range(batch) for _ in range(counts[b])])
    slots = torch.tensor([c for b in range(batch) for c in range(counts[b])])
    few = {name: given[name][rows, slots][:, None].contiguous() for name in ("hidden", "cos", "sin")}
    whole, packed = on(given, device), on({**given, **few, "rows": rows}, device)
    expected, actual = decoder_layer(**whole), decoder_layer(**packed)
    assert actual.shape == few["hidden"].shape
    assert same(actual[:, 0].cpu(), expected.cpu()[rows, slots])
    for name in ("k_scratch", "v_scratch"):
        mine, theirs = packed[name].cpu(), whole[name].cpu()
        assert same(mine[rows, 1 + slots], theirs[rows, 1 + slots])
        mine[rows, 1 + slots] = 0
        assert (mine == 0).all()
    reference = decoder_layer_ref(**wide({**given, **few, "rows": rows}))
    assert_close(actual.cpu(), reference.float(), ROWS[actual.dtype])


def test_seven_launches_and_few_counters(device):
    """Counters are cleared by the layer's own first launch; a prefix in one part needs none."""

    def meta(given):
        return {n: [None if y is None else y.to("meta") for y in x] if isinstance(x, list)
                else x.to("meta") if torch.is_tensor(x) else x for n, x in given.items()}  # fmt: skip

    for size, cleared in ((300, 2), (1, 0)):
        with recorded() as launches:
            decoder_layer(**meta(arguments(size=size, dim=16, kv_heads=1)))
        names = [launch.kernel.__name__ for launch in launches]
        assert names == ["_norm_kernel", "_product_kernel", "_layer_attention_kernel", "_product_kernel",
                         "_norm_kernel", "_product_kernel", "_product_kernel"]  # fmt: skip
        assert [launches[i].arguments["clear"] for i in (0, 4)] == [cleared, 0]
    cache = torch.empty(1, 32, 4096, 128, dtype=torch.float16, device="meta")
    shape = LayerAttention(1, 2, 32, cache, head_norms=False)
    assert shape.splits > 1 and shape.arrivals == 32 * shape.tiles


FAMILIES = {
    "gemma": {"family": "gemma", "candidates": 1, "dim": 16},
    "gemma2, parts, cap, window": {"family": "gemma2", "softcap": 1.5, "heads": 4, "kv_heads": 1, "dim": 16,
                                   "size": 300, "window": 190, "width": 37},
    "gemma3, norms": {"family": "gemma2", "head_norms": True, "biases": True, "dtype": torch.float16},
    "a part of each head": {"family": "llama", "rotated": 4, "candidates": 4, "softcap": 1.5},
}  # fmt: skip


def of_family(family, rotated=None, **case):
    given = {**arguments(**case), "family": family}
    if family == "gemma2":
        width = given["hidden"].shape[2]
        given["weights"] += [(0.3 * torch.randn(width)).to(given["hidden"].dtype) for _ in range(2)]
    for name in ("cos", "sin"):
        angles = given[name][..., : (rotated or given[name].shape[2]) // 2]
        given[name] = torch.cat([angles, angles], dim=-1)
    return given


@pytest.mark.parametrize("case", FAMILIES)
def test_families(device, case):
    torch.manual_seed(11)
    given = of_family(**FAMILIES[case])
    assert_as_reference(decoder_layer, decoder_layer_ref, given, device)
    with recorded() as launches:
        decoder_layer(**on(given, torch.device("meta")))
    assert len(launches) == (8 if given["family"] == "gemma2" else 7)


@pytest.mark.parametrize("change, words", [
    ({"rows": torch.zeros(2, dtype=torch.int64)}, "hidden must have shape .N, 1, E. with rows"),
    ({"slot": 2}, "must have room for 2 candidates"), ({"lengths": torch.tensor([1, 2, 3])}, "lengths must have shape"),
    ({"biases": [None] * 6}, "biases must be 7"), ({"hidden": torch.zeros(2, 33, 24)}, "1 to 32 candidates"),
    ({"hidden": torch.zeros(2, 2, 23)}, r"weights\[0\] must have shape \[23\]"),
    ({"cos": torch.zeros(2, 2, 5)}, "cos must be an even number of 2 to 6 wide, got 5"),
    ({"k_cache": torch.zeros(2, 2, 9, 6).half()}, "k_cache must be float32"),
])  # fmt: skip
def test_wrong_input_is_named(device, change, words):
    given = {**arguments(), **change}
    with pytest.raises((TypeError, ValueError), match=words):
        decoder_layer(**on(given, device))


def test_lengths_past_the_cache(device):
    """Found where finding does not wait for a GPU; there the kernel clamps."""
    given = arguments()
    for cache in (given["k_cache"], given["v_cache"]):
        cache.nan_to_num_(0.5)
    full, past = (on({**given, "lengths": torch.tensor([1, n])}, device) for n in (9, 10))
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"^lengths must be in \[0, 9\]"):
            decoder_layer(**past)
    else:
        assert torch.equal(decoder_layer(**past), decoder_layer(**full))
