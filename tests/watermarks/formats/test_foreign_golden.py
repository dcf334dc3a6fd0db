"""Green lists and detector numbers of lm-watermarking and SBW, as their own code gave them.

The file is frozen; tests/watermarks/formats/make_foreign_golden.py of commit 3b3265db wrote it, with sbw 1.0.0.
lists: for each scheme, key and context, the green tokens of a small vocabulary as an integer in hex, bit t = token t.
colors: of each n-gram of one text, in its order (1 = green); scored and green: how many different ones count.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import caw
from caw.testing import assert_close
from caw.watermarks import KGW

GOLDEN = json.loads(Path(__file__).with_name("foreign_golden.json").read_text())
CASES = [pytest.param(row, id=f"{row['format']}-{row['scheme']}-{row['key']}") for row in GOLDEN["rows"]]
IDS = [(104729 * i * i + 613 * i + 11) % GOLDEN["large"] for i in range(60)]
TEXT = IDS + IDS[10:30] + [9, 9, 9, 9, 9, 9, 9]


def watermark(row: dict[str, Any], vocab_size: int) -> KGW:
    options = {"gamma": GOLDEN["gamma"], "seeding": row["scheme"], "format": row["format"]}
    return KGW(key=row["key"], vocab_size=vocab_size, **options)


def test_every_scheme_is_there() -> None:
    assert {(row["format"], row["scheme"]) for row in GOLDEN["rows"]} == {
        *(("lm-watermarking", scheme) for scheme in ("minhash", "skipgram", "selfhash")),
        *(("sbw", scheme) for scheme in ("lefthash", "simple_4", "minhash", "skipgram", "selfhash")),
    }


def contexts(width: int) -> list[list[int]]:
    return [[(7919 * i * i + 31 * i + 5 * row) % GOLDEN["small"] for i in range(width)] for row in range(1, 4)]


@pytest.mark.parametrize("row", CASES)
def test_lists(row: dict[str, Any]) -> None:
    mark = watermark(row, GOLDEN["small"])
    for context, packed in zip(contexts(mark.window), row["lists"], strict=True):
        expected = [bool(int(packed, 16) >> token & 1) for token in range(GOLDEN["small"])]
        assert mark.green_vocabulary(torch.tensor([context]), GOLDEN["small"])[0].tolist() == expected


@pytest.mark.parametrize("row", CASES)
def test_detector(row: dict[str, Any]) -> None:
    mark = watermark(row, GOLDEN["large"])
    scores = mark.score_tokens(torch.tensor(TEXT))
    assert "".join(str(int(v)) for v in scores.values[scores.scored]) == row["colors"]
    found = caw.detect(TEXT, None, mark, mode="compat")
    assert (found.num_scored, found.score) == (row["scored"], row["green"])
    assert_close(found.z_score, row["z"], "float64")
