"""Reference of `green_argmax`: the likeliest green token of whole rows, for positions whose record holds none."""

from __future__ import annotations

import torch

from caw import prf


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
        per_token = [prf.vocabulary_words(secret, column[:, None], vocab_size) for column in context.unbind(1)]
        seeds = torch.stack(per_token).amin(dim=0)
        tokens = torch.arange(vocab_size, device=scores.device).expand_as(seeds)
        words = prf.token_word(secret, prf.absorb_context(secret, [seeds, tokens]), tokens)
    else:
        words = prf.vocabulary_words(secret, context, vocab_size)
    green = ((words >> 8) < threshold).expand(scores.shape)
    if wanted is not None:
        green = green & wanted[:, None]
    masked = torch.where(green, scores.float(), -torch.inf)
    best = masked.max(dim=1, keepdim=True).values
    token = (green & (masked == best)).int().argmax(dim=1)
    return torch.where(best[:, 0] > -torch.inf, token, -1), best[:, 0]
