"""Perplexity of texts under a second model, and tests of whether perplexity or accuracy distinguishes two settings.

The paper's point is that a watermark can halve accuracy while perplexity hardly changes. A text is scored after its
prompt (how well does it continue it?) and alone (as in most published figures). The first token of a text alone is
skipped if the second model has no begin-of-text token to predict it from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from caw.models.facts import position_limit
from caw.models.teacher import BATCH_TOKENS, log_probs
from caw_lab.evaluation.metrics.accuracy import mcnemar


@dataclass(frozen=True)
class Perplexity:
    """exp(-mean log-probability) of a text after its prompt, and alone; None without one. num_tokens: its own."""

    given_prompt: float | None
    alone: float | None
    num_tokens: int


@dataclass(frozen=True)
class Comparison:
    """Two settings compared on the same questions.

    n: questions that both have. mann_whitney: p-value that ignores the pairing, as box plots do; wilcoxon: signed-rank
    p-value of the pairs; both two-sided, NaN where there is no test.
    mcnemar: exact p-value where every value is right or wrong, else None.
    """

    n: int
    mann_whitney: float
    wilcoxon: float
    mcnemar: float | None = None

    @property
    def paired(self) -> float:
        """The exact test if there is one, otherwise the signed ranks."""
        return self.wilcoxon if self.mcnemar is None else self.mcnemar


def perplexities(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    prompts: Sequence[str] | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
    done: Callable[[], None] = lambda: None,
) -> list[Perplexity]:
    """Return the perplexity of each text, after its prompt (if prompts are given) and alone.

    Args:
        model, tokenizer: the second model, as `caw.load_model` gives them.
        prompts: one for each text. Prompt and text are tokenised apart, as in generation. A prompt that does not fit
            the model's positions loses its beginning.
        batch_tokens: of one forward. done: called for each row that is finished: two for a text with prompt, else one.

    Raises ValueError for another number of prompts than of texts, and for a text longer than the model's positions.
    """
    if prompts is not None and len(prompts) != len(texts):
        raise ValueError(f"expected a prompt for each of {len(texts)} texts, got {len(prompts)}; give one each")
    coded = [tokenizer(text, add_special_tokens=False)["input_ids"] if text else [] for text in texts]
    begin = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    alone = log_probs(model, [_row(begin, ids) for ids in coded], batch_tokens, done)
    given: list[np.ndarray | None] = [None] * len(texts)
    if prompts is not None:
        limit = position_limit(model)
        before = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        if limit:
            before = [p[max(0, len(p) + len(ids) - limit) :] for p, ids in zip(before, coded, strict=True)]
        rows = [_row(p, ids) for p, ids in zip(before, coded, strict=True)]
        given = list(log_probs(model, rows, batch_tokens, done))
    return [Perplexity(_perplexity(g), _perplexity(a), len(c)) for g, a, c in zip(given, alone, coded, strict=True)]


def _row(before: Sequence[int], ids: Sequence[int]) -> tuple[list[int], int]:
    return [*before, *ids], max(1, len(before))


def _perplexity(values: np.ndarray | None) -> float | None:
    return float(np.exp(-values.mean())) if values is not None and len(values) else None


def compare_perplexity(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Test whether perplexities (by id) differ: Mann-Whitney's test over all, Wilcoxon's over the pairs' logarithms."""
    return _compare(first, second, np.log)


def compare_accuracy(first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
    """Test whether grades (by id: 1 or 0, or their mean over keys) differ."""
    shared = sorted(first.keys() & second.keys())
    a, b = np.array([first[i] for i in shared]), np.array([second[i] for i in shared])
    made = _compare(first, second, np.asarray)
    if len(shared) and np.isin([*a, *b], (0.0, 1.0)).all():
        return replace(made, mcnemar=mcnemar(int((a > b).sum()), int((b > a).sum())))
    return made


def _compare(first: Mapping[str, float], second: Mapping[str, float], scale: Any) -> Comparison:
    shared = sorted(first.keys() & second.keys())
    a, b = scale([first[i] for i in shared]), scale([second[i] for i in shared])
    if not shared:
        return Comparison(0, float("nan"), float("nan"))
    apart = float(stats.mannwhitneyu(list(first.values()), list(second.values())).pvalue)
    paired = float(stats.wilcoxon(a, b).pvalue) if np.any(a != b) else 1.0
    return Comparison(len(shared), apart, paired)


def box(values: Sequence[float]) -> dict[str, float]:
    """Return the statistics of a box plot: quartiles, and the 5 % and 95 % points for whiskers; {} for no values."""
    if not len(values):
        return {}
    ends = np.quantile(np.asarray(values, dtype=np.float64), (0.05, 0.25, 0.5, 0.75, 0.95)).tolist()
    return dict(zip(("low", "q1", "median", "q3", "high"), ends, strict=True))
