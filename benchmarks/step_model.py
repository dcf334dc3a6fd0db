"""The model of a step: every launch of a captured step on a named GPU, its bytes and its least time, without a GPU.

The step runs once on tensors that have shapes and no contents. This library's operators give the launches that their
Triton launchers ask for; any other operation of torch that makes new data counts as one launch, a running sum as up to
three, which is too few for a few of them (sorting). Bytes are those of the tensors read and written, of tables only
what is looked up. The least time of a launch is its bytes over the memory's bandwidth, or the cost of a launch inside a
graph where that is more. Figures of devices are their data sheets', the cost of a launch is an assumption: nothing here
is measured.
"""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from caw.benchmark.modes import OWN, ModeInputs, parts_of
from caw.benchmark.subjects import Subject, random_model, untrained_evaluator
from caw.decoding.capture.fixed_step import DeviceStep
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.defaults import THETA
from caw.models.branchable import branchable_config
from caw.models.facts import ModelFacts, vocabulary_size
from caw.policies import FixedStrength
from caw.settings import Settings

KIND = "caw model of the step"
LAUNCH_US = 1.2  # assumed, of a small kernel in a graph: it starts, waits for the one before and ends
ROOM = 1 << 50  # bytes: a model of a step asks for no memory
# what reads a table at a few places: (operator, which argument is the table)
LOOKUPS = {"embedding": 0, "index_select": 0, "gather": 0, "index": 0}
# of these arguments only the rows written, or none of it, are touched
UNREAD = {"commit_kv": ("store", "scratch"), "commit_step": ("store", "scratch"), "enumerate_candidates": ("scores",),
          "ladder_step": ("scores",), "decision_step": ("table", "ring", "floats", "padded")}  # fmt: skip
# operators that the CUDA extension has instead of Triton, each one kernel
COMPILED = ("permutation_contains", "permutation_green", "generator_words")
# memory without contents, other names of tensors, and numbers that travel as arguments of a kernel
NO_KERNEL = ("empty", "new_empty", "empty_like", "empty_strided", "_unsafe_view", "lift_fresh", "scalar_tensor")
MODULES = ("commit_kv", "decision_step", "decoder_layer", "enumerate_candidates", "evaluator_step", "green_argmax",
           "ladder_step", "penalise_logits", "race_ladder", "race_winner", "rms_norm", "sampling_noise",
           "sibling_attention", "small_linear", "topk_softmax", "tournament", "warp_logits")  # fmt: skip


@dataclass(frozen=True)
class Device:
    """bandwidth: bytes a second, as the data sheet has it."""

    name: str
    bandwidth: float


DEVICES = {
    device.name: device
    for device in (Device("a100", 2.04e12), Device("h100", 3.35e12), Device("h200", 4.8e12), Device("b200", 8.0e12))
}


@dataclass(frozen=True)
class Launch:
    """One kernel. name: torch's operation, or this library's kernel; bytes: read and written."""

    name: str
    bytes: int

    def floor(self, device: Device) -> float:
        """Microseconds that its bytes take at the memory's bandwidth."""
        return 1e6 * self.bytes / device.bandwidth

    def microseconds(self, device: Device) -> float:
        """At least."""
        return max(LAUNCH_US, self.floor(device))


class Launches(TorchDispatchMode):
    """Inside the block every launch is noted; tensors have no contents."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Launch] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # an operation that is made of others is those
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if func.namespace == "caw":
            self.found += own_launches(func, args, kwargs, out)
        elif not (name in NO_KERNEL or is_view(func)):
            moved = _bytes_moved(name, func, args, kwargs, out)
            self.found += [*(_before_cumsum(args[0], out) if name == "cumsum" else []), Launch(name, moved)]
        return out


def _before_cumsum(given: torch.Tensor, out: torch.Tensor) -> list[Launch]:
    """Kernels before that of a running sum: other numbers become the sum's (bools int64), and one sum over all of a
    tensor is a scan of CUB, which first sets the states of its tiles."""
    cast = [Launch("cumsum_cast", _size(given) + _size(out))] if given.dtype != out.dtype else []
    return cast + ([Launch("cumsum_start", 0)] if out.dim() == 1 else [])


def is_view(func: Any) -> bool:
    """Return whether all results are input memory, unchanged."""
    aliases = [value.alias_info for value in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def own_launches(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> list[Launch]:
    """Return the launches of one of this library's operators; its bytes count with its first kernel, a layer's with
    each of its own.

    Raises ValueError for one without a kernel: on a GPU it would run elsewhere.
    """
    from caw.triton_kernels.launching import recorded

    name = func._schema.name.split("::")[1]
    if name in COMPILED:
        return [Launch(name, _bytes_moved(name, func, args, kwargs, out))]
    launcher = next((f for m in MODULES if (f := getattr(_kernels(m), name, None)) is not None), None)
    if launcher is None:
        raise ValueError(
            f"expected operators with a kernel of their own in a captured step, got {name}; leave its mode out"
        )
    with recorded() as launches:
        launcher(*args, **kwargs)
    if name == "decoder_layer":
        return [Launch(launch.kernel.__name__.strip("_"), _bytes_given(launch.arguments)) for launch in launches]
    moved = _bytes_moved(name, func, args, kwargs, out)
    return [Launch(launch.kernel.__name__.strip("_"), 0 if i else moved) for i, launch in enumerate(launches)]


def _kernels(module: str) -> Any:
    return importlib.import_module(f"caw.triton_kernels.{module}")


def _bytes_moved(name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    """Return the bytes of tensors given and returned; one changed in place counts twice, as read and written."""
    named = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    written = sum(map(_size, _tensors(out)))
    unread = UNREAD.get(name, ())
    read = sum(_size(t) for key, value in named.items() if key not in unread for t in _tensors(value))
    if name in LOOKUPS:
        read += written - _size(args[LOOKUPS[name]])
    if name == "copy_":
        read -= _size(args[0])
    if "scratch" in unread:  # one slot of each sequence, read there and written to the store
        scratch = named["scratch"]
        read += 2 * _size(scratch) // scratch.shape[3]
    return read + written


def _bytes_given(arguments: dict[str, Any]) -> int:
    """Return the bytes of the distinct tensors given to a kernel: absent ones have a stand-in."""
    return sum(map(_size, {id(t): t for t in _tensors(arguments)}.values()))


def _tensors(tree: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements: expanded dimensions are read once."""
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride or not size else 1
    return numbers * tensor.itemsize


def model_of_step(
    mode: str, shapes: str, dtype: str, batch: int, prefix: int, weights: str | None = None
) -> list[Launch]:
    """The launches of one captured step, in their order.

    Args:
        mode: one of `modes.OWN`. shapes: of `shapes.SHAPES`. prefix: tokens in the cache.
        weights: "fp8", "int8", "int4", or None = dense.

    Raises ValueError for a mode that is not this library's.
    """
    if mode not in OWN:
        raise ValueError(f"modes must be among {', '.join(OWN)} in a model of the step, got {mode!r}; leave it out")
    model = random_model(shapes, dtype, "meta", weights)
    facts = _facts(model)
    subject = Subject(
        model, None, untrained_evaluator(torch.zeros(facts.vocab_size, dtype=torch.uint8)), "random weights", text=False
    )
    watermark, policy, branching = parts_of(mode, ModeInputs(subject, [], THETA, None))
    options: dict[str, Any] = {"branching": branching, "max_memory": ROOM, "return_trace": False, "speculate": None}
    policy, settings = policy or FixedStrength(1.0), Settings(**options)
    limits = RowLimits.of([RowSettings.of(settings)], facts.ends, prefix)
    plan = make_plan(facts, watermark, policy, settings, limits, batch, captured=True)
    assert plan.captured, mode
    decoder = Decoder(model, plan)
    config = facts.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = torch.empty(decoder.cache.batch, heads, 1, dim, dtype=facts.dtype, device=facts.device)
    decoder.cache.allocate(keys, keys)
    steps = decoder.steps()
    assert isinstance(steps, RunAhead) and isinstance(steps.step, DeviceStep)
    with torch.inference_mode(), decoder.attention, decoder.linears, Launches() as launches:
        steps.step()
    return launches.found


def _facts(model: Any) -> ModelFacts:
    """Return the facts of a model without weights, which `ModelFacts.of` rejects: those of a small one with its
    shapes.
    """
    small = ModelFacts.of(random_model("tiny", "float32", "cpu"))
    config = branchable_config(model)
    return replace(
        small, kind=config.model_type, config=config, device=torch.device("meta"), dtype=model.dtype,
        vocab_size=vocabulary_size(model), ends=(), positions=None,
    )  # fmt: skip


def run(
    device: str, modes: Sequence[str], shapes: str, dtype: str, batches: Sequence[int], prefixes: Sequence[int],
    weights: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every case as plain data: kind, device, arguments, and rows.

    A row has mode, batch, prefix, launches, bytes, floor_us (bytes over the bandwidth), step_us (the sum of the
    launches' least times), kernels (of each name, in the order of its first launch: count, bytes, floor_us, us) and
    each (name, bytes, floor_us and us of every launch, in order). Raises ValueError naming the argument.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {device!r}; choose one of these")
    chosen, rows = DEVICES[device], []
    for batch in batches:
        for prefix in prefixes:
            for mode in modes:
                launches = model_of_step(mode, shapes, dtype, batch, prefix, weights=weights)
                rows.append({"mode": mode, "batch": batch, "prefix": prefix, **_totals(launches, chosen)})
    about = {"shapes": shapes, "dtype": dtype, "weights": weights, "launch_us": LAUNCH_US}
    return {"kind": KIND, "device": asdict(chosen), "arguments": about, "rows": rows}


def _totals(launches: Sequence[Launch], device: Device) -> dict[str, Any]:
    kernels: dict[str, dict[str, Any]] = {}
    for launch in launches:
        row = kernels.setdefault(launch.name, {"count": 0, "bytes": 0, "floor_us": 0.0, "us": 0.0})
        row["count"] += 1
        row["bytes"] += launch.bytes
        row["floor_us"] += launch.floor(device)
        row["us"] += launch.microseconds(device)
    moved = sum(launch.bytes for launch in launches)
    return {
        "launches": len(launches), "bytes": moved, "floor_us": 1e6 * moved / device.bandwidth,
        "step_us": sum(launch.microseconds(device) for launch in launches), "kernels": kernels,
        "each": [
            [one.name, one.bytes, round(one.floor(device), 3), round(one.microseconds(device), 3)] for one in launches
        ],
    }  # fmt: skip
