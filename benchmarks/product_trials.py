"""The tiles of products that a tuner tries on a device."""

import torch

from caw.triton_kernels.block_sizes import ProductBlocks
from caw.triton_kernels.packed_weights_ref import INT4, Format

# ProductBlocks worth a trial, by the first figure of the compute capability: 8 has less shared memory and fewer bytes
# to keep under way; newer ones take the last. All compile without spills (aot_configurations.py)
PRODUCT_TRIALS: dict[int, dict[str, tuple[tuple[int, int, int, int], ...]]] = {
    8: {
        "half": ((16, 128, 2, 5), (32, 64, 4, 6), (32, 128, 4, 4), (64, 64, 4, 5), (64, 64, 8, 4), (64, 128, 4, 3)),
        "gated": ((16, 64, 4, 6), (16, 128, 4, 3), (32, 64, 4, 4), (32, 64, 8, 4)),
        "packed gated": ((16, 128, 4, 4), (16, 128, 4, 6)), "packed float32": ((16, 64, 8, 3),),
        "packed": ((16, 128, 2, 5), (32, 128, 4, 5), (64, 128, 8, 4)),
        "float32": ((16, 32, 4, 4), (16, 64, 4, 3), (32, 32, 4, 3)),
    },
    9: {
        "half": ((16, 128, 2, 7), (32, 128, 4, 5), (32, 128, 4, 7), (32, 256, 4, 4), (64, 64, 4, 7),
                 (64, 128, 8, 4), (128, 64, 8, 5)),
        "gated": ((16, 64, 4, 7), (16, 128, 4, 5), (32, 64, 4, 5), (32, 64, 8, 7), (32, 128, 8, 4)),
        "float32": ((16, 32, 4, 4), (16, 64, 4, 3), (32, 32, 4, 3), (32, 64, 4, 2)),
        "packed": ((16, 128, 2, 6), (32, 128, 4, 6), (32, 256, 4, 4), (64, 128, 8, 5)),
        "packed gated": ((16, 128, 4, 6), (16, 256, 4, 4), (32, 128, 4, 4)), "packed float32": ((16, 64, 8, 3),),
    },
}  # fmt: skip


def product_trials(
    size: int, dtype: torch.dtype, gated: bool, capability: int, form: Format | None = None
) -> list[ProductBlocks]:
    """Tiles that a tuner tries for weights of `size` inputs, none much wider than they are.

    capability: the first figure of the device's compute capability. form: of packed weights.
    """
    kind = "float32" if dtype == torch.float32 else "gated" if gated else "half"
    if form is not None:
        kind = f"packed {kind}".removesuffix(" half")
    found = [ProductBlocks(*sizes) for sizes in PRODUCT_TRIALS[min(max(capability, 8), max(PRODUCT_TRIALS))][kind]]
    least = 32 if form is INT4 and not gated else 16  # outputs: see product_rows
    return [blocks for blocks in found if blocks.block_k < 2 * max(size, 16) and blocks.block_o >= least]
