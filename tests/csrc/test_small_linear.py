"""small_linear against float64, and in the model it is made for."""

import pytest
import torch
from pairwise import pairwise
from transformers.pytorch_utils import Conv1D

from caw import ops
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.testing import assert_close

SHAPES = [(1, 1, 1), (1, 16, 32), (2, 17, 33), (3, 5, 70), (7, 100, 31), (8, 64, 64), (9, 33, 1), (16, 257, 97)]


@pytest.mark.parametrize("shape, with_bias, dtype", pairwise(SHAPES, [False, True], [torch.float32, torch.bfloat16]))
def test_equals_float64(shape, with_bias, dtype):
    rows, size, outputs = shape
    x, weight = torch.randn(rows, size).to(dtype), torch.randn(outputs, size).to(dtype)
    bias = torch.randn(outputs).to(dtype) if with_bias else None
    wide = [t.double() if t is not None else None for t in (x, weight, bias)]
    expected = torch.nn.functional.linear(*wide)
    out = ops.small_linear(x, weight, bias)
    assert out.dtype == dtype and out.shape == (rows, outputs)
    assert_close(out, expected.to(dtype), "float32" if dtype == torch.float32 else "attention/bfloat16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1, 15, 17, 33, 576, 3000])
def test_rows_do_not_depend_on_their_neighbours(size, dtype):
    x, weight = torch.randn(200, size).to(dtype), torch.randn(37, size).to(dtype)
    together = ops.small_linear(x, weight)
    for rows in (*range(1, 10), 16, 17, 24, 31, 33, 64, 97):
        assert torch.equal(ops.small_linear(x[:rows].clone(), weight), together[:rows])
        assert torch.equal(ops.small_linear(x[200 - rows :].clone(), weight), together[200 - rows :])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_16_bits_give_the_bits_of_the_same_numbers_in_float32(dtype):
    for size in (0, 1, 15, 33, 576, 3000):
        x, weight, bias = torch.randn(97, size), torch.randn(37, size).to(dtype), torch.randn(37)
        for rows in (0, 1, 2, 8, 9, 16, 17, 18, 20, 22, 23, 31, 97):
            found = ops.small_linear(x[:rows], weight, bias)
            assert torch.equal(found, ops.small_linear(x[:rows], weight.float(), bias)), (size, rows)


def test_strided_input_and_nan():
    x = torch.randn(40, 6).T[:, ::2]
    weight = torch.randn(9, 20)
    assert_close(ops.small_linear(x, weight), x.double() @ weight.double().T, "float32")
    x = torch.full((1, 20), torch.nan)
    assert ops.small_linear(x, weight).isnan().all()


@pytest.mark.parametrize("x,weight,bias,names", [
    (torch.zeros(3), torch.zeros(2, 3), None, "x"), (torch.zeros(1, 3), torch.zeros(2, 4), None, "weight"),
    (torch.zeros(1, 3), torch.zeros(3, 2).T, None, "weight"),
    (torch.zeros(1, 3).half(), torch.zeros(2, 3).half(), None, "x"),
    (torch.zeros(1, 3).bfloat16(), torch.zeros(2, 3), None, "weight"),
    (torch.zeros(1, 3).bfloat16(), torch.zeros(2, 3).half(), None, "weight"),
    (torch.zeros(1, 3), torch.zeros(2, 3), torch.zeros(3), "bias"),
])  # fmt: skip
def test_bad_input_names_the_argument(x, weight, bias, names):
    with pytest.raises(RuntimeError, match=f"^{names} must"):
        ops.small_linear(x, weight, bias)


def test_layers_are_switched_inside_the_block_only():
    model = torch.nn.Sequential(torch.nn.Linear(12, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5, bias=False))
    switch = FusedForwards(model, enabled=True)
    for rows in (1, 32, 33):
        x = torch.randn(1, rows, 12)
        with torch.inference_mode():
            plain = model(x)
            with switch:
                assert "forward" in model[0].__dict__
                inside = model(x)
        assert_close(inside, plain, "float32")
        assert "forward" not in model[0].__dict__
    with torch.inference_mode(), switch:  # weights may change their dtype after the switch was made
        assert model.bfloat16()(torch.randn(2, 12).bfloat16()).dtype == torch.bfloat16


def test_a_row_of_a_conv1d_does_not_depend_on_the_others():
    """GPT-2's layers keep their weight [in, out]; torch's product of it sums in another order at other rows."""
    layer, x = Conv1D(24, 7), torch.randn(96, 7)
    switch = FusedForwards.of(torch.nn.Sequential(layer), enabled=True, compiled=True)
    with torch.inference_mode():
        layer.weight.mul_(torch.randn(7, 24))
        with switch:
            together = layer(x)
            assert all(torch.equal(layer(x[None, :n]), together[None, :n]) for n in (1, 2, 17, 33))
        assert_close(together, layer(x), "float32")


def test_a_changed_conv1d_is_read_again():
    model, x = torch.nn.Sequential(Conv1D(3, 5)), torch.randn(2, 5)
    with torch.inference_mode():
        for _ in range(2):
            with FusedForwards.of(model, enabled=True, compiled=True):
                assert_close(model(x), x @ model[0].weight + model[0].bias, "float32")
            model[0].weight.data.add_(1.0)


def test_an_error_inside_restores_the_layers():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    with pytest.raises(KeyError), FusedForwards(model, enabled=True):
        raise KeyError
    assert "forward" not in model[0].__dict__
    replaced = torch.nn.Linear(3, 3)
    replaced.forward = lambda x: x
    with FusedForwards(replaced, enabled=True):
        assert replaced(torch.ones(1, 3)).sum() == 3
