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
            "caw.watermarks.base": "Position Signature TokenScores Watermark",
            "caw.watermarks.exp": "EXP",
            "caw.watermarks.kgw": "KGW",
            "caw.watermarks.synthid": "SynthID",
            "caw.watermarks.unigram": "Unigram",
        },
    )

__all__ = ["EXP", "KGW", "Position", "Signature", "SynthID", "TokenScores", "Unigram", "Watermark"]
