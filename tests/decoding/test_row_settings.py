"""Settings of single texts and the limits that a decoder is planned for."""

from typing import Any

import pytest
import torch
from decoding.mixing import ROWS
from decoding.running import make_decoder

import caw
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings


@pytest.mark.parametrize(("row", "message"), [
    (RowSettings(do_sample=True), "the texts of this decoder may have samples up to False, got one with True"),
    (RowSettings(max_new_tokens=201), "may have max_new_tokens up to 200, got one with 201"),
    (RowSettings(min_new_tokens=1), "may have minimum up to False, got one with True"),
    (RowSettings(ends=(1, 2)), "may have ends up to 1, got one with 2"),
    (RowSettings(strength_factor=1.5), r"may have strength_factor up to 1.0, got one with 1.5"),
    (RowSettings(key=5), "may have keys up to False, got one with True"),
    (RowSettings(strength_factor=0.5), "have one strength_factor, 1, got 0.5; plan it with wider limits"),
])  # fmt: skip
def test_requests_beyond_the_plan_are_refused(llama: Any, row: RowSettings, message: str) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1), eos_token_ids=(2,))
    with pytest.raises(ValueError, match=message):
        decoder.run([Request([1, 2], 3), Request([1, 2], 3, row)])


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"temperature": 0}, ValueError, r"temperature must be a number in \[1e-06, 10000\], got 0"),
    ({"top_p": 0}, ValueError, r"top_p must be in \(0, 1\], got 0; use do_sample=False"),
    ({"min_new_tokens": 300}, ValueError, r"min_new_tokens must be an integer in \[0, 200\], got 300"),
    ({"do_sample": 1}, TypeError, "do_sample must be True or False, got 1"),
    ({"ends": [2]}, TypeError, r"ends must be a tuple of token ids or None, got \[2\]; convert it"),
    ({"ends": (-1,)}, ValueError, r"an end token must be an integer in \[0, 2147483647\], got -1"),
    ({"ends": (True,)}, TypeError, "an end token must be an integer"),
    ({"key": [1, 2]}, TypeError, "key must be what a watermark takes or None, got list; leave it out"),
    ({"key": True}, TypeError, "key must be what a watermark takes or None, got bool"),
    ({"margin": 101}, ValueError, r"margin must be a number in \[0, 100\], got 101"),
    ({"strength_factor": -1}, ValueError, r"strength_factor must be a number in \[0, 100\], got -1"),
])  # fmt: skip
def test_row_settings_are_checked(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RowSettings(**settings)


def test_limits_of_rows_are_the_narrowest() -> None:
    assert RowLimits.of([RowSettings()], (2,)) == RowLimits(
        samples=False, greedy=True, temperature=False, top_k=0, top_p=False, minimum=False, max_new_tokens=200, ends=1,
        strength_factor=1.0, factors=False, keys=False,
    )  # fmt: skip
    wide = RowLimits.of(ROWS, (2, 3))
    assert wide == RowLimits(
        samples=True, greedy=True, temperature=True, top_k=60, top_p=True, minimum=False, max_new_tokens=14, ends=2,
        strength_factor=1.25, factors=True, keys=True,
    )  # fmt: skip
    assert wide.greatest(0.3) == float(torch.tensor(0.3) * torch.tensor(1.25))
