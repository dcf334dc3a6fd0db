"""The programs of the tutorial: they run, and what the tutorial says of them is true."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from docs.test_pages import blocks
from scipy import stats
from tiny import tiny_model, tiny_tokenizer

import caw
from caw import prf
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


LOGITS = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, 1.5, -2.0], [0.0, 0.25, -0.5, 3.0, 1.0, -4.0, 0.75]])
SHUFFLES = torch.tensor([[3, 0, 5, 1, 6, 2, 4], [6, 5, 4, 3, 2, 1, 0]])


def drawn(mark: Any, logits: torch.Tensor, contexts: torch.Tensor, strength: float) -> tuple[torch.Tensor, ...]:
    warped = logits.expand(len(contexts), -1)
    scores = warped - torch.log(-torch.log(torch.rand(warped.shape, dtype=torch.float64))).float()
    record = Record.from_logits(scores, k=logits.shape[-1])
    at = Position(record, warped.gather(1, record.ids), scores, contexts, warped)
    ladder = mark.candidates(at, strength, native=True)
    chosen = ladder.select(torch.full((len(contexts),), strength))
    return record.ids[:, 0], ladder.candidates.gather(1, chosen[:, None])[:, 0]


def test_probability_moves_as_in_the_authors_code() -> None:
    """Numbers of `Dip_Reweight(0.45)` of the authors' repository, whose float32 rounds at 1e-7."""
    moved = (LOGITS.double() + WATERMARK.shift(LOGITS, SHUFFLES, 0.45)).softmax(dim=1)
    expected = [[0.022864, 0.306441, 0.185866, 0.0, 0.041472, 0.428100, 0.015257],
                [0.071866, 0.092277, 0.043589, 0.792268, 0.0, 0.0, 0.0]]  # fmt: skip
    assert (moved - torch.tensor(expected, dtype=torch.float64)).abs().max() < 1e-6


@pytest.mark.parametrize("strength", [0.4, 1.0])
@pytest.mark.parametrize("alpha", [0.3, 0.5])
def test_over_keys_every_token_keeps_its_probability(alpha: float, strength: float) -> None:
    """Chi-square at a false-alarm rate of 1e-6, over 40 keys and 500 contexts each; and the key does decide."""
    torch.manual_seed(5)
    counts, changed = torch.zeros(LOGITS.shape[1]), 0
    for key in range(40):
        contexts = torch.randint(0, 1 << 20, (500, 4))
        own, tokens = drawn(WATERMARK.DiPmark(key, alpha=alpha), LOGITS[0], contexts, strength)
        counts += torch.bincount(tokens, minlength=len(counts))
        changed += int((own != tokens).sum())
    assert stats.chisquare(counts.double(), 20_000 * LOGITS[0].double().softmax(0)).pvalue > 1e-6
    assert changed > 2000 * strength


def test_strength_zero_is_the_sampler_and_one_context_has_one_shuffle() -> None:
    mark = WATERMARK.DiPmark(key=5, alpha=0.5)
    contexts = torch.randint(0, 1 << 20, (1, 4)).expand(4000, -1)
    own, tokens = drawn(mark, LOGITS[0], contexts, 0.0)
    assert torch.equal(own, tokens)
    _, tokens = drawn(mark, LOGITS[0], contexts, 1.0)
    order = prf.vocabulary_words(mark._key, contexts[:1], 7).argsort(dim=1)
    moved = (LOGITS[:1].double() + WATERMARK.shift(LOGITS[:1], order, 0.5)).softmax(dim=1)[0]
    counts = torch.bincount(tokens, minlength=7).double()
    assert not counts[moved == 0].any() and bool((moved == 0).any())
    assert stats.chisquare(counts[moved > 0], 4000 * moved[moved > 0]).pvalue > 1e-6


def test_unmarked_text_and_other_keys_score_by_chance() -> None:
    """A share p of all keys gives a text p or less: binomial bounds at a false-alarm rate of 1e-6 each."""
    torch.manual_seed(4)
    ids = torch.randint(0, 6, (400,)).tolist()  # of so few tokens that contexts repeat
    p = torch.tensor([caw.detect(ids, None, WATERMARK.DiPmark(key=k)).p_value for k in range(400)])
    for level, most in ((0.5, 249), (0.1, 72), (0.01, 16)):
        assert int((p <= level).sum()) <= most
    assert float(p.median()) > 0.35  # and no more by chance than binomial steps allow


def test_marked_text_is_found() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    mark = WATERMARK.DiPmark(key=5)
    out = caw.generate(model, tokenizer, [[5, 6, 7]], watermark=mark, max_new_tokens=120, min_new_tokens=120,
                       do_sample=True)  # fmt: skip
    found = caw.detect(out.sequences[0], None, mark)
    assert found.p_value < 1e-9 and found.num_scored == 120
    assert caw.detect(out.sequences[0], None, WATERMARK.DiPmark(key=6)).p_value > 1e-3


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
