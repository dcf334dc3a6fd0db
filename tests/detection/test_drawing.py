"""A text drawn from its tokens is the text, and its stretches lean as its tokens score."""

import sys
import unicodedata

import pytest
from tiny import tiny_tokenizer

import caw
from caw.detection.drawing import stretches
from caw.io.show import visible
from caw.testing import assert_close

TEXTS = [
    "plain words", "", "x", " leading and  double spaces\n\nand lines\t", "日本語 and ümläute", "a\ufffdb \ufffd\ufffd",
    "👨‍👩‍👧 family", "مرحبا right to left \u202e", "zero\u200bwidth",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_stretches_join_to_the_text_and_have_each_token_once(text: str) -> None:
    tokenizer, mark = tiny_tokenizer(), caw.KGW(key=3)
    result = caw.detect(text, tokenizer, mark, normalize="none")  # another reading may have other characters
    drawn = list(stretches(result, mark, tokenizer))
    assert "".join(one.text for one in drawn) == visible(text)
    assert [i for one in drawn for i in one.tokens] == list(range(result.num_tokens))
    null, variance = mark.null_moments
    for one in drawn:
        scores = [s for i in one.tokens if (s := result.token_scores[i]) is not None]
        assert (one.lean is None) == (not scores)
        if scores:
            assert_close(one.lean, (sum(scores) / len(scores) - null) / variance**0.5, "tail")


def test_nothing_in_a_drawing_is_invisible_or_turns_what_follows_around() -> None:
    """A text could be drawn as another than the one that was tested; Unicode itself says which signs do that."""
    hidden = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) == "Cf"]
    turning = [c for c in hidden if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI",
                                                                     "FSI", "PDI")]  # fmt: skip
    assert len(turning) == 9 and all(visible(c) == f"[U+{ord(c):04X}]" for c in turning)
    left = {unicodedata.name(c).split()[0] for c in hidden if visible(c) == c}
    assert left <= {"ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN"}, "signs that have ink, whatever their class"
    assert visible("a\u200db\u00ad\ufeff\U000e0041\u3164") == "a[U+200D]b[U+00AD][U+FEFF][U+E0041][U+3164]"
    assert visible("\u0645\u0631 \u2764\ufe0f \u65e5") == "\u0645\u0631 \u2764\ufe0f \u65e5"


def test_control_characters_become_pictures_and_ids_numbers() -> None:
    mark = caw.KGW(key=3)
    result = caw.detect("a\x1b[0mb", tiny_tokenizer(), mark)
    assert "\x1b" not in "".join(one.text for one in stretches(result, mark, tiny_tokenizer()))
    result = caw.detect([7, 300], None, mark)
    assert [one.text for one in stretches(result, mark, None)] == ["7 ", "300 "]
