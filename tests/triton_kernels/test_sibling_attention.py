"""Sibling attention against its reference: shapes, layouts, options, pages, and what a bad call says."""

import pytest
import torch

from caw.testing import assert_close
from caw.triton_kernels.block_sizes import attention_blocks, num_splits
from caw.triton_kernels.sibling_attention import sibling_attention, sibling_attention_packed
from caw.triton_kernels.sibling_attention_ref import sibling_attention_packed_ref, sibling_attention_ref

ROWS = {torch.float32: "attention/float32", torch.float16: "attention/float16", torch.bfloat16: "attention/bfloat16"}
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def inputs(device, batch, heads, kv_heads, candidates, size, dim, dtype=F32, lengths=None):
    """q, k_cache, v_cache, k_own, v_own, lengths; the cache holds NaN beyond each length."""

    def make(*shape):
        return torch.randn(*shape).to(device, dtype)

    if lengths is None:
        lengths = [size, 0, size // 2 + 1, 1][:batch] + [size // 3] * max(batch - 4, 0)
    q = make(batch, candidates, heads, dim).transpose(1, 2)  # as a model hands it over: not contiguous
    k, v = make(2, batch, kv_heads, size, dim)
    own = [make(batch, candidates, kv_heads, dim).transpose(1, 2) for _ in range(2)]
    for cache in (k, v):
        for row, length in zip(cache, lengths, strict=True):
            row[:, length:] = torch.nan
    return q, k, v, *own, torch.tensor(lengths, dtype=torch.int64, device=device)


def run(arguments, scale=None, **options):
    q = arguments[0]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    actual = sibling_attention(*arguments, scale, **options)
    expected = sibling_attention_ref(*(x.cpu() for x in arguments), scale, **{
        name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in options.items()
    })  # fmt: skip
    assert actual.dtype == q.dtype and actual.transpose(1, 2).is_contiguous()
    assert_close(actual, expected, ROWS[q.dtype])


# B, H, HK, C, S, D, dtype
SHAPES = [
    pytest.param(1, 1, 1, 1, 1, 64, F32, id="all-ones"),
    pytest.param(2, 3, 3, 1, 37, 64, F32, id="one-candidate"),
    pytest.param(3, 4, 2, 3, 70, 80, F32, id="gqa2-d80"),
    pytest.param(2, 5, 1, 2, 257, 128, BF16, id="gqa5-prime"),
    pytest.param(1, 7, 1, 32, 67, 64, BF16, id="gqa7-c32-four-m-blocks", marks=pytest.mark.slow),
    pytest.param(2, 2, 1, 16, 300, 256, BF16, id="d256-splits", marks=pytest.mark.slow),
    pytest.param(1, 8, 2, 3, 40, 16, F32, id="gqa4"),
    pytest.param(1, 7, 1, 3, 40, 16, F32, id="gqa7"),
    pytest.param(1, 2, 1, 3, 50, 13, F32, id="d13"),
    pytest.param(1, 3, 1, 17, 40, 256, F16, id="one-part-too-large-to-finish"),
    pytest.param(4, 1, 1, 1, 500, 64, F16, id="long"),
]


@pytest.mark.parametrize("batch, heads, kv_heads, candidates, size, dim, dtype", SHAPES)
def test_equals_the_reference(device, batch, heads, kv_heads, candidates, size, dim, dtype):
    run(inputs(device, batch, heads, kv_heads, candidates, size, dim, dtype))


@pytest.mark.parametrize(  # a prefix in one part, and in three
    "size, options",
    [(100, {"window": 1}), (300, {"window": 7}), (100, {"window": 1000}), (300, {"softcap": 5.0}),
     (300, {"sinks": True}), *((size, {"window": 33, "softcap": 2.0, "sinks": True}) for size in (100, 300))],
    ids=str,
)  # fmt: skip
def test_window_softcap_and_sinks(device, size, options):
    options = dict(options)
    if "sinks" in options:
        options["sinks"] = torch.tensor([3.0, -1.0, 0.0, 50.0], device=device)
    run(inputs(device, 3, 4, 2, 2, size, 32, BF16), **options)


def test_both_ways_of_finishing_are_reached():
    """One part finishes in the first kernel, several in the combine step: the sizes above take both."""
    block_n = attention_blocks(4, 32, BF16).block_n
    assert [num_splits(3, 2, 1, size, block_n) for size in (100, 300)] == [1, 3]


@pytest.mark.parametrize("size", [90, 300], ids=["one-part", "three-parts"])
def test_empty_prefix_is_the_own_value(device, size):
    arguments = inputs(device, 2, 4, 2, 3, size, 64, lengths=[0, 0])
    out = sibling_attention(*arguments, 0.125)
    assert_close(out, arguments[4].repeat_interleave(2, dim=1), "float32")


def test_any_strides(device):
    q, k, v, k_own, v_own, lengths = inputs(device, 2, 4, 2, 3, 150, 32)
    k = k.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2)  # [S, B, D, HK] in memory: no dimension is contiguous
    v = torch.cat([v, v], dim=-1)[..., ::2].contiguous().repeat_interleave(2, dim=-1)[..., ::2]
    assert k.stride(-1) != 1 and v.stride(-1) == 2
    run((q, k, v, k_own.contiguous(), v_own, lengths))


def test_large_scores_do_not_overflow(device):
    q, k, v, k_own, v_own, lengths = inputs(device, 2, 2, 2, 2, 150, 32)
    run((q * 100, k * 100, v, k_own, v_own, lengths), scale=1.0)


@pytest.mark.parametrize(
    "where, value, size", [(1, torch.nan, 40), (1, torch.nan, 300), (1, torch.inf, 300), (2, torch.nan, 300)]
)
def test_nan_of_the_prefix_is_not_lost(device, where, value, size):
    """A part that holds one was once left out by the combine step: its output looked sound, on wrong keys."""
    arguments = inputs(device, 2, 2, 1, 2, size, 16, lengths=[size, size])
    arguments[where][1, 0, size // 2] = value
    run(arguments)
    assert sibling_attention_ref(*(x.cpu() for x in arguments), 0.25)[1].isnan().all()


def test_siblings_are_blind_to_each_other(device):
    q, k, v, k_own, v_own, lengths = inputs(device, 2, 4, 2, 3, 150, 32)
    before = sibling_attention(q, k, v, k_own, v_own, lengths, 0.2)
    k_own[:, :, 1], v_own[:, :, 1] = 5.0, -7.0
    after = sibling_attention(q, k, v, k_own, v_own, lengths, 0.2)
    assert torch.equal(before[:, :, [0, 2]], after[:, :, [0, 2]]) and not torch.equal(before[:, :, 1], after[:, :, 1])


@pytest.mark.parametrize("size, dtype", [(9, F32), (200, F32), (200, BF16), (192, F16)])
def test_packed(device, size, dtype):
    """Rows of three texts, one of which has none; what lies beyond a length is not read into the result."""
    _, k, v, _, _, lengths = inputs(device, 3, 4, 2, 1, size, 32, dtype)
    q, _, _, k_own, v_own, _ = inputs(device, 5, 4, 2, 1, 1, 32, dtype)
    rows = torch.tensor([0, 0, 2, 2, 2], device=device)
    given, options = (q, k, v, k_own, v_own, lengths, rows, 0.2), {"window": size // 2, "softcap": 3.0}
    actual, expected = sibling_attention_packed(*given, **options), sibling_attention_packed_ref(*given, **options)
    assert_close(actual, expected, ROWS[dtype])


@pytest.mark.parametrize(
    "name, change, error",
    [
        ("q", lambda a: a.update(q=a["q"].double()), TypeError),
        ("q", lambda a: a.update(q=a["q"][0]), ValueError),
        ("q", lambda a: a.update(q=a["q"][:, :3]), ValueError),
        ("q", lambda a: a.update(q=a["q"].repeat(1, 1, 11, 1), k_own=a["k_own"].repeat(1, 1, 11, 1),
                                 v_own=a["v_own"].repeat(1, 1, 11, 1)), ValueError),
        ("k_cache", lambda a: a.update(k_cache=a["k_cache"].half()), TypeError),
        ("k_cache", lambda a: a.update(k_cache=a["k_cache"][..., :8]), ValueError),
        ("k_cache", lambda a: a.update(k_cache=a["k_cache"].to("meta")), ValueError),
        ("v_cache", lambda a: a.update(v_cache=a["v_cache"][:, :, :4]), ValueError),
        ("k_own", lambda a: a.update(k_own=a["k_own"][:, :1]), ValueError),
        ("v_own", lambda a: a.update(v_own=a["v_own"].double()), TypeError),
        ("lengths", lambda a: a.update(lengths=a["lengths"].int()), TypeError),
        ("lengths", lambda a: a.update(lengths=a["lengths"][:1]), ValueError),
        ("window", lambda a: a.update(window=0), ValueError),
        ("softcap", lambda a: a.update(softcap=-1.0), ValueError),
        ("sinks", lambda a: a.update(sinks=torch.zeros(3, device=a["q"].device)), ValueError),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument(device, name, change, error):
    names = ("q", "k_cache", "v_cache", "k_own", "v_own", "lengths")
    arguments = dict(zip(names, inputs(device, 2, 4, 2, 3, 9, 16), strict=True), scale=0.25)
    change(arguments)
    with pytest.raises(error, match=rf"^{name} must"):
        sibling_attention(**arguments)


def test_lengths_past_the_cache(device):
    """Found where finding does not wait for a GPU; there the kernel clamps."""
    q, k, v, k_own, v_own, lengths = inputs(device, 2, 2, 2, 1, 9, 16, lengths=[9, 9])
    if device.type == "cpu":
        with pytest.raises(ValueError, match=r"^lengths must be in \[0, 9\]"):
            sibling_attention(q, k, v, k_own, v_own, lengths + 1, 0.25)
    else:
        clamped = sibling_attention(q, k, v, k_own, v_own, lengths + 5, 0.25)
        assert torch.equal(clamped, sibling_attention(q, k, v, k_own, v_own, lengths, 0.25))


@pytest.mark.gpu
def test_graph_replay_at_other_lengths():
    """A captured call follows the lengths in device memory, as the same call made eagerly does, bit for bit."""
    cuda = torch.device("cuda")
    q, k, v, k_own, v_own, lengths = inputs(cuda, 2, 8, 2, 4, 600, 128, BF16, lengths=[600, 600])
    sibling_attention(q, k, v, k_own, v_own, lengths, 0.1)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sibling_attention(q, k, v, k_own, v_own, lengths, 0.1)
    for other in ([0, 1], [599, 64], [300, 65]):
        lengths.copy_(torch.tensor(other))
        graph.replay()
        assert torch.equal(out, sibling_attention(q, k, v, k_own, v_own, lengths, 0.1))
