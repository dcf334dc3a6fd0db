"""Swaps that random keys would make in a model's texts, and the harm of each: training data without labels.

At a position of a text written by the model, the policy's maximum strength replaces a_0 by another token under some
keys. The harm is how much less likely the model's own continuation becomes: nats over the next `horizon` tokens,
excluding the swapped token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from caw.checks import require_int, require_number
from caw.models.teacher import token_log_probs
from caw.policies.base import MAX_STRENGTH
from caw.record import Record
from caw.watermarks import KGW, Watermark
from caw.watermarks.base import Position
from caw_lab.training.labels import EncodedText
from caw_lab.training.settings import HORIZON, KEYS_PER_TEXT, PLACES_PER_TEXT
from caw_lab.training.text_reader import BATCH_TOKENS, TextReader

ROWS = 64  # rows of logits that get their noise at once
KEYS = 2**63


@dataclass(frozen=True)
class SwapSettings:
    """Which swaps to measure, and how.

    watermark: what marks; its key is replaced by random ones. strength: the greatest of the policy, which multiplies
    delta or top_k. keys: random keys a text. places: the most places of a text that are looked at, drawn
    at random; None = all. horizon: following tokens that harm is summed over. seed: of keys, noise and places.
    batch_tokens: tokens of a forward.

    Raises TypeError or ValueError naming the argument.
    """

    watermark: Watermark = field(default_factory=lambda: KGW(key=0))
    strength: float = 1.0
    keys: int = KEYS_PER_TEXT
    places: int | None = PLACES_PER_TEXT
    horizon: int = HORIZON
    seed: int = 0
    batch_tokens: int = BATCH_TOKENS

    def __post_init__(self) -> None:
        require_number("strength", self.strength, 0, MAX_STRENGTH, closed=True)
        self.watermark.check_strength(self.strength)
        for name, most in (("keys", 1000), ("places", 1 << 20), ("horizon", 1 << 20), ("batch_tokens", 1 << 30)):
            if name != "places" or self.places is not None:
                require_int(name, getattr(self, name), 1, most)
        require_int("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True)
class Swaps:
    """The swaps of one text, by position; each key's own, so that a likely swap occurs several times.

    place: int64 [n], index of the written token. token: int64 [n], what takes its place. falls: float64 [n, horizon],
    nats that each of the following tokens loses.
    """

    place: np.ndarray
    token: np.ndarray
    falls: np.ndarray

    @property
    def harm(self) -> np.ndarray:
        """Sum of nats that the following tokens lose, float64 [n]."""
        return self.falls.sum(axis=1)


@torch.inference_mode()
def measure_swaps(
    reader: TextReader,
    text: EncodedText,
    logits: torch.Tensor,
    settings: SwapSettings,
    temperature: float | None = None,
    ends: Collection[int] = (),
) -> Swaps:
    """Measure the swaps of one text written by the model, and their harm.

    Args:
        reader: has just read the text.
        text: a prompt and what was written behind it (`EncodedText.unlabelled`).
        logits: float [n, V] of its written places, and of the one behind it.
        temperature: at which it was sampled, without top-k or top-p; None = greedily.
        ends: ids that end a text. No swap makes or removes one, as marks do not decide where a text ends.

    A place has none where fewer than `horizon` tokens follow, or where the model would not have chosen the token that
    stands there (in a greedy text, one that is not its likeliest). A sampled token was chosen by some noise: noise that
    would have chosen it is drawn.

    Deterministic for the seed and the text.
    """
    count = len(text.ids) - text.first - settings.horizon
    nothing = np.zeros(0, np.int64)
    if count < 1:
        return Swaps(nothing, nothing, np.zeros((0, settings.horizon)))
    written = torch.tensor(text.ids[text.first :], device=logits.device)
    place, token = _swapped(logits, written, count, settings, temperature, ends)
    # keys agree on many swaps: each is measured once
    changes, of_change = np.unique(np.stack([place, token], axis=1), axis=0, return_inverse=True)
    rows = [(int(p), int(t)) for p, t in changes]
    falls = falls_behind(reader, text.ids, text.first, logits, rows, settings.horizon, settings.batch_tokens)
    return Swaps(place, token, falls[of_change.reshape(-1)])


@torch.inference_mode()
def falls_behind(
    reader: TextReader,
    ids: Sequence[int],
    first: int,
    logits: torch.Tensor,
    changes: Sequence[tuple[int, int]],
    horizon: int,
    batch_tokens: int = BATCH_TOKENS,
) -> np.ndarray:
    """Return the nats that each of the `horizon` tokens behind each change loses, float64 [n, horizon]; behind the end
    of the text nothing is lost.

    reader: has just read `ids`, from `first` on; logits: what it returned. changes: place behind `first`, and what
    takes it, by ascending place.
    """
    written = torch.tensor(ids[first:], device=logits.device)
    plain = token_log_probs(logits[:-1], written)
    falls = np.zeros((len(changes), horizon))
    for i, after in reader.changed([(first + place, token) for place, token in changes], horizon, batch_tokens):
        here = slice(changes[i][0] + 1, changes[i][0] + 1 + len(after))
        falls[i, : len(after)] = (plain[here] - token_log_probs(after, written[here])).cpu().numpy()
    return falls


def _swapped(
    logits: torch.Tensor,
    written: torch.Tensor,
    count: int,
    settings: SwapSettings,
    temperature: float | None,
    ends: Collection[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return position and token, int64 [n] each, of the swaps of every key at the first `count` of the `written`
    tokens.
    """
    rng = np.random.default_rng([settings.seed, *written.tolist()])
    watermark = settings.watermark.with_vocabulary(logits.shape[1])
    keyed = [watermark.with_key(int(key)) for key in rng.integers(KEYS, size=settings.keys)]
    noise = torch.Generator().manual_seed(int(rng.integers(KEYS)))
    places = torch.from_numpy(np.sort(rng.permutation(count)[: settings.places])).to(written.device)
    context, stops = watermark.contexts(written), torch.tensor(list(ends), dtype=torch.int64, device=written.device)
    found: list[torch.Tensor] = []
    for here in places.split(ROWS):
        own = written[here]
        position = _position(logits[here].float(), own, context[here], temperature, noise, stops)
        for each in keyed:
            ladder = each.ladder(position, settings.strength)
            strength = torch.full(own.shape, settings.strength, device=own.device)
            chosen = ladder.candidates.gather(1, ladder.select(strength)[:, None])[:, 0]
            swapped = (chosen != own) & (ladder.candidates[:, 0] == own) & ~torch.isin(own, stops)
            rows = swapped.nonzero()[:, 0]
            found.append(torch.stack([here[rows], chosen[rows]], dim=1))
    swaps = torch.cat(found).cpu().numpy()
    swaps = swaps[np.argsort(swaps[:, 0], kind="stable")]
    return swaps[:, 0], swaps[:, 1]


def _position(
    logits: torch.Tensor,
    own: torch.Tensor,
    context: torch.Tensor,
    temperature: float | None,
    noise: torch.Generator,
    ends: torch.Tensor,
) -> Position:
    """Return a watermark's inputs for the ladders of rows of logits [n, V] whose tokens are `own` [n]."""
    logits = logits.index_fill(1, ends, -torch.inf)
    if temperature is None:
        record = Record.from_logits(logits)
        return Position(record, record.values, logits, context)
    warped = logits / temperature
    scores = _noisy(warped, own, noise)
    record = Record.from_logits(scores)
    return Position(record, warped.gather(1, record.ids.clamp_min(0)), scores, context, warped)


def _noisy(logits: torch.Tensor, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return logits + Gumbel noise [n, V], given that the sum is greatest at `own` [n].

    The greatest sum is a Gumbel draw about logsumexp, whichever token has it; the others are draws cut off there
    (Maddison, Tarlow and Minka, "A* Sampling", 2014).
    """

    def gumbel(*shape: int) -> torch.Tensor:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64).clamp_min(1e-300)
        return -(-drawn.log()).log().to(logits.device)

    most = logits.double().logsumexp(1, keepdim=True) + gumbel(len(logits), 1)
    sums = -torch.logaddexp(-most, -(logits.double() + gumbel(*logits.shape)))
    return sums.scatter(1, own[:, None], most).float()
