"""Where the marked part is, and that nothing is reported where there is none."""

from typing import Any

import numpy as np
import pytest
import torch

from caw.detection import Detector
from caw.detection.detector import locate
from caw.watermarks import EXP, KGW, SynthID, Watermark


def draw(watermark: Watermark, ids: list[int], count: int, share: float, rng: np.random.Generator) -> list[int]:
    for _ in range(count):
        options = rng.integers(0, 5000, 30)
        if rng.random() < share:
            streams = torch.tensor([[*ids[-watermark.window :], int(o)] for o in options])
            scores = [float(watermark.score_tokens(row).values[-1]) for row in streams]
            ids.append(int(options[int(np.argmax(scores))]))
        else:
            ids.append(int(options[0]))
    return ids


@pytest.mark.parametrize("watermark", [
    KGW(key=1), EXP(key=1, context_width=2), SynthID("k", ngram_len=3, reading="mean"),
], ids=["kgw", "exp", "synthid"])  # fmt: skip
def test_one_marked_part_is_found_with_its_ends(watermark: Watermark) -> None:
    rng = np.random.default_rng(0)
    ids = draw(watermark, [1, 2], 248, 0, rng)
    ids = draw(watermark, ids, 80, 0.7, rng)
    ids = draw(watermark, ids, 250, 0, rng)
    (region,) = locate(ids, Detector(None, watermark))
    assert abs(region.start - 250) <= 12 and abs(region.end - 330) <= 12
    assert region.p_value < 1e-3 and (region.start_char, region.end_char) == (None, None)


class Characters:
    """A tokenizer of one token a character, whose offsets count characters, not bytes."""

    def __call__(self, text: Any, **options: Any) -> dict[str, Any]:
        if isinstance(text, list):
            return {"input_ids": [self(t)["input_ids"] for t in text]}
        return {"input_ids": list(map(ord, text)), "offset_mapping": [(i, i + 1) for i in range(len(text))]}


@pytest.mark.parametrize("kind", [list, np.array])
def test_character_spans_behind_a_prefix_of_ids(kind: Any) -> None:
    """The spans were those of the text with its prefix, the tokens those without: places were off by the prefix."""
    watermark, rng = KGW(key=1), np.random.default_rng(0)
    ids = [0x4E00 + i for i in draw(watermark, [1], 100, 0, rng)]  # three bytes each
    ids = draw(watermark, ids, 60, 0.9, rng)
    prefix = "Frage: \u00e4\U0001f600? "
    text = prefix + "".join(map(chr, ids))
    detector = Detector(Characters(), watermark, prefix=kind([ord(c) for c in prefix]))
    (region,) = locate(text, detector)
    assert list(map(ord, text[region.start_char : region.end_char])) == ids[region.start : region.end]
    (alone,) = locate(text[len(prefix) :], Detector(Characters(), watermark))
    assert (region.start, region.end, region.p_value) == (alone.start, alone.end, alone.p_value)
    assert (region.start_char, region.end_char) == (alone.start + len(prefix), alone.end + len(prefix))
    (without,) = locate(text[len(prefix) :], detector)  # a text that does not begin with the prefix
    assert without == alone


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="expected one text, got a list of 2"):
        locate(["a", "b"], Detector(Characters(), KGW(key=1)))
    with pytest.raises(ValueError, match="mode 'exact' without mid_p, weights"):
        locate([1, 2], Detector(None, KGW(key=1), mode="compat"))
    for watermark in (KGW(key=1, payload_bits=4), EXP(key=1, payload=3, payload_bits=4)):
        with pytest.raises(ValueError, match="without mid_p, weights and payload_bits"):
            locate([1, 2], Detector(None, watermark))
