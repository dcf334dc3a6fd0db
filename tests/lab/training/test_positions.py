"""Stored positions: windows, parts, reading back, refusals."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from stored_positions import made_up_positions

from caw.evaluator import FeatureSpec
from caw.record import Record
from caw.testing import assert_close
from caw_lab.training.positions import Positions, part_of


def test_windows_stay_inside_a_document(tmp_path):
    positions = made_up_positions(tmp_path, documents=3, tokens=5)
    tokens = np.arange(15)
    assert positions.window(tokens, 0).tolist() == [*range(3, 8), *range(12, 17), *range(21, 26)]
    # three rows before the reference, one behind it: farther ones do not exist and are no other document's
    assert positions.window(tokens, -3).tolist() == [*range(0, 5), *range(9, 14), *range(18, 23)]
    assert positions.window(tokens, 2).tolist() == [5, 6, 7, 8, -1, 14, 15, 16, 17, -1, 23, 24, 25, 26, -1]
    assert (positions.window(tokens, 3) == -1).sum() == 6


def test_features_are_assembled_records(tmp_path):
    positions = made_up_positions(tmp_path, documents=2, tokens=7)
    spec = FeatureSpec(previous=2, next=2, k=13, transform="gap")
    records = [positions.record(positions.window(np.array([6]), j)) for j in (-2, -1, 0, 1)]
    expected = spec.assemble([*records, Record.empty(1, torch.device("cpu"))])
    assert_close(positions.features(spec, np.array([6])), expected, "exact")
    everything = positions.features(spec, np.arange(14))
    assert everything.shape == (14, spec.size) and torch.equal(everything[6:7], expected)


def test_split_is_by_document_and_has_its_shares():
    parts = [part_of(f"gsm8k/train/{i}") for i in range(20000)]
    counts = Counter(parts)
    # 5 standard deviations of a binomial share: 0.016
    assert abs(counts["train"] / 20000 - 0.70) < 0.016 and abs(counts["test"] / 20000 - 0.15) < 0.013
    assert parts == [part_of(f"gsm8k/train/{i}") for i in range(20000)]
    # pinned: weights that ship were trained on one side of it
    assert [part_of(f"gsm8k/train/{i}") for i in range(8)] == [
        "train", "train", "train", "train", "train", "train", "train", "validation"
    ]  # fmt: skip


def test_open_refuses(tmp_path):
    with pytest.raises(FileNotFoundError, match="complete folder of stored positions"):
        Positions.open(tmp_path)
    positions = made_up_positions(tmp_path, documents=2, tokens=3)
    meta = {**positions.meta, "version": 99}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="must be version 1"):
        Positions.open(tmp_path)


def test_an_interrupted_pass_is_not_read(tmp_path):
    made_up_positions(tmp_path, documents=2, tokens=3)
    Positions.create(tmp_path, np.array([7, 7]), 6)  # begins again, never closes
    with pytest.raises(FileNotFoundError, match="run the pass again"):
        Positions.open(tmp_path)
