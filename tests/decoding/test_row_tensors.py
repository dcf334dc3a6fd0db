"""Keys of single texts in one batch."""

import dataclasses
from typing import Any

import pytest
from decoding.mixing import FOREIGN, PROMPTS
from decoding.running import make_decoder, run
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings

STEPS: dict[str, Any] = {"eager": {}, "fixed": {"fixed": True}, "plain PyTorch": {"kernels": ops.references()}}


@pytest.mark.parametrize("name, how", pairwise([*WATERMARKS, *FOREIGN], STEPS))
def test_a_text_is_marked_with_its_own_key(llama: Any, name: str, how: str) -> None:
    """As by the watermark that was made with this key; a text without one, by the call's."""
    watermark = (WATERMARKS | FOREIGN)[name]
    policy, keys = POLICIES["window11"](llama), [None, 2**62 + 12345, 77, None, 77, 2**62 + 12345]
    rows = [RowSettings(max_new_tokens=8, key=key) for key in keys]
    together = run(llama, PROMPTS, watermark, policy, rows=rows, max_new_tokens=8, **STEPS[how])
    for ids, key, tokens in zip(PROMPTS, keys, together.tokens, strict=True):
        own = watermark if key is None else dataclasses.replace(watermark, key=key)
        assert run(llama, [ids], own, policy, max_new_tokens=8).tokens == [tokens]
    plain = run(llama, PROMPTS, watermark, policy, max_new_tokens=8)
    assert plain.tokens != together.tokens, "a key makes a difference"


def test_layer_keys_of_a_row(llama: Any) -> None:
    """SynthID takes a list of them, as many as it has layers."""
    watermark, own = FOREIGN["synthid"], (5, 6, 8, 11, 13, 17)
    rows = [RowSettings(max_new_tokens=8, key=key) for key in (own, None)]
    together = run(llama, PROMPTS[:2], watermark, rows=rows, max_new_tokens=8)
    alone = run(llama, PROMPTS[:1], dataclasses.replace(watermark, key=own), max_new_tokens=8)
    assert together.tokens[0] == alone.tokens[0]
    with pytest.raises(ValueError, match="key must have 6 layer keys, got 2; give the same number"):
        run(llama, PROMPTS[:1], watermark, rows=[RowSettings(max_new_tokens=8, key=(5, 6))], max_new_tokens=8)


def test_many_keys_draw_each_list_once(llama: Any) -> None:
    decoder = make_decoder(llama, FOREIGN["transformers"], limits=RowLimits(max_new_tokens=8))
    marks = [decoder.plan.marks.under(key) for key in (None, 5, 77, 5)]
    assert marks[1] is marks[3] and marks[1] != marks[2]
    assert len({id(mark.scheme.lists) for mark in marks}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("watermark", "key", "message"), [
    (None, 98765, "a text with a key of its own needs a watermark, got None; leave the key out"),
    (caw.EXP(key=1), 2**64, r"key must be in \[0, 2\*\*64\), got an integer outside it"),
    (caw.KGW(key=1, format="transformers"), 2**63, r"requires a key below 2\*\*63, got a greater one"),
])  # fmt: skip
def test_keys_that_a_watermark_cannot_have(llama: Any, watermark: Any, key: Any, message: str) -> None:
    row = RowSettings(max_new_tokens=5, key=key)
    decoder = make_decoder(llama, watermark, limits=RowLimits.of([row], ()))
    with pytest.raises(ValueError, match=message):
        decoder.run([Request([1, 2], 3, row)])
    assert str(key) not in repr(row)
