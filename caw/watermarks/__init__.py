"""Watermarks: each in one file, marking and detection together; the number formats are in `formats`."""

from caw.lazy import lazy_names

TYPE_CHECKING = False  # typing's own name costs an import
if TYPE_CHECKING:
    from caw.watermarks.base import Position, Signature, TokenScores, Watermark
    from caw.watermarks.exp import EXP
    from caw.watermarks.kgw import KGW
    from caw.watermarks.synthid import SynthID
    from caw.watermarks.unigram import Unigram
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            **dict.fromkeys(("Position", "Signature", "TokenScores", "Watermark"), "caw.watermarks.base"),
            "EXP": "caw.watermarks.exp",
            "KGW": "caw.watermarks.kgw",
            "SynthID": "caw.watermarks.synthid",
            "Unigram": "caw.watermarks.unigram",
        },
    )

__all__ = ["EXP", "KGW", "Position", "Signature", "SynthID", "TokenScores", "Unigram", "Watermark"]
