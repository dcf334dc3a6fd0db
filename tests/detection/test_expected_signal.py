"""What a random key leaves at a token: against every green list there is, and against races that are run."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from caw.detection.expected_signal import (
    MOST_CHANCE,
    MOST_MEAN,
    Reading,
    expected_signal,
    levels_of_signal,
    race_mean,
    tokens_in_reach,
    weight_of,
)
from caw.detection.text_weights import MOST
from caw.record import Record
from caw.testing import assert_close
from caw.watermarks import EXP, KGW
from caw.watermarks.base import Position

LOGITS = [9.0, 6.0, 4.5, 1.0, 0.5, -3.0, -3.5]  # far enough apart for rounding to decide nothing


def reading(token: int, logits: list[float], strength: float, greatest: float | None = None) -> Reading:
    """Of one token; ids are in the order of the logits."""
    values = np.array([logits], dtype=np.float32)
    one = np.zeros(1, dtype=np.float32)
    found = np.array([strength], dtype=np.float32)
    ids = np.arange(len(logits))[None]
    return Reading(np.array([token]), values, ids, one, one, found, greatest or strength, one)


def counted(logits: list[float], bonus: float, fraction: float) -> np.ndarray:
    """P(token is emitted, and green or not), [V, 2], over all lists: a biased argmax for each."""
    found = np.zeros((len(logits), 2))
    for green in itertools.product([0, 1], repeat=len(logits)):
        best = int(np.argmax(np.array(logits) + bonus * np.array(green)))
        found[best, green[best]] += np.prod([fraction if g else 1 - fraction for g in green])
    return found


@pytest.mark.parametrize("bonus", [0.0, 2.0, 4.0, 5.0, 9.0, 30.0])
@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_chance_of_green_is_that_over_all_lists(bonus: float, fraction: float) -> None:
    mark = KGW(key=1, gamma=fraction, delta=bonus or 1.0)
    strength = 1.0 if bonus else 0.0
    every = counted(LOGITS, bonus, fraction)
    for token, (red, green) in enumerate(every):
        [chance] = expected_signal(reading(token, LOGITS, strength), mark)
        if red + green:
            assert chance == pytest.approx(green / (red + green), abs=1e-9)
        else:
            assert chance == pytest.approx(fraction)  # out of reach: not this policy's choice
        [overall] = expected_signal(reading(token, LOGITS, strength), mark, knows_prompt=False)
        assert overall == pytest.approx(every[:, 1].sum())


def test_a_runner_up_within_rounding_proves_nothing_and_estimated_strengths_do_not_bind() -> None:
    mark = KGW(key=1, delta=4.0)
    near = [5.0, 4.9999, -9.0]
    assert expected_signal(reading(1, near, 1.0), mark)[0] == pytest.approx(0.25, abs=1e-3)
    weak = reading(1, LOGITS, strength=0.1, greatest=1.0)  # 3 logits behind, where 0.4 were in reach
    assert expected_signal(weak, mark)[0] == pytest.approx(1.0)
    assert expected_signal(reading(1, LOGITS, 0.1), mark)[0] == pytest.approx(0.25)


def test_padding_and_tokens_beyond_the_record_are_out_of_reach() -> None:
    padded = [2.0, 1.0, -np.inf, -np.inf]
    assert tokens_in_reach(reading(0, padded, 1.0), 50.0).tolist() == [2]
    assert reading(1, padded, 1.0).gap.tolist() == [1.0] and reading(7, padded, 1.0).gap.tolist() == [1.0]
    assert reading(7, padded, 1.0).rank.tolist() == [4]


SHARES = [0.5, 0.25, 0.12, 0.08, 0.04, 0.01]


@pytest.mark.parametrize(
    ("settings", "strength"),
    [({"top_k": 4}, 1.0), ({"top_k": 4}, 0.6), ({"strength": "scale"}, 1.0), ({"strength": "scale"}, 0.5),
     ({"strength": "scale", "temperature": 2.0}, 0.7)],
)  # fmt: skip
def test_mean_score_is_that_of_races(settings: dict[str, Any], strength: float) -> None:
    """20,000 contexts under one key, through the watermark's own ladder; each winner's mean score within 5 sigma."""
    mark, runs = EXP(key="races", context_width=4, **settings), 20_000
    logits = torch.tensor(SHARES).log().float()
    ids = torch.arange(len(SHARES)).repeat(runs, 1)
    values = logits.repeat(runs, 1)
    context = torch.from_numpy(np.random.default_rng(0).integers(0, 50_000, (runs, 4)))
    record = Record(values, ids, values.exp(), torch.zeros(runs))
    ladder = mark.ladder(Position(record, values, values, context), strength)
    chosen = ladder.select(torch.full((runs,), strength))
    won = ladder.candidates.gather(1, chosen[:, None])[:, 0]
    # -log(1 - F) of the winner, from -log(-log F)
    noise = mark.scheme.noise(context, won[:, None])[:, 0].double()
    score = -torch.log(-torch.expm1(-torch.exp(-noise))).numpy()
    seen = 0
    for token in range(len(SHARES)):
        mine = score[won.numpy() == token]
        [mean] = expected_signal(reading(token, logits.tolist(), strength), mark)
        if len(mine) < 100:
            continue
        seen += 1
        assert abs(mine.mean() - mean) < 5 * mine.std() / len(mine) ** 0.5
    assert seen >= 2
    [overall] = expected_signal(reading(0, logits.tolist(), strength), mark, knows_prompt=False)
    assert abs(score.mean() - overall) < 5 * score.std() / runs**0.5


def test_winners_of_known_chance_have_harmonic_means() -> None:
    assert_close(race_mean(np.array([1.0, 1 / 2, 1 / 3, 1 / 4])), [1.0, 1.5, 11 / 6, 25 / 12], "float64")
    assert expected_signal(reading(5, np.log(SHARES).tolist(), 0.0), EXP(key=1))[0] == 1.0  # did not race


@pytest.mark.parametrize("mark", [KGW(key=1), EXP(key=1)], ids=["green", "race"])
def test_weights_make_the_exponent_greatest(mark: Any) -> None:
    """-log p of a weighted sum is about the Legendre transform of its mean; no other weights have a greater one."""
    signals = np.array([0.3, 0.5, 0.9]) if isinstance(mark, KGW) else np.array([1.2, 2.0, 4.0])
    fraction = 0.25

    def minus_exponent(weights: np.ndarray) -> float:
        if isinstance(mark, KGW):
            return float((np.log1p(fraction * np.expm1(weights)) - weights * signals).sum())
        if (weights >= 1).any():
            return np.inf
        return float((-np.log1p(-weights) - weights * signals).sum())

    best = optimize.minimize(minus_exponent, np.full(3, 0.1), method="Nelder-Mead", options={"xatol": 1e-9}).x
    np.testing.assert_allclose(weight_of(signals, mark), best, atol=1e-3)


def test_levels_are_on_one_scale() -> None:
    green, race = KGW(key=1), EXP(key=1)
    assert levels_of_signal(np.array([0.1, 0.25, MOST_CHANCE, 1.0]), green).tolist() == [0, 0, MOST, MOST]
    assert levels_of_signal(np.array([1.0, MOST_MEAN, 99.0]), race).tolist() == [0, MOST, MOST]
    alone = [levels_of_signal(np.array([c]), green)[0] for c in (0.3, 0.6, 0.8)]
    assert levels_of_signal(np.array([0.3, 0.6, 0.8]), green).tolist() == alone
    assert alone == sorted(alone) and alone[0] < alone[-1]
    # a list of nearly all tokens leaves the greatest chance above its own
    assert levels_of_signal(np.array([0.998, 1.0]), KGW(key=1, gamma=0.998)).tolist() == [0, MOST]
