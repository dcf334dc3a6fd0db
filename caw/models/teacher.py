"""The only teacher-forced pass: a causal model's distributions along given texts.

One forward reads a text; its logits at position j - 1 are those of p_j, the distribution that token j is drawn from.
Training features, perplexity and counterfactual labels all read texts here. Only decoding reads prompts differently
(`caw.decoding.prefill`): in chunks, into the cache that it continues.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from caw.models.eval_mode import EvalMode
from caw.models.facts import decoding_device, position_limit
from caw.models.shared_prefix import NO_PREFIX, SharedPrefix

BATCH_TOKENS = 1024
ROWS = 4  # logit rows turned to float32 at once: they stay in the CPU's cache, which is three times faster than 64

Text = tuple[Sequence[int], int]  # its ids, and the first place, at least 1, whose distribution is wanted


def teacher_forced(
    model: Any,
    texts: Sequence[Text],
    *,
    names: Sequence[str] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    share: bool = False,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (index, logits [len(ids) - first + 1, V]) of each text (ids, first), shortest text first.

    Row j is p_{first + j}; the last row is the distribution of the token that would follow.

    Args:
        model: a causal LM; it is read in eval mode, whatever mode it is in.
        names: of the texts, for the error.
        batch_tokens: tokens of a forward, padding included (at least one text). Texts of like length go together,
            padded on the right, where a causal model cannot see it.
        share: read what all texts begin with once; the logits then differ by rounding. Copies of its keys and values
            take the place of at most PREFIX_COPIES times batch_tokens.

    Deterministic for the same texts and batch_tokens; a text's logits depend on its batch by rounding only. Raises
    ValueError at once for a text longer than the model's positions.
    """
    check_lengths(model, [ids for ids, _ in texts], names)
    return _read(model, texts, batch_tokens, share)


def check_lengths(model: Any, texts: Sequence[Sequence[int]], names: Sequence[str] | None = None) -> None:
    """Raise ValueError for a text longer than the model's positions."""
    limit = position_limit(model)
    for i, ids in enumerate(texts):
        if limit and len(ids) > limit:
            raise ValueError(
                f"texts must fit the model's {limit} positions, {names[i] if names else 'one'} has {len(ids)} tokens; "
                "shorten it, its prompt included, or leave it out"
            )


@torch.inference_mode()
def _read(model: Any, texts: Sequence[Text], batch_tokens: int, share: bool) -> Iterator[tuple[int, torch.Tensor]]:
    prefix = SharedPrefix.read(model, [ids[: first - 1] for ids, first in texts]) if share else NO_PREFIX
    for batch in _batches([len(ids) - prefix.length for ids, _ in texts], batch_tokens, prefix.most_rows(batch_tokens)):
        earliest = min(texts[i][1] for i in batch) - 1
        logits, start = forward(model, [texts[i][0] for i in batch], earliest, prefix)
        for b, i in enumerate(batch):
            ids, first = texts[i]
            yield i, logits[b, first - 1 - start : len(ids) - start]


def _batches(lengths: Sequence[int], batch_tokens: int, most_rows: int) -> Iterator[list[int]]:
    """Yield indices, shortest first, in runs of at most most_rows whose padded size stays within batch_tokens."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batch and ((len(batch) + 1) * lengths[i] > batch_tokens or len(batch) == most_rows):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def forward(
    model: Any, rows: Sequence[Sequence[int]], start: int, prefix: SharedPrefix = NO_PREFIX
) -> tuple[torch.Tensor, int]:
    """Return logits [B, n, V] of rows that begin with `prefix`, and the position of the first: `start` or before."""
    longest = max(len(row) for row in rows)
    padded = [[*row[prefix.length :], *[row[-1]] * (longest - len(row))] for row in rows]
    ids = torch.tensor(padded, device=decoding_device(model))
    cache = prefix.copies(len(rows))
    arguments: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None, "past_key_values": cache}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        # the vocabulary's rows cost most of the memory. By index, not by count: that would hand a strided slice to the
        # head, which torch multiplies 16 times slower in bfloat16 on a CPU
        arguments["logits_to_keep"] = torch.arange(start - prefix.length, ids.shape[1], device=ids.device)
    with EvalMode(model):
        logits = model(**arguments).logits
    return logits, longest - logits.shape[1]


def token_log_probs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of ids[j] under row j of logits [n, V], float64 [n] of sums in float32."""
    parts = [
        some.gather(1, ids[at : at + ROWS, None])[:, 0] - some.logsumexp(1)
        for at in range(0, max(len(ids), 1), ROWS)
        for some in (logits[at : at + ROWS].float(),)
    ]
    return torch.cat(parts).double()


def log_probs(
    model: Any,
    texts: Sequence[Text],
    batch_tokens: int = BATCH_TOKENS,
    done: Callable[[], None] = lambda: None,
    share: bool = False,
) -> list[np.ndarray]:
    """Yield log-probabilities, float64 [len(ids) - first], of the tokens ids[first:] of each text, given all before.

    done: called after each text that has such tokens. share, and what is raised: as in `teacher_forced`.
    """
    found: list[np.ndarray] = [np.zeros(0)] * len(texts)
    scored = [i for i, (ids, first) in enumerate(texts) if len(ids) > first]
    check_lengths(model, [ids for ids, _ in texts])
    for at, logits in teacher_forced(model, [texts[i] for i in scored], batch_tokens=batch_tokens, share=share):
        ids, first = texts[scored[at]]
        wanted = torch.tensor(ids[first:], device=logits.device)
        found[scored[at]] = token_log_probs(logits[:-1], wanted).cpu().numpy()
        done()
    return found
