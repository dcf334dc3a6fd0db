"""What is done to texts before they are tokenised."""

from typing import Any

import pytest

from caw.detection import detect
from caw.detection.normalize import normalize_text, trim_prefix
from caw.watermarks import KGW


@pytest.mark.parametrize(
    "steps, text, expected", [
        ((), "e\u0301 \u00a0", "e\u0301 \u00a0"), (("nfc",), "e\u0301", "\u00e9"),
        (("nfkc",), "\ufb01ve\u00a0\u2460", "five 1"),
        (("spaces",), " one\u00a0two\u200b\r\nthree \t\n", "one two\nthree"),
        (("quotes",), "“a” – ‘b’…", "\"a\" - 'b'..."),
        (("nfc", "spaces", "quotes"), "\u201ce\u0301\u201d\u2003", '"\u00e9"'),
    ],
)  # fmt: skip
def test_steps(steps: tuple[str, ...], text: str, expected: str) -> None:
    assert normalize_text(text, steps) == expected
    assert normalize_text(expected, steps) == expected


def test_prefix() -> None:
    assert trim_prefix("Question: why?\nBecause", "Question: why?") == "\nBecause"
    assert trim_prefix("  <|user|>why<|end|>Because", "<|user|>why<|end|>\n") == "Because"
    assert trim_prefix("Because", "Question") == "Because" and trim_prefix(" x", "") == " x"


class Letters:
    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        return {"input_ids": [[ord(c) for c in text] for text in texts]}


def test_the_detector_uses_them() -> None:
    watermark = KGW(key=1)
    plain = detect("because it is", Letters(), watermark)
    assert detect("because\u00a0it is\u200b", Letters(), watermark, normalize=["spaces"]) == plain
    assert detect("because\u00a0it is\u200b", Letters(), watermark, normalize="nfc,spaces") == plain
    trimmed = detect("Why?because it is", Letters(), watermark, prefix="Why? ")
    assert trimmed.token_ids == plain.token_ids
    ids = [5, 6, *plain.token_ids]
    assert detect(ids, None, watermark, prefix=[5, 6]) == plain
    assert detect(list(plain.token_ids), None, watermark, prefix=[5, 6]) == plain
    with pytest.raises(
        ValueError, match="normalize must name steps of nfc, nfkc, spaces, quotes, none, readings, got 'lower'"
    ):
        detect("x", Letters(), watermark, normalize=("lower",))
