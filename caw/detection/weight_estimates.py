"""Estimate the signal of each token id from texts marked under other keys.

For every token id: how often it was green (or its mean -log(1 - u)) where it counted. Most ids are rare, so each is
shrunk towards its class mean, and that towards the overall mean, as if `prior` more pieces of evidence had been seen
there (empirical Bayes). With two or more keys, the prior is the one under which each key's texts are most likely given
the others. The weight of an id is the log-odds of green over the null's, for races 1 - 1 / mean: see `weights`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from caw.detection.detector import Detector
from caw.detection.weights import MOST, TokenWeights, levels_of
from caw.io.progress import Bar
from caw.io.token_texts import id_count, token_texts
from caw.io.vocabulary import Vocabulary
from caw.watermarks import Watermark
from caw.watermarks.green_list import GreenList

PRIOR = 100.0
PRIORS = (10.0, 30.0, 100.0, 300.0, 1000.0)
KINDS = ("digits", "operators", "punctuation", "space", "name", "word", "inside a word", "other")


def kind_of(text: str) -> int:
    """Return the index into KINDS of a token's text."""
    core = text.strip()
    if not core:
        return KINDS.index("space")
    if core.isdigit():
        return KINDS.index("digits")
    if all(c in "+-*/=<>^%$€£×÷" for c in core):
        return KINDS.index("operators")
    if not any(c.isalnum() for c in core):
        return KINDS.index("punctuation")
    if core[0].isupper():
        return KINDS.index("name")
    if core.isalpha():
        return KINDS.index("word" if text[0].isspace() else "inside a word")
    return KINDS.index("other")


def token_kinds(tokenizer: Any, vocab_size: int) -> np.ndarray:
    """Return the kind of each token id, int64 [vocab_size]; ids unknown to the tokenizer are "other"."""
    known = min(vocab_size, id_count(tokenizer))
    kinds = np.full(vocab_size, KINDS.index("other"), dtype=np.int64)
    kinds[:known] = [kind_of(text) for text in token_texts(tokenizer, range(known))]
    return kinds


def tally(
    texts: Mapping[Watermark, Sequence[Any]], tokenizer: Any, vocab_size: int, *, progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (sum, number) float64 [keys, V] of values of counted tokens, of texts (strings or ids) by watermark."""
    sums, counts = np.zeros((len(texts), vocab_size)), np.zeros((len(texts), vocab_size))
    with Bar(sum(map(len, texts.values())), "scoring texts", "texts", enabled=progress, announced=True) as advance:
        for row, (watermark, items) in enumerate(texts.items()):
            detector = Detector(tokenizer, watermark)
            for scored in detector.score(detector.ids_of(items)):
                counted = scored.counted & (scored.ids < vocab_size)
                np.add.at(sums[row], scored.ids[counted], scored.values[counted])
                np.add.at(counts[row], scored.ids[counted], 1)
                advance()
    return sums, counts


def choose_prior(sums: np.ndarray, counts: np.ndarray, kinds: np.ndarray, watermark: Watermark) -> float:
    """Return the one of PRIORS that makes each key's texts [keys, V] likeliest given the others; PRIOR for one key."""
    if len(sums) < 2:
        return PRIOR
    scores = []
    for prior in PRIORS:
        total = 0.0
        for row in range(len(sums)):
            others = np.arange(len(sums)) != row
            if not counts[others].sum():
                continue
            means = np.clip(means_of(sums[others].sum(0), counts[others].sum(0), kinds, prior), 1e-3, None)
            if isinstance(watermark, GreenList):
                means = np.minimum(means, 1 - 1e-3)
                total += float((sums[row] * np.log(means) + (counts[row] - sums[row]) * np.log1p(-means)).sum())
            else:
                total -= float((counts[row] * np.log(means) + sums[row] / means).sum())
        scores.append(total)
    return PRIORS[int(np.argmax(scores))]


def means_of(sums: np.ndarray, counts: np.ndarray, kinds: np.ndarray, prior: float = PRIOR) -> np.ndarray:
    """Return each token id's mean value, float64 [V], shrunk towards its kind's, and that towards the overall mean."""
    overall = sums.sum() / counts.sum()
    per_kind = np.bincount(kinds, weights=counts, minlength=len(KINDS))
    kind_means = (np.bincount(kinds, weights=sums, minlength=len(KINDS)) + prior * overall) / (per_kind + prior)
    means: np.ndarray = (sums + prior * kind_means[kinds]) / (counts + prior)
    return means


def information(means: np.ndarray, watermark: Watermark) -> np.ndarray:
    """Return the weight of each token id, float64 [V]; 0 if it carries no information."""
    if isinstance(watermark, GreenList):
        null = watermark.green_fraction
        return np.maximum(special.logit(np.clip(means, 1e-3, 1 - 1e-3)) - special.logit(null), 0.0)
    return np.maximum(1 - 1 / np.maximum(means, 1e-3), 0.0)


def estimate_weights(
    texts: Mapping[Watermark, Sequence[Any]],
    tokenizer: Any,
    vocab_size: int,
    prior: float | None = None,
    provenance: dict[str, Any] | None = None,
    *,
    progress: bool = False,
) -> TokenWeights:
    """Estimate a token-weight table from marked texts.

    Args:
        texts: strings or id lists by the watermark that marked them; watermarks of one kind with different keys, none
            of which is the key to be tested.
        tokenizer: of the model that wrote the texts.
        vocab_size: length of the table; ids beyond it use its default.
        prior: pseudo-count in tokens that shrinks rare tokens towards their kind; None = fitted.
        provenance: further information about its origin to store in the table.
        progress: show progress on stderr.

    Deterministic. Raises ValueError if nothing counts or the watermarks differ in more than the key.
    """
    kinds_of_marks = {(type(w), getattr(w, "gamma", None)) for w in texts}
    if len(kinds_of_marks) != 1:
        raise ValueError(
            f"all texts must have one watermark and gamma, got {len(kinds_of_marks)}; make a table for each"
        )
    sums, counts = tally(texts, tokenizer, vocab_size, progress=progress)
    if not counts.sum():
        raise ValueError("marked texts with tokens that count are required, got none; give longer texts")
    kinds = token_kinds(tokenizer, vocab_size)
    prior = choose_prior(sums, counts, kinds, next(iter(texts))) if prior is None else prior
    sums, counts = sums.sum(axis=0), counts.sum(axis=0)
    means = means_of(sums, counts, kinds, prior)
    weights = information(means, next(iter(texts)))
    null = getattr(next(iter(texts)), "green_fraction", 1.0)
    levels = levels_of(weights)
    seen = counts > 0
    default = int(np.rint(np.average(levels[seen], weights=counts[seen]))) if seen.any() else MOST // 2
    about: dict[str, Any] = {
        "key_ids": sorted(w.key_id for w in texts),
        "watermark": next(iter(texts)).name,
        "tokens": int(counts.sum()),
        "prior": prior,
        "null_mean": round(float(null), 6),
        "mean_by_kind": {
            name: round(float(sums[kinds == k].sum() / counts[kinds == k].sum()), 4)
            for k, name in enumerate(KINDS)
            if counts[kinds == k].sum()
        },
    }
    about.update(provenance or {})
    return TokenWeights(levels, max(1, default), about, vocabulary=Vocabulary.of(tokenizer))


def weights_by_kind(table: TokenWeights, tokenizer: Any, provenance: dict[str, Any] | None = None) -> TokenWeights:
    """Make a table for another tokenizer, by each token's kind in `table`; ValueError if that has none by kind."""
    means, null = table.provenance.get("mean_by_kind"), table.provenance.get("null_mean")
    if not isinstance(means, dict) or not isinstance(null, (int, float)):
        raise ValueError("the table must come from estimate_weights, got one without means by kind; make it again")
    average = float(np.mean(list(means.values())))
    of_kind = np.array([means.get(name, average) for name in KINDS])
    by_kind = special.logit(of_kind) - special.logit(null) if null < 1 else 1 - 1 / of_kind
    levels = levels_of(np.maximum(by_kind, 0))
    inherited = ("key_ids", "watermark", "mean_by_kind", "null_mean", "model", "policy")
    about: dict[str, Any] = {name: table.provenance[name] for name in inherited if name in table.provenance}
    about["by_kind_from"] = table.provenance.get("model", "another table")
    about.update(provenance or {})
    of_each = levels[token_kinds(tokenizer, id_count(tokenizer))]
    return TokenWeights(of_each, max(1, int(levels.mean())), about, vocabulary=Vocabulary.of(tokenizer))
