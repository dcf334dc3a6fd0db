"""Reference of `warp_logits`: what the sampler keeps of logits, as transformers' processors in their order."""

import torch


def warp_logits_ref(
    logits: torch.Tensor,
    wanted: torch.Tensor,
    temperatures: torch.Tensor,
    top_ks: torch.Tensor,
    one_minus_top_ps: torch.Tensor,
    min_ps: torch.Tensor,
) -> torch.Tensor:
    """Logits float32 [B, V] over temperatures, -inf where top-k, top-p or min-p excludes the token.

    Args:
        logits: float32 [B, V]. wanted: bool [B], rows to warp; the others come back as they are.
        temperatures: float32 [B], above 0. top_ks: int64 [B]; 0, or V and more: all tokens.
        one_minus_top_ps: float32 [B]; negative: all tokens. min_ps: float32 [B]; 0: all tokens.

    Each stage sees what the one before has left. Tokens equal to the k-th largest stay. Top-p adds up probabilities
    from the least likely token on, of equal logits from the smallest id, and excludes those up to a sum of
    1 - top_p, never the last one. A row with NaN or +inf, or without a finite logit, is divided and not cut.
    """
    cooled = logits / temperatures[:, None]
    top = cooled.amax(dim=1)
    cut = wanted & top.isfinite() & (cooled == cooled).all(dim=1)
    warped = _min_p(_top_p(_top_k(cooled, top_ks), one_minus_top_ps), min_ps)
    warped = torch.where(cut[:, None], warped, cooled)
    return torch.where(wanted[:, None], warped, logits)


def _top_k(logits: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    ordered = torch.sort(logits, dim=1, descending=True).values
    vocab_size = logits.shape[1]
    limited = (top_ks >= 1) & (top_ks < vocab_size)
    least = ordered.gather(1, (top_ks - 1).clamp(0, vocab_size - 1)[:, None])
    return logits.masked_fill(limited[:, None] & (logits < least), -torch.inf)


def _top_p(logits: torch.Tensor, one_minus_top_ps: torch.Tensor) -> torch.Tensor:
    ordered, ids = torch.sort(logits, dim=1, stable=True)
    removed = ordered.softmax(dim=1).cumsum(dim=1) <= one_minus_top_ps[:, None]
    removed[:, -1:] = False
    return logits.masked_fill(removed.scatter(1, ids, removed), -torch.inf)


def _min_p(logits: torch.Tensor, min_ps: torch.Tensor) -> torch.Tensor:
    probs = logits.softmax(dim=1)
    return logits.masked_fill(probs < min_ps[:, None] * probs.amax(dim=1, keepdim=True), -torch.inf)
