"""The demo: its numbers are those of the library, it shows whatever happened, and its page needs nothing else."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from demo_run import shown
from html_reader import Reader
from rich.cells import cell_len
from rich.console import Console
from tiny import save_tiny
from typer.testing import CliRunner

import caw
from caw.cli import app
from caw.demo.outputs import Demo, DemoToken, pieces, run_demo
from caw.demo.page import page
from caw.demo.terminal import render
from caw.demo.wording import facts, legend
from caw.evaluator import Evaluator, FeatureSpec
from caw.io.show import format_p, visible

PROMPT = "the <b>sky</b> & <script>alert('1')</script>"
TOKENS = 60


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return caw.load_model(save_tiny(tmp_path_factory.mktemp("model")), dtype="float32")  # the same tokens everywhere


@pytest.fixture(scope="module")
def policy() -> caw.CapacityPolicy:
    """Random weights, and as threshold the middle of what they say, so that every kind of token occurs."""
    torch.manual_seed(3)
    return caw.CapacityPolicy(Evaluator(FeatureSpec(), hidden=8), theta=0.5)


@pytest.fixture(scope="module")
def four(loaded: tuple[Any, Any], policy: caw.CapacityPolicy) -> Demo:
    torch.set_num_threads(1)
    model, tokenizer = loaded
    watermark = caw.KGW(key=1, delta=5.0)
    out = caw.generate(model, tokenizer, PROMPT, watermark=watermark, policy=policy, max_new_tokens=TOKENS, chat=True)
    assert out.trace is not None
    middle = sorted(out.trace[0].capacity)[TOKENS // 2]
    policy = caw.CapacityPolicy(policy.network, theta=middle, beta=60.0)
    return run_demo(model, tokenizer, PROMPT, watermark, policy, max_new_tokens=TOKENS)


def test_greedy_texts_are_those_of_the_library(loaded: tuple[Any, Any], four: Demo) -> None:
    model, tokenizer = loaded
    runs: list[tuple[Any, Any]] = [
        (None, None), (four.watermark, caw.FixedStrength(1.0)), (four.watermark, four.policy),
    ]  # fmt: skip
    for text, (watermark, policy) in zip(four.texts[:3], runs, strict=True):
        out = caw.generate(
            model, tokenizer, PROMPT, watermark=watermark, policy=policy, max_new_tokens=TOKENS, chat=True
        )
        assert out.trace is not None
        assert "".join(t.text for t in text.tokens) == out.texts[0]
        assert text.detection == caw.detect(out.texts[0], tokenizer, four.watermark)
        assert text.changed == sum(c > 0 for c in out.trace[0].choice)
        theta = four.policy.theta
        assert text.protected == (sum(c > theta for c in out.trace[0].capacity) if policy is four.policy else 0)
    assert [t.title for t in four.texts] == ["plain", "KGW", "CAW", "drawn"]
    assert four.texts[0].changed == 0 < four.texts[1].changed
    assert not four.texts[0].detection.is_watermarked and four.texts[1].detection.is_watermarked
    assert all(t.tokens_per_second > 0 for t in four.texts)


def test_the_drawn_text_is_that_of_the_recommended_watermark(loaded: tuple[Any, Any], four: Demo) -> None:
    model, tokenizer = loaded
    race = caw.Recommended(1)
    out = caw.generate(
        model, tokenizer, PROMPT, watermark=race, do_sample=True, temperature=0.7, max_new_tokens=TOKENS, chat=True
    )
    text = four.texts[3]
    assert "".join(t.text for t in text.tokens) == out.texts[0]
    assert text.detection == caw.detect(out.texts[0], tokenizer, race) and {t.kind for t in text.tokens} == {"plain"}
    assert ("score / counted" in dict(facts(text))) == (text.detection.family == "exp")


def test_kinds(four: Demo) -> None:
    plain, kgw, caw_text, _ = ({t.kind for t in text.tokens} for text in four.texts)
    assert plain == {"plain", "green"}
    assert kgw == {"plain", "green", "marked"}
    assert {"marked", "kept", "protected"} <= caw_text
    assert {kind for kind, _ in legend(four)} == (plain | kgw | caw_text) - {"plain"}


def test_show() -> None:
    assert [format_p(p) for p in (1.0, 0.5, 0.04567, 1.234e-9, 0.0)] == ["1.00", "0.50", "0.046", "1.2e-09", "< 1e-300"]
    assert visible("a\x1b[31m\tb\n\x7f\x9b\r") == "a\u241b[31m\tb\n\u2421\ufffd\u240d"


def test_pieces_show_characters_of_several_tokens_once(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    text = "sky \N{GRINNING FACE}\N{GREEK SMALL LETTER ALPHA} blue"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) > len(text.split()) + 4  # the face alone takes four tokens
    found = pieces(tokenizer, ids)
    assert len(found) == len(ids) and "".join(found) == text and "\ufffd" not in "".join(found)
    assert pieces(tokenizer, []) == []
    broken = [end for end in range(len(ids)) if tokenizer.decode(ids[:end]).endswith("\ufffd")]
    assert broken  # a text may end inside a character
    for end in broken:
        assert "".join(pieces(tokenizer, ids[:end])) == tokenizer.decode(ids[:end])


@pytest.mark.parametrize("width", [60, 99, 100, 200])
def test_terminal(four: Demo, width: int) -> None:
    stream = io.StringIO()
    render(four, Console(file=stream, width=width, color_system=None))
    shown = stream.getvalue()
    assert max(map(cell_len, shown.split("\n"))) <= width
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)  # a model must not steer the terminal
    for text in four.texts:
        for name, value in facts(text):
            assert name in shown and value in shown
    assert "kept" in shown and "p-value" in shown and four.watermark.key_id in shown
    side_by_side = any("plain:" in line and "CAW:" in line for line in shown.splitlines())
    assert side_by_side == (width >= 200)
    pairs = any("plain:" in line and "KGW:" in line for line in shown.splitlines())
    assert pairs == (width >= 100)


def test_page_is_escaped_and_self_contained(four: Demo) -> None:
    html = page(four)
    read = Reader(html)
    # a link, image, script or style sheet from elsewhere would need one of these
    assert not read.open and not {"script", "link", "img", "iframe", "a", "object", "b"} & {tag for tag, _ in read.tags}
    names = {name for _, given in read.tags for name in given}
    assert names <= {"lang", "charset", "name", "content", "class", "title"}
    assert not re.search(r"url\(|@import|https?:", html)
    assert PROMPT in read.text["body"]
    for text in four.texts:
        assert visible("".join(t.text for t in text.tokens)) in read.text["body"]
    assert html.count('class="marked"') == sum(t.changed for t in four.texts) + 1  # one in the legend
    html.encode("utf-8")


def test_page_escapes_what_a_model_says(four: Demo) -> None:
    evil = DemoToken("</div><script>alert(1)</script>&", "marked", '"><img src=x>')
    plain = DemoToken("<i>", "plain", "")
    read = Reader(page(replace(four, texts=(replace(four.texts[0], tokens=(evil, plain)),))))
    assert not {"script", "img", "i"} & {tag for tag, _ in read.tags} and not read.open
    assert evil.text + plain.text in read.text["body"] and evil.note in [given.get("title") for _, given in read.tags]


def test_command(tmp_path: Path) -> None:
    torch.manual_seed(3)
    weights, file = tmp_path / "tiny.safetensors", tmp_path / "demo.html"
    Evaluator(FeatureSpec(), hidden=8).save(weights)
    options = ["demo", "--model", str(save_tiny(tmp_path / "model")), "--max-new-tokens", "5"]
    options += ["--evaluator", str(weights), "--html", str(file), "--theta", "0.4"]
    result = CliRunner().invoke(app, options, env={"COLUMNS": "500"})  # a long path breaks lines
    assert result.exit_code == 0, result.stderr
    assert "theta 0.4" in " ".join(result.stdout.split()) and "theta 0.4" in file.read_text(encoding="utf-8")


@pytest.mark.slow(seconds=20)
def test_the_real_demo(demo_model: Any) -> None:
    """What README promises of `caw demo`: all marked texts are found, the plain one is not."""
    made = shown()  # the fixture has made sure that the model is there
    verdicts = re.findall(r"<dt>verdict</dt><dd[^>]*>([^<]*)</dd>", made.page)
    assert verdicts == ["no watermark found", *["watermarked"] * 3]
    assert "Traceback" not in made.result.stderr and "kept" in made.result.stdout
