"""Reference of `draw_scores`: logits plus sampling noise, and the record of the sums."""

import torch

from caw.triton_kernels.sampling_noise_ref import sampling_noise_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref


def draw_scores_ref(
    warped: torch.Tensor, drawn: torch.Tensor, context: torch.Tensor, key: torch.Tensor, k: int, reach: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores float32 [B, V], and the k largest of each row: values float32 [B, k] and ids int64 [B, k].

    Args:
        warped: float32 [B, V], -inf = excluded. drawn: bool [B], rows that draw; the others keep their logits.
        context: int64 [B, W]. key: int64 [B], 64 bits of each row's noise key. k: entries of a record.
        reach: at least 0. A score further below its row's largest than this may be -inf instead, if it is not in the
            record; here none is.

    Ties go to the smaller id; entries beyond the tokens that are left are as in `topk_softmax_ref`.
    """
    noise = sampling_noise_ref(context, key, warped.shape[1])
    scores = torch.where(drawn[:, None], warped + noise, warped)
    values, ids, _, _ = topk_softmax_ref(scores, k)
    return scores, values, ids
