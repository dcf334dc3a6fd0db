"""The page on one text: its sentence, its colours, its curve, and that nothing in a text becomes markup."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caw.detection import Detector
from caw.detection.html_report import once_in, running_evidence, verdict, write_html
from caw.detection.weights import TokenWeights
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID


class Evil:
    """A tokenizer whose tokens are markup."""

    def __call__(self, texts: str | list[str], **options: Any) -> dict[str, Any]:
        ids = [[ord(c) for c in t] for t in texts]
        return {"input_ids": ids[0] if isinstance(texts, str) else ids}

    def decode(self, ids: list[int], **options: Any) -> str:
        return "".join(f"<script>{i}</script>\x1b" for i in ids)

    def batch_decode(self, many: list[list[int]], **options: Any) -> list[str]:
        return [self.decode(ids) for ids in many]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("watermark", [KGW(key=1), EXP(key=1)], ids=["kgw", "exp"])
def test_page(watermark: Any, tmp_path: Path) -> None:
    detector = Detector(Evil(), watermark)
    results = [("<b>one</b>", detector("some words and some more words")), ("empty", detector(""))]
    write_html(tmp_path / "page.html", results, detector)  # type: ignore[arg-type]
    page = (tmp_path / "page.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert not reader.open and "script" not in reader.tags and "b" not in reader.tags and "\x1b" not in page
    assert reader.tags.count("article") == 2 and reader.tags.count("svg") == 1
    assert "This text is empty: nothing can be said about it" in page and "It does not show" in page


@pytest.mark.parametrize(
    "options",
    [{}, {"weights": TokenWeights(np.full(300, 7))}, {"watermark": KGW(key=2, payload_bits=8)},
     {"watermark": SynthID("k", depth=8)}, {"mode": "compat"}, {"mid_p": True}],
    ids=["plain", "weighted", "payload", "synthid", "compat", "mid-p"],
)  # fmt: skip
def test_the_curve_ends_at_the_p_value(options: dict[str, Any]) -> None:
    detector = Detector(**{"tokenizer": None, "watermark": KGW(key=2), **options})
    result = detector(np.random.default_rng(0).integers(0, 300, 120).tolist())
    at, evidence = running_evidence(result, detector)  # type: ignore[arg-type]
    assert at[0] == 0 and evidence[0] == 0 and at[-1] == 120
    assert_close(10 ** -evidence[-1], result.p_value, "weighted")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "p, expected", [
        (0.9, "about 9 in 10"), (0.05, "about 1 in 20"), (1 / 2040, "about 1 in 2,000"),
        (3.2e-7, "about 1 in 3,100,000"), (0.0, "fewer than 1 in a million billion"),
    ],
)  # fmt: skip
def test_frequencies(p: float, expected: str) -> None:
    assert once_in(p).startswith(expected)


@pytest.mark.parametrize("watermark", [KGW(key=1), EXP(key=1), SynthID("k", depth=8), EXP(key=1, format="vllm-dual")])
def test_unmarked_tokens_lean_neither_way(watermark: Any, tmp_path: Path) -> None:
    """The mean lean of a colour's tokens, from their titles: as many shares for as against, in the null's units."""
    detector = Detector(None, watermark)
    result = detector(np.random.default_rng(1).integers(0, 5000, 200).tolist())
    write_html(tmp_path / "page.html", [("ids", result)], detector)  # type: ignore[list-item]
    page = (tmp_path / "page.html").read_text()
    sides = {side: page.count(f"var(--{side}) ") for side in ("for", "against")}
    assert min(sides.values()) > 30 and sum(sides.values()) > 190
    null, variance = watermark.null_moments
    scores = np.array([s for s in result.token_scores if s is not None])  # type: ignore[union-attr]
    assert abs(scores.mean() - null) < 4.9 * np.sqrt(variance / len(scores))
    assert 0.4 < scores.var() / variance < 2.5


def test_sentences() -> None:
    detector = Detector(None, EXP(key=1))
    assert "empty" in verdict(detector([[]])[0])  # type: ignore[index]
    assert verdict(detector(list(range(50)))).startswith("No mark was found")  # type: ignore[arg-type]
    compat = Detector(None, KGW(key=1, format="transformers", vocab_size=60), mode="compat")
    assert "its p-value may be too small" in verdict(compat(list(range(50))))  # type: ignore[arg-type]
    marked = Detector(None, EXP(key=1), fpr=0.9)(list(range(50)))
    assert "carries the mark: about" in verdict(marked)  # type: ignore[arg-type]
