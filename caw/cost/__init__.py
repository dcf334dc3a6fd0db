"""What watermarking costs: ways to generate, measured in turns in one run, relative to plain decoding."""

from typing import TYPE_CHECKING

from caw.lazy import lazy_names

if TYPE_CHECKING:
    from caw.cost.cases import BenchmarkSettings, run
    from caw.cost.equality import DifferentTokensError
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("BenchmarkSettings", "run"), "caw.cost.cases"),
            "DifferentTokensError": "caw.cost.equality",
        },
    )

__all__ = ["BenchmarkSettings", "DifferentTokensError", "run"]
