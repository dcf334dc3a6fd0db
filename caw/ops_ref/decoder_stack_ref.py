"""Reference of `decoder_stack`: all layers of a model, one after another."""

from collections.abc import Sequence

import torch

from caw.ops_ref.prefill_layer_ref import prefill_layer_ref
from caw.triton_kernels.decoder_layer_ref import LLAMA, decoder_layer_ref


def decoder_stack_ref(
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    store: torch.Tensor,
    scratch: torch.Tensor,
    slot: int,
    lengths: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
    eps: float,
    scale: float,
    windows: Sequence[int],
    rows: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
    family: str = LLAMA,
    softcap: float | None = None,
    rotations: Sequence[int] = (),
    multiplier: float = 1.0,
) -> torch.Tensor:
    """L layers of the same rows: `decoder_layer_ref`, or with places `prefill_layer_ref`, layer by layer.

    Args:
        hidden: [B, C, E], or packed [N, 1, E]. cos, sin: [B, C, R], or [N, 1, R]; with rotations one more dimension
            before these, of the kinds of layers.
        store: [L, 2, B', HK, S, D], keys and values of committed tokens, B' >= B; mutated where there are places.
        scratch: [L, 2, B', slots, HK, D], mutated where there are none: the candidates' keys and values.
        slot: of the first candidate of each sequence.
        lengths: int64 [B]; with places int64 [N], the position of each row.
        weights: of each layer 9 to 13, or with merged matrices 6 to 10, one layer after another, as in
            `decoder_layer_ref`.
        biases: of each layer one for each of its matrices, or none at all. eps, scale: of all layers.
        windows: L sliding windows, 0 = none.
        rows: int64 [N], the sequence of each row; needed with places. places: int64 [N], as in `prefill_layer_ref`.
        family, softcap, multiplier: as in `decoder_layer_ref`.
        rotations: L indices, which cos and sin; none = all share one.

    Returns:
        Shaped as hidden, in its dtype. Bit for bit what the layers give in calls of their own.
    """
    count, matrices = len(weights) // len(windows), len(biases) // len(windows)
    for i, window in enumerate(windows):
        own = weights[i * count : (i + 1) * count]
        bias = biases[i * matrices : (i + 1) * matrices] or [None] * 7
        turned = (cos[rotations[i]], sin[rotations[i]]) if rotations else (cos, sin)
        around = window or None
        if places is not None:
            assert rows is not None
            hidden = prefill_layer_ref(
                hidden, *turned, store[i, 0], store[i, 1], rows, lengths, places, own, bias, eps, scale, around,
                family, softcap, multiplier,
            )  # fmt: skip
            continue
        keys, values = store[i, :, : lengths.shape[0]]
        hidden = decoder_layer_ref(
            hidden, *turned, keys, values, scratch[i, 0], scratch[i, 1], slot, lengths, own, bias, eps, scale,
            around, rows, family, softcap, multiplier,
        )  # fmt: skip
    return hidden
