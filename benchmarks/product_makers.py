"""Kernels for a product of few rows: this library's with several tile sizes, and torch's."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from product_trials import product_trials
from replays import copies_of
from torch.nn.functional import linear, silu

from caw.models.packed import pack_weight
from caw.triton_kernels.block_sizes import ProductBlocks, product_blocks
from caw.triton_kernels.packed_weights_ref import FP8, INT4, Format, unpack_weight_ref
from caw.triton_kernels.small_linear import MAX_ROWS, by_torch, product, torch_can
from caw.triton_kernels.small_linear_ref import product_ref
from caw.triton_kernels.tuned import OWN, TORCH, TORCH_PADDED, Choice, Kind, shape_key

Make = Callable[[slice, int], torch.Tensor]


@dataclass(frozen=True)
class Product:
    """One of a model. count: how many there are; form: of packed weights, None = dense ones; the others as
    `small_linear.product` has them."""

    outputs: tuple[int, ...]
    size: int
    dtype: torch.dtype
    gated: bool = False
    residual: bool = False
    biased: bool = False
    count: int = 1
    form: Format | None = None

    @property
    def key(self) -> str:
        kind = Kind(self.gated, self.biased, self.residual)
        return shape_key(self.outputs, self.size, self.dtype, kind, self.form)

    @property
    def bytes(self) -> int:
        """Bytes of the weights, which must be read once."""
        row = self.size * self.dtype.itemsize if self.form is None else self.form.row(self.size)
        return sum(self.outputs) * row


@dataclass(frozen=True)
class Maker:
    """make(rows, i): the product of those rows of x with copy i of the weights.

    choice: what a table of tuned products would say, None = here for comparison. exact: whether it is to give the
    reference's numbers; what reads weights of fewer bits does not.
    """

    name: str
    choice: Choice | None
    make: Make
    exact: bool = True


class Data:
    """Random x [MAX_ROWS, K], and more copies of the weights than a cache holds; few: one, sums that do not round."""

    def __init__(self, wanted: Product, device: torch.device, few: bool) -> None:
        torch.manual_seed(0)
        self.wanted, self.few = wanted, few

        def make(*shape: int) -> torch.Tensor:
            numbers = torch.randn(*shape, device=device)
            # the interpreter sums in NumPy's order, which is nobody's promise: there no order makes a difference
            return (numbers.round() if few else numbers / wanted.size**0.25).to(wanted.dtype)

        def weight(outputs: int) -> torch.Tensor:
            if wanted.form is None:
                return make(outputs, wanted.size)
            numbers = make(outputs, wanted.size)
            if few:  # numbers that no format rounds: of every block the least and the greatest are whole steps away
                numbers = numbers.clamp(-8, 7)
                numbers[:, ::32], numbers[:, 1::32] = (-8, 7) if wanted.form is INT4 else (127, 0)
            return pack_weight(numbers, wanted.form)

        self.x = make(MAX_ROWS, wanted.size)
        self.copies: list[list[torch.Tensor]] = copies_of(
            lambda: [weight(o) for o in wanted.outputs], wanted.bytes, few
        )
        self.biases = [make(o) if wanted.biased else None for o in wanted.outputs]
        width = wanted.outputs[0] if wanted.gated else sum(wanted.outputs)
        self.residual = make(MAX_ROWS, width) if wanted.residual else None

    def arguments(self, rows: slice, i: int) -> tuple[Any, ...]:
        residual = None if self.residual is None else self.residual[rows]
        return self.x[rows], self.copies[i % len(self.copies)], self.biases, residual, self.wanted.gated

    def dense(self, i: int) -> list[torch.Tensor]:
        """Copy i of the weights as numbers of x's dtype."""
        wanted, found = self.wanted, self.copies[i]
        return found if wanted.form is None else [unpack_weight_ref(w, wanted.size, wanted.dtype) for w in found]

    def expected(self) -> torch.Tensor:
        x, _, *rest = self.arguments(slice(0, MAX_ROWS), 0)
        return product_ref(x, self.dense(0), *rest)


def makers(data: Data, capability: int) -> Iterator[Maker]:
    """Each made when its turn comes. The first two are what a program runs by without tuning, and torch.

    capability: the first figure of the device's compute capability.
    """
    wanted = data.wanted
    width = wanted.outputs[0] if wanted.gated else sum(wanted.outputs)
    usual = product_blocks(width, wanted.size, wanted.dtype, wanted.gated, wanted.form)
    yield own(data, usual)
    yield from torch_makers(data) if wanted.form is None else [dense_maker(data), *anchors(data)]
    for tiles in product_trials(wanted.size, wanted.dtype, wanted.gated, capability, wanted.form):
        if tiles != usual:
            yield own(data, tiles)


def own(data: Data, blocks: ProductBlocks) -> Maker:
    """Named by outputs and inputs of a tile, warps and stages."""
    name = f"{OWN} {blocks.block_o}x{blocks.block_k}/{blocks.num_warps}/{blocks.num_stages}"
    return Maker(name, Choice(OWN, blocks), lambda rows, i: product(*data.arguments(rows, i), blocks=blocks))  # type: ignore[misc]


def torch_makers(data: Data) -> Iterator[Maker]:
    """cuBLAS. In float32 users may switch it to fewer bits at any time, so that no check of it would hold."""
    wanted = data.wanted
    weights = data.copies[0]
    if not torch_can(weights, data.biases, data.residual, wanted.gated):
        yield Maker("torch, one product for each weight", None, lambda rows, i: by_several(*data.arguments(rows, i)))
        return
    for name, padded in ((TORCH, False), (TORCH_PADDED, True)):

        def make(rows: slice, i: int, padded: bool = padded) -> torch.Tensor:
            x, chosen, biases, residual, _ = data.arguments(rows, i)
            return by_torch(x, chosen[0], biases[0], residual, padded=padded)

        yield Maker(name, None if wanted.dtype == torch.float32 else Choice(name), make)


def dense_maker(data: Data) -> Maker:
    """Build the baseline of packed weights: torch's product of the same numbers, dense."""
    weights = [data.dense(i) for i in range(len(data.copies))]

    def make(rows: slice, i: int) -> torch.Tensor:
        x, _, *rest = data.arguments(rows, i)
        return by_several(x, weights[i % len(weights)], *rest)

    return Maker("torch, dense weights", None, make, exact=False)  # rounds between two products


def anchors(data: Data) -> Iterator[Maker]:
    """What torch has for weights of as many bits, of any numbers: times to compare with, no results."""
    wanted, cpu = data.wanted, data.x.device.type == "cpu"
    shape, numbers = (sum(wanted.outputs), wanted.size), max(1, len(data.copies))
    make: Make
    if wanted.form is FP8:
        scale = torch.ones((), device=data.x.device)
        x8 = data.x.to(torch.float8_e4m3fn)
        eighths = [torch.ones(shape, device=data.x.device).to(torch.float8_e4m3fn).t() for _ in range(numbers)]

        def make(rows: slice, i: int) -> torch.Tensor:
            weight = eighths[i % numbers]
            return torch._scaled_mm(x8[rows], weight, scale, scale, out_dtype=torch.bfloat16)

        yield Maker("torch._scaled_mm, fp8 inputs", None, make, exact=False)
    if wanted.form is INT4 and shape[0] % 16 == 0:  # what torch packs
        x16 = data.x.to(torch.bfloat16)
        scales = torch.ones(wanted.size // 32, shape[0], 2, dtype=torch.bfloat16, device=data.x.device)
        sixteenths = [
            torch._convert_weight_to_int4pack_for_cpu(torch.ones(shape, dtype=torch.int32), 1) if cpu else
            torch._convert_weight_to_int4pack(scales.new_ones(shape[0], shape[1] // 2, dtype=torch.uint8), 8)
            for _ in range(numbers)
        ]  # fmt: skip
        product_of_torch = torch._weight_int4pack_mm_for_cpu if cpu else torch._weight_int4pack_mm

        def make(rows: slice, i: int) -> torch.Tensor:
            return product_of_torch(x16[rows], sixteenths[i % numbers], 32, scales)

        yield Maker("torch._weight_int4pack_mm", None, make, exact=False)


def by_several(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None],
    residual: torch.Tensor | None, gated: bool,
) -> torch.Tensor:  # fmt: skip
    """The product as a model's own modules make it."""
    parts = [linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
    out = silu(parts[0]) * parts[1] if gated else torch.cat(parts, dim=1)
    return out if residual is None else out + residual
