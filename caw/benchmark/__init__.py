"""What watermarking costs: ways to generate, measured in turns in one run, relative to plain decoding."""

from caw.benchmark.cases import BenchmarkSettings, run
from caw.benchmark.compare import Change, compare
from caw.benchmark.equality import DifferentTokensError

__all__ = ["BenchmarkSettings", "Change", "DifferentTokensError", "compare", "run"]
