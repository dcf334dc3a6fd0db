"""What rounding a model's matrices to 8 or 4 bits costs: bits a weight, errors of products, and of the next token.

    python benchmarks/bench_rounding.py [--model smollm2-135m] [--tokens 512] [--out r.json]

"blocks of 32" are those of quantization="int8" and "int4"; "rows" have one scale a row. Errors are over what they are
errors of (root mean squares): of every product in the layers, with normal inputs, and of the logits on a text that the
model writes (sampled, temperature 1). The last figure is the mean divergence of the next token's distribution, in nats.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from typing import Any

import torch

import caw
from caw import ops
from caw.models.rounding import Q4_1, Q8_0, blocks_of
from caw.ops_ref.block_types import UNIT

ROWS = 64  # of inputs to a product


def blocks(kind: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def rounded(weight: torch.Tensor) -> torch.Tensor:
        packed = ops.pack_blocks(blocks_of(weight, kind), kind)
        return ops.unpack_rows(packed, torch.arange(len(weight)), weight.shape[1])

    return rounded


def rows(bits: int) -> Callable[[torch.Tensor], torch.Tensor]:
    most = 2 ** (bits - 1) - 1

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        scale = (weight.abs().amax(1, keepdim=True) / most).clamp(min=1e-30)
        return (weight / scale).round() * scale

    return rounded


# name -> (bits a weight, without the rows' scales; how a matrix is rounded)
WAYS = {
    "8 bits, blocks of 32": (8.5, blocks(Q8_0)),
    "8 bits, rows": (8.0, rows(8)),
    "4 bits, blocks of 32": (5.0, blocks(Q4_1)),
    "4 bits, rows": (4.0, rows(4)),
}


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def measure(model: Any, ids: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    other, errors = copy.deepcopy(model), []
    for module in other.get_decoder().layers.modules():
        if isinstance(module, torch.nn.Linear) and not module.in_features % UNIT:
            x = torch.randn(ROWS, module.in_features, generator=torch.Generator().manual_seed(0))
            made = rounded(module.weight.data)
            errors.append(rms(x @ (made - module.weight).T) / rms(x @ module.weight.T))
            module.weight.data = made
    exact, found = model(ids).logits[0], other(ids).logits[0]
    p, q = exact.double().log_softmax(-1), found.double().log_softmax(-1)
    return {
        "products": sum(errors) / len(errors), "logits": rms(found - exact) / rms(exact),
        "divergence": float((p.exp() * (p - q)).sum(-1).mean()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    model, tokenizer = caw.load_model(arguments.model, device="cpu", dtype="float32")
    length = {"max_new_tokens": arguments.tokens, "min_new_tokens": arguments.tokens}
    text = caw.generate(model, tokenizer, "The history of tea", do_sample=True, seed=1, progress=False, **length)
    found = []
    print("| rounding | bits a weight | products | logits | divergence, nats |\n| --- | ---: | ---: | ---: | ---: |")
    with torch.inference_mode():
        for name, (bits, rounded) in WAYS.items():
            row = {k: float(f"{v:.3g}") for k, v in measure(model, torch.tensor(text.sequences), rounded).items()}
            found.append({"rounding": name, "bits": bits, **row})
            print(f"| {name} | {bits} | {row['products']:.2g} | {row['logits']:.2g} | {row['divergence']:.2g} |")
    if arguments.out:
        about = {k: v for k, v in vars(arguments).items() if k != "out"}
        report = {"arguments": about, "versions": {"caw": caw.__version__, "torch": torch.__version__}}
        with open(arguments.out, "w") as file:
            json.dump({**report, "rows": found}, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
