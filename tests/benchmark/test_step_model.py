"""The model of a step: what it counts, its bytes against arithmetic, and bounds that a change must not exceed."""

from __future__ import annotations

import pytest
import torch
from step_model import DEVICES, LAUNCH_US, Device, Launch, Launches, model_of_step, run

from caw import ops
from caw.benchmark.sizes import SHAPES
from caw.triton_kernels.packed_weights_ref import FORMATS, Format

# launches of a step of Llama-2-7B at batch 1, and what the watermarks add: lower them with what was saved
PLAIN, MORE = 232, {"kgw": 2, "exp": 1, "kgw+entropy": 8, "kgw+caw": 2, "exp+caw": 1, "synthid": 37}
PACKING = 32  # of EXP with CAW at batch 32
# of plain's
BYTES = {"kgw": 1.0001, "exp": 1.0001, "kgw+entropy": 1.0001, "kgw+caw": 1.01, "exp+caw": 1.01, "synthid": 1.0001}
# launches that a first draft adds, and each further one
DRAFTED = {"plain": (30, 19), "kgw": (45, 28), "kgw+caw": (37, 21), "exp+caw": (35, 20)}


def test_every_kernel_of_a_step_is_there() -> None:
    """Two layers of seven kernels: four products each, one for the logits, a norm before them; the record takes two."""
    names = [launch.name for launch in model_of_step("kgw+caw", "tiny", "float32", 3, 1024)]
    expected = {"mm": 0, "product_kernel": 9, "norm_kernel": 5, "layer_attention_kernel": 2, "part_kernel": 1,
                "merge_kernel": 1, "decision_kernel": 1, "commit_kernel": 1, "walk_kernel": 1,
                "green_ladder_kernel": 1, "embedding": 1}  # fmt: skip
    assert {name: names.count(name) for name in expected} == expected
    assert names.index("green_ladder_kernel") < names.index("embedding") < names.index("norm_kernel")
    assert names.index("part_kernel") < names.index("decision_kernel") < names.index("commit_kernel")


def test_bytes_of_products_and_prefix_are_those_of_arithmetic() -> None:
    shape, prefix = SHAPES["llama-2-7b"], 768
    layers, width, inner, vocab_size = (
        shape["num_hidden_layers"],
        shape["hidden_size"],
        shape["intermediate_size"],
        32000,
    )
    launches = model_of_step("plain", "llama-2-7b", "float16", 1, prefix)
    weights = 2 * (layers * (4 * width * width + 3 * width * inner) + vocab_size * width)
    products = sum(launch.bytes for launch in launches if launch.name == "product_kernel")
    assert weights < products < 1.001 * weights  # inputs and outputs of one row are small
    kept = 2 * 2 * layers * width * prefix
    attention = sum(launch.bytes for launch in launches if launch.name == "layer_attention_kernel")
    assert kept < attention < 1.01 * kept + layers * 64 * width
    rest = sum(launch.bytes for launch in launches) - products - attention
    assert 0 < rest < 0.01 * weights, "a table or a cache was counted whole"


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_packed_weights_are_counted_as_they_lie(form: Format) -> None:
    """By the same launches; what is neither weights nor scales is the same."""
    steps = [model_of_step("kgw+caw", "tiny", "float16", 1, 64, weights=weights) for weights in (None, form.name)]
    assert [launch.name for launch in steps[0]] == [launch.name for launch in steps[1]]
    shape = SHAPES["tiny"]
    width, inner, rows = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    inputs = {width: 2 * (4 * width + 2 * inner) + rows, inner: 2 * width}  # of so many rows in all
    saved = sum(count * (2 * size - form.row(size)) for size, count in inputs.items())
    moved = [sum(launch.bytes for launch in step) for step in steps]
    assert moved[0] - moved[1] == saved


def test_a_layer_takes_64_rows_and_more_are_the_models_own() -> None:
    """Plain decoding and candidates change over at the same number of rows."""
    for mode, batch, rows in (("plain", 64, 64), ("kgw+caw", 32, 64), ("plain", 65, 65), ("kgw+caw", 43, 86)):
        names = {launch.name for launch in model_of_step(mode, "tiny", "float32", batch, 64)}
        own, theirs = {"layer_attention_kernel", "product_kernel"}, {"split_kernel", "mm"}
        assert names & (own | theirs) == (own if rows <= 64 else theirs), (mode, batch)


def test_candidates_of_many_sequences_are_packed() -> None:
    """256 of them in 64 rows, and what they cost more than plain: a record of each, where they lie, ladders."""
    plain, packed = (model_of_step(mode, "llama-2-7b", "float16", 32, 1024) for mode in ("plain", "exp+caw"))
    assert len(plain) == PLAIN < len(packed) <= PLAIN + PACKING
    names = [launch.name for launch in packed]
    sums = {"cumsum": 2, "cumsum_start": 2, "cumsum_cast": 1}  # over whole tensors, one of them of bools
    assert {name: names.count(name) for name in sums} == sums
    moved, of_plain = (sum(launch.bytes for launch in step) for step in (packed, plain))
    # 1.0106 compiled; interpreted kernels write float32, which counts activations twice
    assert of_plain < moved <= 1.014 * of_plain


def test_no_more_launches_and_bytes_than_before() -> None:
    plain = model_of_step("plain", "llama-2-7b", "float16", 1, 1024)
    assert len(plain) <= PLAIN
    for mode, more in MORE.items():
        launches = model_of_step(mode, "llama-2-7b", "float16", 1, 1024)
        assert len(plain) < len(launches) <= len(plain) + more, mode
        moved, of_plain = (sum(launch.bytes for launch in step) for step in (launches, plain))
        assert of_plain < moved <= BYTES[mode] * of_plain, mode


@pytest.mark.parametrize("mode", ["as-transformers-kgw"])
def test_formats_of_others_are_captured(mode: str) -> None:
    """Their lists are drawn by one kernel each, for the record and, where a row asks, for the vocabulary."""
    names = [launch.name for launch in model_of_step(mode, "tiny", "float32", 2, 64)]
    assert names.count("permutation_contains") == names.count("permutation_green") == 1
    assert len(names) < len(model_of_step("plain", "tiny", "float32", 2, 64)) + 120


@pytest.mark.parametrize("mode", DRAFTED)
def test_drafts_cost_launches_and_hardly_bytes(mode: str) -> None:
    """One forward whatever is drafted: a look at the next token, and each draft's decision."""
    steps = [model_of_step(mode, "tiny", "float32", 1, 64, drafts) for drafts in (None, 1, 4)]
    counts, (first, each) = [len(step) for step in steps], DRAFTED[mode]
    assert counts[1] - counts[0] <= first and counts[2] - counts[1] <= 3 * each
    for kernel in ("product_kernel", "layer_attention_kernel", "norm_kernel"):
        assert len({[launch.name for launch in step].count(kernel) for step in steps}) == 1
    if mode == "kgw+caw":
        large = [model_of_step(mode, "llama-2-7b", "float16", 1, 1024, drafts) for drafts in (None, 4)]
        moved = [sum(launch.bytes for launch in step) for step in large]
        assert moved[0] < moved[1] <= 1.005 * moved[0]


def test_a_launch_takes_its_bytes_or_its_start() -> None:
    device = Device("d", 1e12)
    assert Launch("small", 16).microseconds(device) == LAUNCH_US
    assert Launch("large", 5_000_000).microseconds(device) == 5.0
    found = run("h200", ["plain"], "tiny", "float32", [1], [9])
    (row,) = found["rows"]
    assert row["launches"] == len(row["each"]) == sum(kernel["count"] for kernel in row["kernels"].values())
    assert row["bytes"] == sum(moved for _, moved, _, _ in row["each"])
    assert row["step_us"] == pytest.approx(sum(us for _, _, _, us in row["each"]), abs=0.1)
    assert row["floor_us"] == pytest.approx(sum(kernel["floor_us"] for kernel in row["kernels"].values()))
    assert all(us == pytest.approx(max(LAUNCH_US, floor), abs=1e-3) for _, _, floor, us in row["each"])
    assert row["step_us"] > max(row["floor_us"], LAUNCH_US * row["launches"] - 1e-6)
    assert found["device"] == {"name": "h200", "bandwidth": DEVICES["h200"].bandwidth}


def test_penalties_are_three_launches_and_one_pass() -> None:
    """No mode has any; the bytes are the row, its result, the prompt's flags and the text."""
    batch, vocab_size, length = 2, 1000, 30
    shapes = (
        ((vocab_size,), None),
        ((length,), torch.int64),
        ((), torch.bool),
        ((3,), None),
        ((vocab_size,), torch.bool),
    )
    given = [torch.empty(batch, *shape, dtype=dtype, device="meta") for shape, dtype in (*shapes, ((0,), None))]
    with Launches() as launches:
        ops.penalise_logits(*given)
    assert [launch.name for launch in launches.found] == ["bias_kernel", "count_kernel", "penalty_kernel"]
    moved = batch * (vocab_size * (4 + 4 + 1) + length * 8 + 1 + 12)
    assert [launch.bytes for launch in launches.found] == [moved, 0, 0]
