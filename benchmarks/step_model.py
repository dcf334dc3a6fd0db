"""The model of a step: every launch of a captured step on a named GPU, its bytes and its least time, without a GPU.

The step runs once on tensors that have shapes and no contents. This library's operators give the launches that their
Triton launchers ask for; any other operation of torch that makes new data counts as one launch, a running sum as up to
three, which is too few for a few of them (sorting). Bytes are those of the tensors read and written, of tables only
what is looked up.

    time of a launch = LAUNCH_US + (memory^4 + instructions^4 + shared memory^4)^(1/4)

Each of the three is an amount over a rate, and the slowest decides. Instructions and bytes through shared memory are
those of a product's loop in machine code (`aot.loop_work`), nothing for other kernels. The four constants are fitted to
one H100: bandwidth to the slopes of its steps over the prefix, the cost of a launch to what does not scale with bytes,
the other two to the tuner's times of 19 tiles. Other devices have the same shares of their data sheets, which nobody
has measured.
"""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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

LAUNCH_US = 3.7  # of every launch, before and after its work
READ, ISSUED, SHARED = 0.876, 0.53, 0.84  # of the memory's bandwidth, of slots for instructions, of shared memory's
SHARPNESS = 4
PRODUCT = "product_kernel"
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
    """Of the data sheet: bandwidth in bytes a second, multiprocessors, clock in Hz, compute capability."""

    name: str
    bandwidth: float
    processors: int
    clock: float
    capability: int

    def seconds(self, moved: float, instructions: float = 0.0, shared: float = 0.0) -> float:
        """Of these bytes of memory, instructions of warps and bytes through shared memory at once."""
        cycles = self.processors * self.clock  # in each of them four instructions and 128 bytes
        parts = moved / (READ * self.bandwidth), instructions / (4 * ISSUED * cycles), shared / (128 * SHARED * cycles)
        return float(sum(part**SHARPNESS for part in parts) ** (1 / SHARPNESS))


DEVICES = {
    device.name: device
    for device in (Device("a100", 2.04e12, 108, 1.41e9, 80), Device("h100", 3.35e12, 132, 1.98e9, 90),
                   Device("h200", 4.8e12, 132, 1.98e9, 90), Device("b200", 8.0e12, 148, 1.96e9, 100))
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One kernel. name: torch's operation, or this library's kernel; bytes: read and written; asked: of a product, what
    its launcher asks for."""

    name: str
    bytes: int
    asked: Any = None


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
        return [_own(launch, _bytes_given(launch.arguments)) for launch in launches]
    moved = _bytes_moved(name, func, args, kwargs, out)
    return [_own(launch, 0 if i else moved) for i, launch in enumerate(launches)]


def _own(asked: Any, moved: int) -> Launch:
    name = asked.kernel.__name__.strip("_")
    return Launch(name, moved, asked if name == PRODUCT else None)


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
    mode: str, shapes: str, dtype: str, batch: int, prefix: int, weights: str | None = None, drawn: bool = False
) -> list[Launch]:
    """The launches of one captured step, in their order.

    Args:
        mode: one of `modes.OWN`. shapes: of `shapes.SHAPES`. prefix: tokens in the cache.
        weights: "fp8", "int8", "int4", or None = dense. drawn: at temperature 0.7 and top-p 0.95, else greedy.

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
    options |= {"do_sample": True, "temperature": 0.7, "top_p": 0.95} if drawn else {}
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
    steps.step.step.choosing.native_noise = True  # a meta device has no answer
    with torch.inference_mode(), decoder.attention, decoder.linears, Launches() as launches:
        steps.step()
    return launches.found


def _facts(model: Any) -> ModelFacts:
    """Return the facts of a model without weights, which `ModelFacts.of` rejects: a small one's with its shapes."""
    small = ModelFacts.of(random_model("tiny", "float32", "cpu"))
    config = branchable_config(model)
    return replace(
        small, kind=config.model_type, config=config, device=torch.device("meta"), dtype=model.dtype,
        vocab_size=vocabulary_size(model), ends=(), positions=None,
    )  # fmt: skip
