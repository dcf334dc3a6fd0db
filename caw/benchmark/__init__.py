"""Cost of watermarking: ways to generate, measured in turns in one run, relative to plain decoding."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.benchmark.cases import BenchmarkSettings, run
    from caw.benchmark.equality import DifferentTokensError
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("BenchmarkSettings", "run"), "caw.benchmark.cases"),
            "DifferentTokensError": "caw.benchmark.equality",
        },
    )

__all__ = ["BenchmarkSettings", "DifferentTokensError", "run"]
