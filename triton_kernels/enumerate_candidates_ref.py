"""Reference of `enumerate_candidates`: the ladder of each row from its record, in plain PyTorch.

The same ladders as `Watermark.ladder` of the native formats, from plain numbers instead of a watermark, as a kernel
gets them: reweighting ladder (Kirchenbauer et al. 2023, Algorithm 2) and race ladder (Aaronson 2022).
"""

import torch

from caw import ladder as ladders
from caw import prf
from caw.ladder import greatest_green
from caw.op_indices import RACE_SCALE, RACE_TOP_K, SELFHASH
from caw.triton_kernels.race_ladder_ref import race_ladder_ref


def enumerate_candidates_ref(
    values: torch.Tensor,
    ids: torch.Tensor,
    race: torch.Tensor,
    scores: torch.Tensor,
    context: torch.Tensor,
    key: torch.Tensor,
    scheme: int,
    threshold: int,
    full: float,
    max_strength: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates int64 [B, M], needs float32 [B, M], counts int64 [B], as `caw.ladder.Ladder` has them.

    Args:
        values: float32 [B, K], ids: int64 [B, K]: record of the logits the choice is made from; -inf and -1 = padding.
        race: float32 [B, K], the unperturbed logits of ids; only races read them.
        scores: float32 [B, V], the rows behind the record; read where it holds no green token and one beyond counts.
        context: int64 [B, W]. key: int64 [B], the 64 bits of each row's key.
        scheme: 0 green list of a context, 1 selfhash green list, 2 race by top_k, 3 race by scale.
        threshold: a word is green iff (word >> 8) < threshold. full: delta, top_k or 1. max_strength: as in `ladder`.

    M is 2 for green lists, the ranks that max_strength * full reaches for races by top_k, and K for races by scale.
    """
    if scheme in (RACE_TOP_K, RACE_SCALE):
        noise = prf.gumbel(prf.context_words(key[:, None], context, ids))
        raced = torch.where(values > -torch.inf, race.double() + noise, -torch.inf)
        return race_ladder_ref(values, ids, raced, full, max_strength, scheme == RACE_SCALE)
    secret = key[:, None]
    if scheme == SELFHASH:
        words = prf.seeded_words(secret, prf.anchored_seeds(secret, context, ids), ids)
    else:
        words = prf.context_words(secret, context, ids)
    token, logit = ladders.first_green(ids, values, prf.below(words, threshold) & (values > -torch.inf))
    wanted = (token < 0) & ladders.may_win_beyond(values, full, max_strength)
    scanned, scanned_logit = green_argmax_ref(scores, context, key, threshold, scheme == SELFHASH, wanted)
    token, logit = torch.where(wanted, scanned, token), torch.where(wanted, scanned_logit, logit)
    rungs = ladders.reweight_ladder(ids[:, 0], values[:, 0], token, logit, full, max_strength)
    return rungs.candidates, rungs.needs, rungs.counts


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
