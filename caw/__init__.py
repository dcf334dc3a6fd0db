"""caw: watermarks the output of language models without hurting it, and detects it without the model."""

from pathlib import Path

# `python -m pytest` from a checkout imports this folder, not the installed package; the kernels lie beside it then
if not (Path(__file__).parent / "triton_kernels").exists() and (Path(__file__).parents[1] / "setup.py").exists():
    __path__.append(str(Path(__file__).parents[1]))

from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold
from caw.watermarks import EXP, KGW, Unigram

__version__ = "0.1.0"
__all__ = [
    "EXP",
    "KGW",
    "CapacityPolicy",
    "EntropyThreshold",
    "FixedStrength",
    "LogitDeltaThreshold",
    "Unigram",
    "__version__",
]
