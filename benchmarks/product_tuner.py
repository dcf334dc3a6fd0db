"""Choose the kernel and tile size of each product of a model on this device, by timing them.

For every product of the model each maker is held against the reference, asked whether a row has the same bits beside
any other rows, and timed. Of those that can be used at run time and are blind to other rows the fastest is kept, in the
file that launchers read (`triton_kernels/tuned.py`). A choice is for all numbers of rows: what counts is the mean
of the logarithms of the times at TIMED_ROWS.
"""

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from product_makers import Data, Maker, Product, makers
from replays import CALLS, impossible, on_device, read_bandwidth, timer
from torch.nn import Linear

from caw.benchmark.machine import about
from caw.benchmark.subjects import random_model
from caw.decoding.forward.fused_layers import FusedLayer, fused_forwards
from caw.io.show import in_a_line
from caw.models import load_model
from caw.models.packed import PackedLinear
from caw.testing import assert_close
from caw.triton_kernels.small_linear import MAX_ROWS
from caw.triton_kernels.tuned import load, save

KIND = "tuned products"
TIMED_ROWS = (1, 8, 32, 64)
ROUNDS = 7
# of x, beside which numbers of rows a row must keep its bits; few: where each takes the interpreter's time
COUNTS, FEW_COUNTS = tuple(range(1, MAX_ROWS + 1)), (1, 33)
Saved = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Device:
    """capability: first figure of the compute capability. few: kernels are interpreted: small work, no times."""

    device: torch.device
    name: str
    capability: int
    few: bool = False


def tunable(device: str | None) -> Device:
    """The GPU to tune; ValueError where there is none."""
    found = torch.device(device or "cuda")
    if found.type != "cuda" or not torch.cuda.is_available():
        raise ValueError(f"tuning needs a CUDA device, found {device or 'none'}; run it where the model is to run")
    found = torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)
    return Device(found, torch.cuda.get_device_name(found), torch.cuda.get_device_capability(found)[0])


def products_of(model: Any) -> list[Product]:
    """Return every product of a step that this library computes, the largest share of the weights first."""
    counts: Counter[Product] = Counter()
    inside: set[int] = set()
    for _, layer in fused_forwards(model):
        assert isinstance(layer, FusedLayer)
        inside.update(id(module) for module in layer.layer.modules())
        q, k, v, out, gate, up, down = layer.shapes()
        biased = [bias is not None for bias in layer.biases()]
        dtype, form = layer.weights[0].dtype, getattr(layer.layer.mlp.up_proj, "form", None)
        make = partial(Product, dtype=dtype, form=form)
        counts[make((q[0], k[0], v[0]), q[1], biased=any(biased[:3]))] += 1
        added = not layer.kind.after  # by the product itself
        counts[make((out[0],), out[1], residual=added, biased=biased[3])] += 1
        counts[make((gate[0], up[0]), gate[1], gated=True, biased=any(biased[4:6]))] += 1
        counts[make((down[0],), down[1], residual=added, biased=biased[6])] += 1
    for module in model.modules():
        if type(module) in (Linear, PackedLinear) and id(module) not in inside:
            form = getattr(module, "form", None)
            dtype = module.weight.dtype if form is None else module.dtype
            counts[Product((module.out_features,), module.in_features, dtype, biased=module.bias is not None,
                           form=form)] += 1  # fmt: skip
    found = [replace(one, count=count) for one, count in counts.items()]
    return sorted(found, key=lambda one: -one.bytes * one.count)


def tune(
    target: Device, products: Sequence[Product], seconds: float | None,
    say: Callable[[str], None] = lambda message: None, saved: Saved = lambda found: None,
) -> dict[str, Any]:  # fmt: skip
    """Time every maker of every product and keep the best in the device's file after each product.

    seconds: no maker but this library's usual one and torch's is begun once they have passed, each product having its
    share of them; None = all. saved: called after each product with what is returned.

    Returns plain data: kind, device, machine, bandwidth (bytes a second that a kernel reads), file, wrong (a sentence
    if a share cannot be, else empty) and rows: product, count, bytes, floor_us, chosen (a maker's name, None = left to
    arithmetic) and makers: name, selectable, and either
    us (by number of rows, medians), share_of_bandwidth (at one row), row_invariant and usual_bits (whether they are
    those of the tiles that arithmetic chooses), or error.
    """
    with on_device(target.device):
        bandwidth = read_bandwidth(target.device.type, target.few)
    try:
        choices = load(target.name)
    except (OSError, ValueError):
        choices = {}  # of other versions, or damaged: it is written anew
    found: dict[str, Any] = {"kind": KIND, "device": target.name, **about(target.device), "bandwidth": bandwidth,
                             "complete": False, "rows": []}  # fmt: skip
    end = None if seconds is None else time.monotonic() + seconds
    for number, wanted in enumerate(products):
        say(f"{wanted.key} ({number + 1} of {len(products)})")
        now = time.monotonic()
        until = None if end is None else now + max(end - now, 0) / (len(products) - number)
        with on_device(target.device):
            row, best = tune_one(wanted, target, bandwidth, until, say)
        choices.pop(wanted.key, None)
        if best is not None and best.choice is not None:
            choices[wanted.key] = best.choice
        found["rows"].append(row)
        found["file"] = save(target.name, choices).name
        makers_of = [maker for one in found["rows"] for maker in one["makers"]]
        found["wrong"] = "" if target.few else impossible(makers_of)
        found["complete"] = number == len(products) - 1
        saved(found)
    return found


def tune_one(
    wanted: Product, target: Device, bandwidth: float, until: float | None, say: Callable[[str], None]
) -> tuple[dict[str, Any], Maker | None]:
    """The row of one product and the maker that is best."""
    data = Data(wanted, target.device, target.few)
    expected, usual = data.expected(), None
    rows: list[dict[str, Any]] = []
    timers: dict[str, dict[int, Callable[[], float]]] = {}
    able: dict[str, Maker] = {}
    for maker in makers(data, target.capability):
        row: dict[str, Any] = {"name": maker.name, "selectable": maker.choice is not None}
        rows.append(row)
        if until is not None and time.monotonic() > until and len(rows) > 3:
            row["error"] = "left out, no time"
            continue
        say(f"{wanted.key}: {maker.name}")
        try:
            facts, whole = judged(maker, expected, target.few)
            usual = whole if len(rows) == 1 else usual
            row |= {**facts, "usual_bits": usual is not None and torch.equal(whole, usual)}
            timers[maker.name] = timers_of(maker, data, target)
        except Exception as error:  # of any kind: one that does not compile must not take the others along
            row["error"] = in_a_line(error)
            continue
        if maker.choice is not None and row["row_invariant"]:
            able[maker.name] = maker
    times = measured(timers, 1 if target.few else ROUNDS)
    floor = wanted.bytes / bandwidth
    for row in rows:
        if row["name"] in times and "error" not in row:
            row["us"] = {m: round(1e6 * seconds, 3) for m, seconds in times[row["name"]].items()}
            row["share_of_bandwidth"] = round(floor / times[row["name"]][TIMED_ROWS[0]], 3)
    best = min(able, key=lambda name: sum(map(math.log, times[name].values())), default=None)
    about_it = {"product": wanted.key, "count": wanted.count, "bytes": wanted.bytes, "floor_us": round(1e6 * floor, 3)}
    return {**about_it, "chosen": best, "makers": rows}, None if best is None else able[best]


def judged(maker: Maker, expected: torch.Tensor, few: bool) -> tuple[dict[str, Any], torch.Tensor]:
    """row_invariant, and the result of all rows; raises where that is not the reference's."""
    whole = maker.make(slice(0, MAX_ROWS), 0)
    if maker.exact:
        kind = str(expected.dtype).removeprefix("torch.")
        assert_close(whole, expected, kind if kind == "float32" else f"attention/{kind}")
    invariant = all(
        torch.equal(maker.make(slice(first, first + m), 0), whole[first : first + m])
        for m in (FEW_COUNTS if few else COUNTS)
        for first in {0, MAX_ROWS - m}
    )
    return {"row_invariant": invariant}, whole


def timers_of(maker: Maker, data: Data, target: Device) -> dict[int, Callable[[], float]]:
    """By number of rows."""
    count = 1 if target.few else max(CALLS, len(data.copies))

    def timed(m: int) -> Callable[[], float]:
        return timer(lambda i: maker.make(slice(0, m), i), count, target.device.type, target.few)

    return {m: timed(m) for m in TIMED_ROWS}


def measured(timers: dict[str, dict[int, Callable[[], float]]], rounds: int) -> dict[str, dict[int, float]]:
    """Medians, seconds; the makers take turns in every round."""
    times: dict[str, dict[int, list[float]]] = {name: {m: [] for m in by_rows} for name, by_rows in timers.items()}
    for _ in range(rounds):
        for name, by_rows in timers.items():
            for m, once in by_rows.items():
                times[name][m].append(once())
    return {name: {m: statistics.median(s) for m, s in by_rows.items()} for name, by_rows in times.items()}


def products_to_tune(
    model: str, shapes: str | None, dtype: str, target: Device, weights: str | None = None
) -> list[Product]:
    """Of a model, or of these shapes; ValueError where this library makes no product of it. weights: packed ones."""
    if shapes is not None:
        subject = random_model(shapes, "float16" if dtype == "auto" else dtype, "meta", weights)
    else:
        subject, _ = load_model(model, device=str(target.device), dtype=dtype, quantization=weights)
    found = products_of(subject)
    if not found:
        raise ValueError(
            f"tuning needs a model with plain linear layers, found none in {shapes or model}; name another"
        )
    return found
