"""What texts bring, as tensors: neutral where nobody asks, in place, and moved with the rows."""

from __future__ import annotations

import torch

import caw
from caw.decoding.row_settings import RowSettings
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
    assert rows.sampled.tolist() == [False, True, True]
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
