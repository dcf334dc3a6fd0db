"""Arguments of a product of few rows, as drawn for dense and for packed weights."""

import torch


def drawn(device, rows, size, outputs, dtype, biases=0, residual=False, gated=False):
    generator = torch.Generator().manual_seed(rows * 1000 + size)

    def make(*shape):
        return (torch.randn(*shape, generator=generator) / size**0.25).to(dtype).to(device)

    width = outputs[0] if gated else sum(outputs)
    return (make(rows, size), [make(o, size) for o in outputs],
            [make(o) if biases >> i & 1 else None for i, o in enumerate(outputs)],
            make(rows, width) if residual else None, gated)  # fmt: skip
