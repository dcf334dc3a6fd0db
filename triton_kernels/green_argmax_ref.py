"""Reference of `green_argmax`: the likeliest green token of whole rows, for positions whose record holds none."""

import torch

from caw import prf
from caw.ladder import greatest_green


def green_argmax_ref(
    scores: torch.Tensor,
    context: torch.Tensor,
    key: torch.Tensor,
    threshold: int,
    selfhash: bool,
    wanted: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Likeliest token t of each row with (word_t >> 8) < threshold.

    Args:
        scores: float32, bfloat16 or float16 [B, V], no NaN. context: int64 [B, W] (Unigram: W = 0).
        key: int64 [B], the 64 bits of each row's list key. threshold: floor(gamma 2^24).
        selfhash: whether the word is KGW's anchored minimum (W >= 1), else PRF(key, context, t).
        wanted: bool [B], rows to scan, all if None; the others give (-1, -inf).

    Returns:
        token int64 [B], ties to the smaller id, -1 if no green token has a score above -inf; its score float32 [B].
    """
    secret, vocab_size = key[:, None], scores.shape[1]
    if selfhash:
        seeds = prf.anchored_vocabulary_seeds(secret, context, vocab_size)
        words = prf.seeded_words(secret, seeds, torch.arange(vocab_size, device=scores.device))
    else:
        words = prf.vocabulary_words(secret, context, vocab_size)
    green = prf.below(words, threshold).expand(scores.shape)
    return greatest_green(scores.float(), green if wanted is None else green & wanted[:, None])
