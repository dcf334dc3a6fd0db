"""Watermarks: their parameters and what strength does, one file each.

`scheme.py` says what the format of a watermark has to answer. `formats/` holds the formats, each with both sides: how
it marks and how a token is scored.
"""

from caw.watermarks.base import Position, TokenScores, Watermark
from caw.watermarks.exp import EXP
from caw.watermarks.kgw import KGW
from caw.watermarks.synthid import SynthID
from caw.watermarks.unigram import Unigram

__all__ = ["EXP", "KGW", "Position", "SynthID", "TokenScores", "Unigram", "Watermark"]
