"""A text split into the stretches that its tokens wrote, each with its evidence for or against the mark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caw.detection.family import part_of
from caw.detection.result import DetectionResult
from caw.io.show import visible
from caw.io.token_texts import token_texts
from caw.watermarks import Signature

INCOMPLETE = "\ufffd"  # what decoders show of a letter whose bytes are not all there
# tokens that are tried together for a whole letter. A text may have such signs itself, of three bytes each, and no end:
# so many are drawn together
MOST = 12


@dataclass(frozen=True)
class Stretch:
    """A piece of text. tokens: indices of the tokens that wrote it, several if a character spans more than one.

    lean: mean score above the unmarked mean, in standard deviations: positive for the mark, negative against it; None
    if no token counts.
    """

    text: str
    tokens: range
    lean: float | None


def stretches(result: DetectionResult, watermark: Signature, tokenizer: Any) -> Iterator[Stretch]:
    """Yield the text of a result's tokens; numbers if the tokenizer (or None) cannot decode them."""
    null, variance = part_of(watermark, result.family).null_moments
    spread = float(np.sqrt(variance))
    for text, tokens in _letters(result.token_ids, tokenizer):
        scores = [s for s in (result.token_scores[i] for i in tokens) if s is not None]
        lean = (sum(scores) / len(scores) - null) / spread if scores else None
        yield Stretch(visible(text), tokens, lean)


def _letters(ids: Sequence[int], tokenizer: Any) -> Iterator[tuple[str, range]]:
    """Yield whole characters and the indices of the tokens that wrote them."""
    if not hasattr(tokenizer, "batch_decode"):
        yield from ((f"{token} ", range(i, i + 1)) for i, token in enumerate(ids))
        return
    different = sorted(set(ids)) or [0]  # decoders make one text of no list
    texts = dict(zip(different, token_texts(tokenizer, different), strict=True))
    start = 0
    while start < len(ids):
        end, text = start + 1, texts[ids[start]]
        while text.endswith(INCOMPLETE) and end < min(len(ids), start + MOST):
            end += 1
            text = tokenizer.decode(list(ids[start:end]), clean_up_tokenization_spaces=False)
        yield text, range(start, end)
        start = end
