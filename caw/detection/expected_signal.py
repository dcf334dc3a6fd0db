"""The expected mark at each token of a text that a model wrote greedily: the optimal weight if the model is available.

Given a text, its marking depends on the key alone. With f the null's probability of green, sigma the strength, n the
number of tokens whose logits are within sigma delta of the greatest (including that one), a random key leaves

    green lists  the top token where it is green (chance f) or where none of the n is, (1 - f)^n; else the likeliest
                 green one of the n. So a token that is not the top one is green for certain, and the top one with
                 chance f / (f + (1 - f)^n). Over both that is 1 - (1 - f)^n
    races        the winner of a race with probabilities q: its F is M^q with M uniform, whichever wins, so that F has
                 the density F^(1/q - 1) / q. Its score -log(1 - F) then has the mean psi(1 + 1/q) - psi(1), the
                 harmonic number of 1/q: 1 for a certain token, log(1/q) + .577 for an unlikely one. Over all winners
                 that is the mean under q

The first form of each requires a reader that knows what the writer knew. A reader without the prompt is surprised by
tokens that did not surprise the writer, and uses the second. A token out of reach of the maximum strength was not
chosen by the policy (it was edited) and counts as unmarked; so does a runner-up that is behind only by rounding.

The weights with the best expected p-value exponent (that of a weighted sum at its best tilt; Chernoff, and Neyman and
Pearson for green lists) are the log-odds of green against the null's, and 1 - 1 / m for scores taken as exponential
with mean m. They are mapped to one fixed scale of 16 levels, the same for every text: level 15 is a probability of
MOST_CHANCE, or a mean of MOST_MEAN. Sampled texts follow another law: weights for greedy texts are valid for them, but
not optimal.
"""

from dataclasses import dataclass

import numpy as np
from scipy import special

from caw.detection.text_weights import MOST
from caw.watermarks import EXP, Watermark
from caw.watermarks.green_list import GreenList

# of green. Of 909 runner-up tokens that Qwen2.5-Coder-0.5B wrote under CAW and read again, .996 were green
MOST_CHANCE = 0.995
MOST_MEAN = 8.0  # of a race's score, which a token of probability 6e-4 has
# logits by which two readings of one place in bfloat16 differ: half of those 0.05 behind the top were no runners-up
ROUNDING = 0.1


@dataclass(frozen=True)
class Reading:
    """A model's record along one text of n tokens: of p_i, from which token i was drawn.

    tokens: int64 [n]. logits: float32 [n, K], the greatest, descending, -inf where padded; ids: int64 [n, K], theirs.
    logsumexp, entropy: float32 [n], nats. strength: float32 [n] >= 0, of the policy. greatest: its greatest strength.
    capacity: float32 [n], the predicted importance; NaN where the policy asks for none.
    """

    tokens: np.ndarray
    logits: np.ndarray
    ids: np.ndarray
    logsumexp: np.ndarray
    entropy: np.ndarray
    strength: np.ndarray
    greatest: float
    capacity: np.ndarray

    @property
    def rank(self) -> np.ndarray:
        """Rank of each token among its K most likely, int64 [n] from 0; K if it is not among them."""
        same = self.ids == self.tokens[:, None]
        return np.where(same.any(axis=1), same.argmax(axis=1), self.ids.shape[1])

    @property
    def gap(self) -> np.ndarray:
        """Distance of each token's logit from the greatest, float64 [n] >= 0; the last recorded one's if unknown."""
        last = np.isfinite(self.logits).sum(axis=1) - 1
        own = self.logits[np.arange(len(self.tokens)), np.minimum(self.rank, last)]
        return self.logits[:, 0].astype(np.float64) - own


def expected_signal(reading: Reading, watermark: Watermark, knows_prompt: bool = True) -> np.ndarray:
    """Return P(green), or a race's mean score, of each token, float64 [n]. knows_prompt: the token then tells, too."""
    if isinstance(watermark, GreenList):
        near = tokens_in_reach(reading, watermark.full)
        if not knows_prompt:
            return np.asarray(1 - (1 - watermark.green_fraction) ** near)
        return green_chance(reading, near, watermark.full, watermark.green_fraction)
    return race_means(reading, watermark, knows_prompt)


def tokens_in_reach(reading: Reading, delta: float) -> np.ndarray:
    """Return how many tokens' logits are within strength * delta of the greatest, at most K, int64 [n]."""
    reach = reading.strength.astype(np.float32) * np.float32(delta)
    return np.asarray((reading.logits + reach[:, None] >= reading.logits[:, :1]).sum(axis=1))


def green_chance(reading: Reading, near: np.ndarray, delta: float, fraction: float) -> np.ndarray:
    """Return the probability that each token is green under a random key with `near` tokens in reach, float64 [n]."""
    top = fraction / (fraction + (1 - fraction) ** near)
    runner_up = 1 - (1 - fraction) * np.exp(-reading.gap / ROUNDING)
    chosen = np.where(reading.gap <= np.float32(reading.greatest) * np.float32(delta), runner_up, fraction)
    return np.where(reading.rank == 0, top, chosen)


def race_means(reading: Reading, watermark: Watermark, knows_prompt: bool) -> np.ndarray:
    """Return the mean score of each token, float64 [n], or of whichever token wins there."""
    shares, rank = race_shares(reading, watermark, knows_prompt), reading.rank
    if not knows_prompt:
        return np.asarray((shares * race_mean(np.where(shares > 0, shares, 1.0))).sum(axis=1))
    own = shares[np.arange(len(rank)), np.minimum(rank, shares.shape[1] - 1)]
    return race_mean(np.where((rank < shares.shape[1]) & (own > 0), own, 1.0))


def race_shares(reading: Reading, watermark: Watermark, knows_prompt: bool) -> np.ndarray:
    """Return how probably the K likeliest raced, float64 [n, K], others 0. knows_prompt: the token itself raced."""
    logits, strength = reading.logits.astype(np.float64), reading.strength.astype(np.float64)[:, None]
    temperature = watermark.temperature if isinstance(watermark, EXP) else 1.0
    if watermark.rule == "top_k":
        ranks, most = np.arange(1, logits.shape[1] + 1), 2 * reading.greatest * watermark.full
        racing = (2 * strength * watermark.full > 2 * ranks - 1) | (ranks == 1)
        if knows_prompt:
            racing |= (ranks <= reading.rank[:, None] + 1) & (most > 2 * reading.rank[:, None] + 1)
        return np.asarray(special.softmax(np.where(racing, logits / temperature, -np.inf), axis=1))
    # argmax of (1 - sigma) l + sigma (l / T + noise): a race of the logits below, as the noise has scale sigma
    inverse = np.divide(1 - strength, strength, out=np.full_like(strength, np.inf), where=strength > 0)
    slope = np.minimum(inverse + 1 / temperature, 1e6)
    return np.asarray(special.softmax((logits - logits[:, :1]) * slope, axis=1))


def race_mean(share: np.ndarray) -> np.ndarray:
    """Return the mean score of a race's winner that had this share of the probability."""
    mean: np.ndarray = special.digamma(1 + 1 / np.maximum(share, 1e-12)) - special.digamma(1)
    return mean


def levels_of_signal(signal: np.ndarray, watermark: Watermark, most: float | None = None) -> np.ndarray:
    """Map signals to levels int64 [n] on a fixed scale, 0 = none. most: signal of level 15, None = default."""
    top = _most(watermark) if most is None else min(most, _most(watermark))
    weight, greatest = (weight_of(np.asarray(s, np.float64), watermark) for s in (signal, top))
    return np.rint(np.clip(weight / greatest, 0, 1) * MOST).astype(np.int64)


def weight_of(signal: np.ndarray, watermark: Watermark) -> np.ndarray:
    """Return the optimal weight of each token, float64, at least 0; see the module."""
    if isinstance(watermark, GreenList):
        chance = np.clip(signal, 1e-9, _most(watermark))
        return np.maximum(special.logit(chance) - special.logit(watermark.green_fraction), 0.0)
    return np.maximum(1 - 1 / np.clip(signal, 1.0, MOST_MEAN), 0.0)


def _most(watermark: Watermark) -> float:
    """Return the maximum signal of the scale."""
    if isinstance(watermark, GreenList):
        return max(MOST_CHANCE, (1 + watermark.green_fraction) / 2)
    return MOST_MEAN
