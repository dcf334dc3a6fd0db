"""Green lists and detector numbers of lm-watermarking and SBW, as their own code (make_foreign_golden.py) gave them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import caw
from caw.testing import assert_close
from caw.watermarks import KGW

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "foreign_golden.json").read_text())
CASES = [pytest.param(row, id=f"{row['format']}-{row['scheme']}-{row['key']}") for row in GOLDEN["rows"]]
maker = runpy.run_path(str(FOLDER / "make_foreign_golden.py"))


def watermark(row: dict[str, Any], vocab_size: int) -> KGW:
    options = {"gamma": GOLDEN["gamma"], "seeding": row["scheme"], "format": row["format"]}
    return KGW(key=row["key"], vocab_size=vocab_size, **options)


def test_every_scheme_is_there() -> None:
    assert {(row["format"], row["scheme"]) for row in GOLDEN["rows"]} == {
        *(("lm-watermarking", scheme) for scheme in ("minhash", "skipgram", "selfhash")),
        *(("sbw", scheme) for scheme in ("lefthash", "simple_4", "minhash", "skipgram", "selfhash")),
    }


@pytest.mark.parametrize("row", CASES)
def test_lists(row: dict[str, Any]) -> None:
    mark = watermark(row, GOLDEN["small"])
    for context, packed in zip(maker["contexts"](mark.window), row["lists"], strict=True):
        expected = [bool(int(packed, 16) >> token & 1) for token in range(GOLDEN["small"])]
        assert mark.green_vocabulary(torch.tensor([context]), GOLDEN["small"])[0].tolist() == expected


@pytest.mark.parametrize("row", CASES)
def test_detector(row: dict[str, Any]) -> None:
    ids = maker["text"]()
    mark = watermark(row, GOLDEN["large"])
    scores = mark.score_tokens(torch.tensor(ids))
    assert "".join(str(int(v)) for v in scores.values[scores.scored]) == row["colors"]
    found = caw.detect(ids, None, mark, mode="compat")
    assert (found.num_scored, found.score) == (row["scored"], row["green"])
    assert_close(found.z_score, row["z"], "float64")
