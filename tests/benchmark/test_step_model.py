"""The model of a step: what it counts, its bytes against arithmetic, the times it gives beside an H100's, and bounds
that a change must not exceed."""

import json
from pathlib import Path

import pytest
from bench_step_model import microseconds
from step_model import DEVICES, model_of_step

from caw.benchmark.sizes import SHAPES
from caw.triton_kernels.packed_weights_ref import FORMATS, Format

# launches of a step of Llama-2-7B at batch 1, and what the watermarks add: lower them with what was saved
PLAIN, MORE = 232, {"kgw": 2, "exp": 1, "kgw+entropy": 8, "kgw+caw": 2, "exp+caw": 1, "synthid": 37}
# of plain's
BYTES = {"kgw": 1.0001, "exp": 1.0001, "kgw+entropy": 1.0001, "kgw+caw": 1.01, "exp+caw": 1.01, "synthid": 1.0001}


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


def test_no_more_launches_and_bytes_than_before() -> None:
    plain = model_of_step("plain", "llama-2-7b", "float16", 1, 1024)
    assert len(plain) <= PLAIN
    for mode, more in MORE.items():
        launches = model_of_step(mode, "llama-2-7b", "float16", 1, 1024)
        assert len(plain) < len(launches) <= len(plain) + more, mode
        moved, of_plain = (sum(launch.bytes for launch in step) for step in (launches, plain))
        assert of_plain < moved <= BYTES[mode] * of_plain, mode


def test_its_times_are_within_six_per_cent_of_an_h100() -> None:
    """Of the kernels that were timed; what is stored is what the constants give (interpreted outputs are wider)."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "step_model.json"
    found = json.loads(path.read_text())
    timed = next(iter(found["counts"]))
    for row in found["rows"]:
        assert row["model_us"][timed] == pytest.approx(row["measured_us"], rel=0.06), row
    assert {row["batch"] for row in found["rows"]} == {1, 8, 32} and len(found["rows"]) == 24
    row = next(row for row in found["rows"] if (row["mode"], row["batch"]) == ("kgw+caw", 32))
    for library, counts in found["counts"].items():
        step = model_of_step("kgw+caw", "llama-2-7b", "float16", 32, 1024)
        assert sum(microseconds(one, DEVICES["h100"], counts) for one in step) == pytest.approx(
            row["model_us"][library], rel=0.01
        ), library
