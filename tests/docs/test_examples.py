"""The programs of the tutorial: they run, and what the tutorial says of them is true."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from docs.test_pages import blocks
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.policies import Signals
from caw.record import Record
from caw.watermarks import Position

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


WATERMARK, POLICY = load("new_watermark"), load("new_policy")


@pytest.mark.parametrize("vocab_size", [7, 101, 384])
@pytest.mark.parametrize("delta", [0.5, 4.0])
def test_ladder_is_the_biased_argmax(vocab_size: int, delta: float) -> None:
    """Every strength chooses what the argmax over logits with the bonus chooses; rounded logits have ties."""
    torch.manual_seed(3)
    mark = WATERMARK.EitherOrder(key=5, delta=delta)
    logits = (4 * torch.randn(64, vocab_size)).round() / 4
    logits[::5, 1::3] = -torch.inf
    context = torch.randint(-1, vocab_size, (64, 2))
    record = Record.from_logits(logits)
    ladder = mark.ladder(Position(record, record.values, logits, context), 2.0)
    green = mark.green_vocabulary(context, vocab_size)
    for strength in (0.0, 0.1, 0.5, 1.0, 1.7, 2.0):
        steps = torch.full((64,), strength)
        chosen = ladder.candidates.gather(1, ladder.select(steps)[:, None])[:, 0]
        bonus = torch.where(green, torch.tensor(strength) * delta, 0.0)
        assert torch.equal(chosen, (logits + bonus).argmax(dim=1)), strength


def test_order_of_the_two_tokens_does_not_matter() -> None:
    mark = WATERMARK.EitherOrder(key=5)
    a, b = mark.score_tokens(torch.tensor([3, 8, 11, 4])), mark.score_tokens(torch.tensor([8, 3, 11, 4]))
    assert a.values[2] == b.values[2] and torch.equal(a.evidence[2], b.evidence[2])
    assert not torch.equal(a.evidence[3], b.evidence[3])


def test_unmarked_text_and_other_keys_score_by_chance() -> None:
    """A share p of all keys gives a text p or less: binomial bounds at a false-alarm rate of 1e-6 each."""
    torch.manual_seed(4)
    ids = torch.randint(0, 50, (400,)).tolist()  # of so few tokens that contexts repeat
    p = torch.tensor([caw.detect(ids, None, WATERMARK.EitherOrder(key=k)).p_value for k in range(400)])
    for level, most in ((0.5, 249), (0.1, 72), (0.01, 16)):
        assert int((p <= level).sum()) <= most


def test_marked_text_is_found() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    mark = WATERMARK.EitherOrder(key=5, delta=8.0)
    out = caw.generate(model, tokenizer, [[5, 6, 7]], watermark=mark, max_new_tokens=200, min_new_tokens=200,
                       do_sample=True)  # fmt: skip
    assert caw.detect(out.sequences[0], None, mark).p_value < 1e-6
    assert caw.detect(out.sequences[0], None, WATERMARK.EitherOrder(key=6)).p_value > 1e-3


def test_ramp() -> None:
    """No entropy, no mark; entropy of ln 384 = 5.95 nats is beyond the ramp's end; in between in proportion."""
    sure = torch.full((1, 384), -torch.inf)
    sure[0, 9] = 1.0
    two = sure.clone()
    two[0, 3] = 1.0  # ln 2 = 0.693 nats
    logits = torch.cat([sure, two, torch.zeros(1, 384)])
    strength = POLICY.EntropyRamp(nats=2.0, value=3.0).strength(Signals(Record.from_logits(logits), logits))
    assert strength.dtype == torch.float32
    assert strength.tolist() == pytest.approx([0.0, 3 * 0.693147 / 2, 3.0])
    with pytest.raises(ValueError, match="nats must be above 0"):
        POLICY.EntropyRamp(nats=0.0)


@pytest.mark.slow(seconds=30)
def test_the_guards_first_text_is_detected_and_kept(demo: object) -> None:
    """As it stands on the page, with all of its tokens."""
    page: dict[str, Any] = {}
    exec(next(blocks(FOLDER.parent / "guard.md", {"python"})), page)
    receipt = page["receipt"]
    assert receipt.detected and receipt.kept and 0 < receipt.changes <= receipt.rollouts


@pytest.mark.slow(seconds=20)
def test_the_watermark_runs(demo_model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    WATERMARK.main()
    said = capsys.readouterr().out
    assert re.search("with the key: +watermarked at", said)
    assert re.search("with another: +no watermark found", said)


@pytest.mark.slow(seconds=20)
def test_the_policy_runs(demo_model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    POLICY.main()
    said = re.findall(r"strength (\S+) on average, p = (\S+)", capsys.readouterr().out)
    (plain, _), (ramp, p_value) = ((float(a), float(b)) for a, b in said)
    assert plain == 1 and 0 < ramp < 1 and p_value <= 1e-3
