"""Watermarks: how a mark is put in and how it is read, side by side in one file each."""

from caw.watermarks.base import Position, TokenScores, Watermark
from caw.watermarks.exp import EXP
from caw.watermarks.kgw import KGW
from caw.watermarks.synthid import SynthID
from caw.watermarks.unigram import Unigram

__all__ = ["EXP", "KGW", "Position", "SynthID", "TokenScores", "Unigram", "Watermark"]
