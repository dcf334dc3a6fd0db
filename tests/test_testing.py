"""The tolerance table's own comparison must be able to fail."""

import pytest
import torch

from caw.testing import TOLERANCES, assert_close, margin, tolerance


def test_rows_are_sane() -> None:
    for row in TOLERANCES.values():
        assert 0 <= row.rms <= row.peak < 0.1 and row.reason


def test_equal_passes_even_with_infinities_and_nan() -> None:
    x = torch.tensor([1.0, -torch.inf, torch.nan, torch.inf])
    assert_close(x, x.clone(), "exact")
    assert_close([], [], "exact")
    assert_close(0.0, 0.0, "exact")


def test_different_fails() -> None:
    for actual, expected in (
        ([1.0, 2.0], [1.0, 2.0001]),
        ([1.0, torch.inf], [1.0, -torch.inf]),
        ([1.0, 5.0], [1.0, torch.inf]),
        ([1.0, torch.inf], [1.0, 5.0]),
        ([1.0, torch.nan], [1.0, 5.0]),
        ([torch.nan, 1.0], [1.0, torch.nan]),
        ([1.0], [1.0, 1.0]),
        (1e-9, 0.0),
    ):
        with pytest.raises(AssertionError):
            assert_close(actual, expected, "float64")


def test_errors_are_relative_to_the_size_of_what_is_expected() -> None:
    assert_close([1e6, 1e6 + 1e-7], [1e6, 1e6], "float64")
    with pytest.raises(AssertionError, match="worst is"):
        assert_close([1e-6, 1e-6 + 1e-12], [1e-6, 1e-6], "float64")
    assert margin("margin/race", -2.0) == 2 * tolerance("margin/race").peak


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_may_be_a_step_off_and_no_more(dtype: torch.dtype) -> None:
    """At 4.75 among ones a step of float16 is .0033 of the RMS, more than the row's peak; two steps are an error."""
    expected = torch.ones(1000, dtype=dtype)
    expected[7] = 4.75
    step = 4 * torch.finfo(dtype).eps
    near, far = expected.clone(), expected.clone()
    near[7] += step
    far[7] += 3 * step
    row = "attention/" + str(dtype).removeprefix("torch.")
    assert_close(near, expected, row)
    assert near[7] != expected[7] and far[7] == 4.75 + 3 * step
    with pytest.raises(AssertionError, match="worst is"):
        assert_close(far, expected, row)
    with pytest.raises(AssertionError, match="peak"):  # numbers of float32 have no such excuse
        assert_close(near.float(), expected.float(), "attention/float32")
