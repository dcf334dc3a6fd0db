"""Reference of `topk_softmax`: exact, stable top-K of each row with its logsumexp, in plain PyTorch.

    key(x, id) = ordered_bits(x) << 32 | (2^32 - 1 - id)

orders by value, then by smaller id, so one integer top-k is exact and deterministic on every device.
"""

import torch

ID_MASK = 0xFFFFFFFF
PADDING_ID = -1


def ordered_bits(values: torch.Tensor) -> torch.Tensor:
    """float32 -> int64 whose order is the floats' order; -0.0 equals 0.0, NaN sorts above +inf."""
    values = torch.where(values == 0, torch.zeros_like(values), values)
    bits = values.view(torch.int32)
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()


def topk_softmax_ref(
    logits: torch.Tensor, k: int, rows: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The K largest logits of each row.

    Args:
        logits: [R, V], float32, bfloat16 or float16, any strides.
        k: how many to keep; with V < k the tail is padded (value -inf, id -1, probability 0).
        rows: int64 [R'] rows to use, all if None.

    Returns:
        values [R, k] float32 descending, ids [R, k] int64, probs [R, k] float32, logsumexp [R] float32 (nats).
        Equal values are ordered by the smaller id. A row of -inf only has logsumexp -inf and probabilities 0.
    """
    if rows is not None:
        logits = logits.index_select(0, rows)
    logits = logits.float()
    vocab_size = logits.shape[-1]
    ids = torch.arange(vocab_size, device=logits.device)
    keys = (ordered_bits(logits) << 32) | (ID_MASK - ids)
    top = keys.topk(min(k, vocab_size), dim=-1, sorted=True).values
    top_ids = ID_MASK - (top & ID_MASK)
    values = logits.gather(-1, top_ids)
    if vocab_size < k:
        values = torch.nn.functional.pad(values, (0, k - vocab_size), value=-torch.inf)
        top_ids = torch.nn.functional.pad(top_ids, (0, k - vocab_size), value=PADDING_ID)
    logsumexp = torch.logsumexp(logits, dim=-1)
    # a fully masked row has no distribution: probability 0 everywhere instead of exp(-inf + inf) = NaN
    probs = torch.where(values == -torch.inf, torch.zeros_like(values), (values - logsumexp[:, None]).exp())
    return values, top_ids, probs, logsumexp
