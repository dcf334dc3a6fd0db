"""The tolerance table of all tests and benchmarks. Loosening a row is a commit that states the measured error."""

from dataclasses import dataclass
from typing import Any

import torch

from caw.lazy import lazy_names

# for authors of watermarks; it stands above this module, and so waits for its first use
__getattr__, __dir__ = lazy_names(__name__, {"caw.detection.watermark_check": "check_watermark WatermarkReport"})


@dataclass(frozen=True)
class Tolerance:
    """Greatest root mean square and peak of the error, relative to the expected values' RMS. reason: its source."""

    rms: float
    peak: float
    reason: str


TOLERANCES: dict[str, Tolerance] = {
    "exact": Tolerance(0.0, 0.0, "the same float operations in the same order"),
    "float32": Tolerance(1e-6, 1e-5, "one reduction or transcendental in float32, any order"),
    "float64": Tolerance(1e-13, 1e-12, "one reduction or transcendental in float64, any order"),
    "tail": Tolerance(1e-10, 1e-10, "p-values: incomplete beta and gamma functions of different libraries"),
    "weighted": Tolerance(1e-9, 1e-9, "tails of weighted sums: products of up to 10^3 transforms, logarithms of them"),
    "inversion": Tolerance(1e-6, 1e-6, "tails of weighted sums by numerical integration, asked for 1e-8"),
    "forward": Tolerance(
        1e-5,
        3e-5,
        "logits of a whole float32 model through another attention or batch shape; 22 tiny architectures: 4e-6, 9e-6",
    ),
    "capacity": Tolerance(1e-4, 1e-3, "row `forward` through log-probabilities and an evaluator of random weights"),
    "softmax": Tolerance(
        4e-6,
        4e-5,
        "exp(logit - logsumexp): one ulp of a logsumexp of 16 to 32 is 1.9e-6 of every "
        "probability; measured 1.9e-6, 1.4e-5",
    ),
    "evaluator": Tolerance(2e-6, 1e-5, "capacity: three chained float32 reductions of up to 512 terms and a sigmoid"),
    "attention/float32": Tolerance(2e-6, 2e-5, "two reductions and exponentials in float32"),
    "attention/float16": Tolerance(4e-4, 2.5e-3, "output and softmax weights rounded to float16"),
    "attention/bfloat16": Tolerance(3e-3, 2e-2, "output and softmax weights rounded to bfloat16"),
    "layer/bfloat16": Tolerance(
        5e-3, 2.5e-2, "a decoder layer whose four products round their inputs to bfloat16; measured 3.2e-3, 1.3e-2"
    ),
    "int8": Tolerance(1.5e-2, 6e-2, "products of inputs rounded to 8 bits, by choice; measured 6.1e-3, 2.8e-2"),
    # margins below which a decision may differ from a reference that rounds elsewhere; `margin` reads them
    "margin/race": Tolerance(1e-13, 1e-12, "float64 race values; a line in strength has one rounding more"),
    "margin/decision": Tolerance(
        1e-5, 1e-4, "row `forward` through features, evaluator and strength; relative to the logits' RMS"
    ),
    "margin/nucleus": Tolerance(
        1e-6, 3e-5, "a running sum of probabilities in float32; measured 2.5e-5 on flat rows of 49,152 tokens"
    ),
    "margin/logit": Tolerance(1e-7, 2.4e-7, "adding a bias in float32 can round two logits to one (2 ulp)"),
}


def tolerance(row: str) -> Tolerance:
    """Return the named row of the table. KeyError with the known names otherwise."""
    if row not in TOLERANCES:
        raise KeyError(
            f"tolerance row must be one of {', '.join(TOLERANCES)}, got {row!r}; add a row to caw/testing.py"
        )
    return TOLERANCES[row]


def margin(row: str, scale: float) -> float:
    """Return the absolute margin of a decision between values of size `scale`."""
    return tolerance(row).peak * abs(scale)


def assert_close(actual: Any, expected: Any, row: str) -> None:
    """Raise AssertionError unless `actual` is as close to `expected` as the row allows.

    Tensors, arrays, numbers or nested lists of one shape. Infinite and NaN entries must be equal in place and sign;
    the finite rest is compared in float64, errors relative to the RMS of the expected finite values. Of float16 and
    bfloat16 tensors every element may be one step of its dtype off before its error counts for the peak: two sums of
    another order round to different sides of a border, and far from zero a step alone is more than any peak here.
    """
    limit = tolerance(row)
    a, e = _float64(actual), _float64(expected)
    if a.shape != e.shape:
        raise AssertionError(f"shapes differ: got {tuple(a.shape)}, expected {tuple(e.shape)}")
    finite = e.isfinite()
    if not torch.equal(a[~finite].nan_to_num(nan=0.5), e[~finite].nan_to_num(nan=0.5)):
        raise AssertionError("infinite or NaN entries differ")
    error, size = a[finite] - e[finite], e[finite]
    if not error.numel():
        return
    if not bool(error.isfinite().all()):
        raise AssertionError(f"{int((~error.isfinite()).sum())} entries are infinite or NaN where a number is expected")
    scale = float(size.square().mean().sqrt()) or 1.0
    beyond = (error.abs() - _step(actual, size)).clamp(min=0)
    rms, peak = float(error.square().mean().sqrt()) / scale, float(beyond.max()) / scale
    if rms > limit.rms or peak > limit.peak:
        at = int(beyond.argmax() if peak > limit.peak else error.abs().argmax())
        raise AssertionError(
            f"row {row!r}: relative rms {rms:.3g} (limit {limit.rms:.3g}), peak {peak:.3g} (limit {limit.peak:.3g}); "
            f"worst is {float(a[finite][at])!r}, expected {float(size[at])!r}"
        )


def _step(actual: Any, sizes: torch.Tensor) -> torch.Tensor:
    """The distance from each size to the next number of `actual`'s dtype, where that has 16 bits; else zeros."""
    dtype = actual.dtype if isinstance(actual, torch.Tensor) else None
    if dtype not in (torch.float16, torch.bfloat16):
        return torch.zeros_like(sizes)
    exponent = torch.frexp(sizes)[1].clamp(min=torch.frexp(torch.tensor(torch.finfo(dtype).tiny))[1])
    return torch.ldexp(torch.full_like(sizes, torch.finfo(dtype).eps / 2), exponent)


def _float64(x: Any) -> torch.Tensor:
    """Convert Python numbers straight to float64; torch would round them to float32 first."""
    return x.detach().cpu().double() if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=torch.float64)
