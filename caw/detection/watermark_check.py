"""Check that a watermark keeps the contract of detectors and decoders; `caw.testing.check_watermark` for authors."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import special

from caw.detection.statistics import tails
from caw.record import Record
from caw.watermarks import Position, Watermark
from caw.watermarks.base import MISSING
from caw.watermarks.green_list import GreenList

ALARM = 1e-6  # chance that a sound watermark fails one of the tests by chance
LEVELS = (0.5, 0.1, 0.01)
STRENGTHS = (0.0, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class WatermarkReport:
    """Results: minimum p-value over contexts, p-value of all contexts together, and median p-values of marked texts.

    ladders: choices compared with brute force; 0 if the watermark has no green lists.
    """

    scores: int
    worst_context: float
    all_contexts: float
    ladders: int
    marked: float
    other_key: float


def check_watermark(
    watermark: Watermark, *, vocab_size: int = 1000, keys: int = 64, contexts: int = 64, seed: int = 0
) -> WatermarkReport:
    """Raise AssertionError, in one sentence with numbers, unless a watermark is sound.

    Checks that scores depend on key, context and token alone; that in every context the mean score over keys is the
    null's (for green lists: a token is green with probability gamma); that p-values of unmarked text are uniform over
    keys; that ladders of green lists equal brute force, including ties; and that marked text is detected by its key and
    by no other.

    Args:
        vocab_size: token ids are below it. keys, contexts: drawn at random from `seed`; each context is scored with 64
            tokens under each key.
    """
    rng = np.random.default_rng(seed)
    drawn = [watermark.with_key(int(key)) for key in rng.integers(1, 1 << 40, keys)]
    _same_scores(watermark, rng, vocab_size)
    scores, worst, together = _null_of_contexts(drawn, rng, vocab_size, contexts)
    _uniform(drawn[0], rng, vocab_size)
    ladders = _ladders(watermark, rng, vocab_size) if isinstance(watermark, GreenList) else 0
    marked, other = _read_back(watermark, drawn[0], rng, vocab_size)
    return WatermarkReport(scores, worst, together, ladders, marked, other)


def _same_scores(watermark: Watermark, rng: np.random.Generator, vocab_size: int) -> None:
    ids, window = torch.from_numpy(rng.integers(0, vocab_size, 120)), watermark.window
    whole, again, tail = (watermark.score_tokens(part) for part in (ids, ids.clone(), ids[40:]))
    if not torch.equal(whole.values, again.values):
        raise AssertionError("scores must be the same each time, two calls with one text differ")
    behind = slice(window, None)
    wrong = (whole.values[40:][behind] != tail.values[behind]) & tail.scored[behind]
    if bool(wrong.any()):
        raise AssertionError(
            f"a score must depend on the {window} ids before its token alone, {int(wrong.sum())} of {len(wrong)} "
            "changed when the text before them was cut off"
        )


def _null_of_contexts(
    drawn: list[Watermark], rng: np.random.Generator, vocab_size: int, contexts: int
) -> tuple[int, float, float]:
    """Return (scores, minimum p-value of a context times their number, p-value of all contexts together)."""
    mark, tokens = drawn[0], min(64, vocab_size)
    window, mean = mark.window, mark.null_moments[0]
    ahead = rng.integers(0, vocab_size, (contexts, 1, window)).repeat(tokens, axis=1)
    nexts = np.stack([rng.permutation(vocab_size)[:tokens] for _ in range(contexts)])[:, :, None]
    apart = np.full((contexts, tokens, window), MISSING)
    stream = torch.from_numpy(np.concatenate([apart, ahead, nexts], axis=2))
    found, counted = np.zeros((len(drawn), contexts)), np.zeros((len(drawn), contexts))
    for n, each in enumerate(drawn):
        said = each.score_tokens(stream.flatten())
        valid = said.scored if said.keyless is None else said.scored & ~said.keyless
        values, use = (part[2 * window :: 2 * window + 1].view(contexts, tokens) for part in (said.values, valid))
        found[n], counted[n] = torch.where(use, values, 0.0).sum(1).numpy(), use.sum(1).numpy()
    total = np.maximum(counted.sum(0), 1)
    rates = found.sum(0) / total
    z = (rates - mean) * np.sqrt(total / mark.null_moments[1])
    worst = float(min(1.0, 2 * special.ndtr(-np.abs(z).max()) * contexts))
    together = float(special.chdtrc(contexts, (z**2).sum()))
    if min(worst, together) < ALARM:
        at = int(np.abs(z).argmax())
        raise AssertionError(
            f"the mean score over keys must be {mean:.4g} in every context, it is {rates[at]:.4g} after "
            f"{ahead[at, 0].tolist()} and from {rates.min():.4g} to {rates.max():.4g} in {contexts} contexts "
            f"(p = {min(worst, together):.1e})"
        )
    return int(counted.sum()), worst, together


def _p_values(watermark: Watermark, texts: list[tuple[Watermark, list[int]]]) -> np.ndarray:
    """Return p-values as the detector counts: each piece of evidence once."""
    sums, counts = np.zeros(len(texts)), np.zeros(len(texts), dtype=np.int64)
    for n, (mark, ids) in enumerate(texts):
        said = mark.score_tokens(torch.tensor(ids))
        valid = (said.scored if said.keyless is None else said.scored & ~said.keyless).numpy()
        first = np.unique(said.evidence.numpy()[valid], axis=0, return_index=True)[1]
        sums[n], counts[n] = said.values.numpy()[valid][first].sum(), len(first)
    return tails(watermark, sums, counts).p_values


def _uniform(watermark: Watermark, rng: np.random.Generator, vocab_size: int, texts: int = 120) -> None:
    """Check uniformity on texts of few tokens, which repeat themselves: the same evidence must be the same row."""
    ids = rng.integers(0, min(3, vocab_size), 150).tolist()
    keys = rng.integers(1, 1 << 40, texts).tolist()
    p = _p_values(watermark, [(watermark.with_key(key), ids) for key in keys])
    for level in LEVELS:
        hits = int((p <= level).sum())
        if special.bdtrc(hits - 1, texts, level) < ALARM:
            raise AssertionError(
                f"at most a share {level:g} of keys may give an unmarked text p <= {level:g}, {hits} of {texts} did; "
                "count equal evidence once, and make a token green with probability gamma"
            )


def _ladders(watermark: GreenList, rng: np.random.Generator, vocab_size: int, rows: int = 48) -> int:
    """Return the number of choices compared, at given strengths and at those where two logits are equal."""
    logits = torch.from_numpy(rng.normal(size=(rows, vocab_size)).astype(np.float32) * 3).mul(4).round() / 4
    logits[::5, 1::3] = -torch.inf
    context = torch.from_numpy(rng.integers(-1, vocab_size, (rows, watermark.window)))
    record, green = Record.from_logits(logits), watermark.green_vocabulary(context, vocab_size)
    ladder = watermark.ladder(Position(record, record.values, logits, context), 1.0)
    ties = [step / 4 / watermark.full for step in range(1, 9) if step / 4 < watermark.full]
    for strength in (*STRENGTHS, *ties):
        chosen = ladder.candidates.gather(1, ladder.select(torch.full((rows,), strength))[:, None])[:, 0]
        best = (logits + torch.where(green, torch.tensor(strength) * watermark.full, 0.0)).argmax(dim=1)
        if not torch.equal(chosen, best):
            wrong = (chosen != best).nonzero()[:, 0]
            at = int(wrong[0])
            raise AssertionError(
                f"the ladder must choose the argmax of biased logits, at strength {strength:g} {len(wrong)} of {rows} "
                f"differ, first token {int(chosen[at])} for {int(best[at])}"
            )
    return rows * (len(STRENGTHS) + len(ties))


@torch.no_grad()
def _read_back(
    watermark: Watermark, other: Watermark, rng: np.random.Generator, vocab_size: int, rows: int = 8, length: int = 100
) -> tuple[float, float]:
    """Return median p-values of marked texts under their key and under another."""
    ids, window, full = torch.full((rows, watermark.window), MISSING), watermark.window, torch.ones(rows)
    for _ in range(length):
        logits = torch.from_numpy(rng.normal(size=(rows, vocab_size)).astype(np.float32))
        record, context = Record.from_logits(logits), ids[:, ids.shape[1] - window :]
        ladder = watermark.ladder(Position(record, record.values, logits, context, logits), 1.0)
        ids = torch.cat([ids, ladder.candidates.gather(1, ladder.select(full)[:, None])], dim=1)
    texts = ids[:, window:].tolist()
    own, others = (float(np.median(_p_values(m, [(m, t) for t in texts]))) for m in (watermark, other))
    if not own < 1e-3 < others:
        raise AssertionError(
            f"texts marked at strength 1 must be found by their key alone, the median p is {own:.2g} by it and "
            f"{others:.2g} by another"
        )
    return own, others
