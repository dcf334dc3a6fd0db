"""Reference of `penalise_logits`: bias and penalties, as passes over the vocabulary."""

import torch


def penalise_logits_ref(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, numbers: torch.Tensor, prompts: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Logits float32 [B, V] with bias, then repetition, frequency and presence penalties; formulas in `penalties.py`.

    Args:
        logits: float32 [B, V]. tokens: int64 [B, T], those generated, below V, -1 = none.
        wanted: bool [B], rows that have any; the others come back as they are.
        numbers: float32 [B, 3], penalties of repetition (above 0), presence and frequency.
        prompts: bool [B, V], the prompt's tokens, or [B, 0]: no repetition penalty. bias: float32 [B, V] or [B, 0].
    """
    repetition, presence, frequency = numbers[:, :, None].unbind(dim=1)
    counts = torch.zeros_like(logits).scatter_add_(1, tokens.clamp_min(0), (tokens >= 0).to(logits.dtype))
    changed = logits + bias if bias.shape[1] else logits
    if prompts.shape[1]:
        less = torch.where(changed < 0, changed * repetition, changed / repetition)
        changed = torch.where(prompts | (counts > 0), less, changed)
    changed = changed - frequency * counts - presence * (counts > 0)
    return torch.where(wanted[:, None], changed, logits)
