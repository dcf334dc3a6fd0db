"""Settings of rows as tensors, and the watermark of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from decoding.mixing import FOREIGN, PROMPTS, ROWS, texts
from decoding.running import make_decoder, run
from decoding.test_step import POLICIES, WATERMARKS

import caw
from caw import ops
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.row_tensors import RowTensors
from caw.decoding.sampling import noise_key
from caw.watermarks import Watermark

CPU = torch.device("cpu")
MARKS: list[Watermark | None] = [caw.EXP(key=2**64 - 1), None, caw.KGW(key=1, format="transformers")]


def started() -> RowTensors:
    rows = RowTensors.empty(3, 3, CPU)
    settings = [
        RowSettings(do_sample=True, temperature=0.5, top_k=3, top_p=0.75, seed=9),
        RowSettings(temperature=0.5, top_k=3, top_p=0.75, seed=9, min_new_tokens=4),
        RowSettings(do_sample=True, strength_factor=0.5, margin=1.5),
    ]
    rows.start(torch.tensor([2, 0, 1]), settings, [(4, 5), (), (6,)], MARKS)
    return rows


def test_rows_that_do_not_sample_are_neutral() -> None:
    rows = started()
    assert rows.sampled.tolist() == rows.raced.tolist() == [False, True, True]
    assert rows.noise_keys.tolist() == [0, noise_key(0), noise_key(9)]
    assert rows.temperatures.tolist() == [1.0, 1.0, 0.5]
    assert rows.top_ks.tolist() == [0, 0, 3]
    assert rows.tails.tolist() == [-1.0, -1.0, 0.25]
    assert rows.minima.tolist() == [4, 0, 0]
    assert rows.factors.tolist() == [1.0, 0.5, 1.0] and rows.margins.tolist() == [0.0, 1.5, 0.0]
    assert rows.keys.tolist() == [0, 0, -1]
    assert rows.marks == [MARKS[1], MARKS[2], MARKS[0]]


def test_ends_of_each_row() -> None:
    rows = started()
    assert rows.ends.tolist() == [[-1, -1, -1], [6, 6, 6], [4, 5, 4]]
    assert rows.ended(torch.tensor([[4, 5], [4, 6], [5, 6]])).tolist() == [[False, False], [False, True], [True, False]]
    masked = rows.without_ends(torch.zeros(3, 8), torch.tensor([True, False, True]))
    assert masked.isneginf().nonzero().tolist() == [[2, 4], [2, 5]]
    assert rows.without_ends(torch.zeros(3, 8), torch.ones(3, dtype=torch.bool)).isneginf().sum() == 3


def test_rows_keep_their_memory() -> None:
    rows = started()
    before = [tensor.data_ptr() for tensor in rows.tensors]
    rows.start(torch.tensor([1]), [RowSettings(do_sample=True, top_k=7)], [(1, 2, 3)], [None])
    assert rows.top_ks.tolist() == [0, 7, 3] and rows.ends[1].tolist() == [1, 2, 3] and rows.factors[1] == 1
    rows.keep(torch.tensor([1, 2]))
    assert [tensor.data_ptr() for tensor in rows.tensors] == before
    assert rows.top_ks.tolist() == [7, 3] and rows.marks == [None, MARKS[0]]
    assert all(tensor.shape[0] == 2 for tensor in rows.tensors)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", [*WATERMARKS, *FOREIGN])
def test_a_text_is_marked_with_its_own_key(llama: Any, name: str, fixed: bool) -> None:
    """As by the watermark that was made with this key; a text without one, by the call's."""
    watermark = (WATERMARKS | FOREIGN)[name]
    policy, keys = POLICIES["window11"](llama), [None, 2**62 + 12345, 77, None, 77, 2**62 + 12345]
    rows = [RowSettings(max_new_tokens=8, key=key) for key in keys]
    together = run(llama, PROMPTS, watermark, policy, rows=rows, max_new_tokens=8, fixed=fixed)
    for ids, key, tokens in zip(PROMPTS, keys, together.tokens, strict=True):
        own = watermark if key is None else dataclasses.replace(watermark, key=key)
        assert run(llama, [ids], own, policy, max_new_tokens=8).tokens == [tokens]
    plain = run(llama, PROMPTS, watermark, policy, max_new_tokens=8)
    assert plain.tokens != together.tokens, "a key makes a difference"


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", "scale"])
def test_keys_by_plain_pytorch_and_by_the_kernel(llama: Any, watermark: str) -> None:
    settings: dict[str, Any] = {"rows": ROWS, "max_new_tokens": 14, "slots": 2}
    policy = POLICIES["window11"](llama)
    by_kernel = run(llama, PROMPTS, WATERMARKS[watermark], policy, **settings)
    assert texts(run(llama, PROMPTS, WATERMARKS[watermark], policy, kernels=ops.references(), **settings)) == texts(
        by_kernel
    )


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
    marks = [decoder.waiting.marks.under(key) for key in (None, 5, 77, 5)]
    assert marks[1] is marks[3] and marks[1] != marks[2]
    assert len({id(mark.scheme.lists) for mark in marks}) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("watermark", "key", "message"),
    [
        (None, 98765, "a text with a key of its own needs a watermark, got None; leave the key out"),
        (caw.EXP(key=1), 2**64, r"key must be in \[0, 2\*\*64\), got an integer outside it"),
        (caw.KGW(key=1, format="transformers"), 2**63, r"requires a key below 2\*\*63, got a greater one"),
    ],
)
def test_keys_that_a_watermark_cannot_have(llama: Any, watermark: Any, key: Any, message: str) -> None:
    row = RowSettings(max_new_tokens=5, key=key)
    decoder = make_decoder(llama, watermark, limits=RowLimits.of([row], ()))
    with pytest.raises(ValueError, match=message):
        decoder.run([Request([1, 2], 3, row)])
    assert str(key) not in repr(row)
