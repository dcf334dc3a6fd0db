"""Captured steps, and the memory that they read and write, kept from one call to the next.

A capture costs as much as a few steps, and a cache must be cleared: calls of the same shapes, one after another, need
neither. What a graph holds for good must then be as it was: the plan's numbers, the evaluator, and where each weight of
the model lies, and its rotations. A graph belongs to one call at a time; it and its memory go with the model.
"""

import threading
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from caw.decoding.capture.fixed_step import OutputRing
from caw.decoding.forward.rotary_table import rotations_of
from caw.decoding.forward.sibling_cache import SiblingCache, SpreadCache
from caw.decoding.plan import Plan
from caw.decoding.state import DecodeState
from caw.decoding.texts import Texts
from caw.evaluator import Evaluator
from caw.policies import CapacityPolicy

MOST = 2  # of a model
SHARE = 16  # part of a device's memory that a kept cache may take
OWN = ("torch.nn.", "transformers.", "caw.models.packed")  # modules whose forward depends on weights and inputs alone


@dataclass
class GraphMemory:
    """A graph, what it reads and writes, and what it was made for.

    evaluator: the step's own, whose memory the graph reads. done: when the last call had ended.
    """

    about: tuple[Any, ...]
    evaluator: Evaluator | None
    store: torch.Tensor
    scratch: torch.Tensor
    lengths: torch.Tensor
    texts: Texts
    state: DecodeState
    ring: OutputRing
    graph: Any
    done: torch.cuda.Event | None = None

    def __post_init__(self) -> None:
        self.places = _places(self.evaluator)

    def fits(self, plan: Plan) -> bool:
        """Tell whether the graph reads the numbers that the policy's evaluator has now."""
        now = plan.policy.network if isinstance(plan.policy, CapacityPolicy) else None
        if self.evaluator is None or now is None:
            return self.evaluator is now
        mine, others = self.evaluator.state_dict(), now.state_dict()
        same = (
            self.evaluator.spec == now.spec and mine.keys() == others.keys() and self.places == _places(self.evaluator)
        )
        return same and all(
            mine[name].shape == others[name].shape and torch.equal(mine[name].cpu(), others[name].cpu())
            for name in mine
        )  # fmt: skip

    def clear(self) -> None:
        """Clear the state of the last call's texts, after its remaining work."""
        if self.done is not None:
            self.done.wait(torch.cuda.current_stream(self.lengths.device))
        self.lengths.zero_()
        self.texts.active.zero_()
        self.state.pending.fill_(-1)
        self.ring.cursor.zero_()


_pool: WeakKeyDictionary[Any, list[GraphMemory]] = WeakKeyDictionary()
_lock = threading.Lock()


def claim(model: Any, plan: Plan) -> GraphMemory | None:
    """Take over what an earlier call of the same shapes left; None if there is nothing."""
    about = about_of(model, plan)
    if about is None:
        return None
    with _lock:
        there = _pool.get(model, [])
        match = next((one for one in there if one.about == about and one.fits(plan)), None)
        if match is not None:
            there.remove(match)
    return match


def make_cache(plan: Plan, beside: int, memory: GraphMemory | None) -> SiblingCache:
    """Make an empty cache; beside: positions beyond the plan's capacity. memory: what to reuse."""
    facts = plan.facts
    cache = (SpreadCache if facts.spread else SiblingCache)(
        facts.config.num_hidden_layers, plan.batch, plan.capacity + beside, plan.slots, facts.device,
        plan.kernels, plan.settings.prefill_attention,
    )  # fmt: skip
    if memory is not None:
        cache.store, cache.scratch, cache.lengths = memory.store, memory.scratch, memory.lengths
    return cache


def keep(model: Any, plan: Plan, memory: GraphMemory) -> None:
    """Leave this to later calls of `model`, evicting the oldest if there are too many; skip what is too large."""
    device = memory.store.device
    if device.type == "cuda":
        if SHARE * memory.store.nbytes > torch.cuda.mem_get_info(device)[1]:
            return
        memory.done = torch.cuda.Event()
        memory.done.record(torch.cuda.current_stream(device))
    memory.texts.keys.zero_()
    memory.texts.marks = [None] * memory.texts.batch  # they hold keys
    with _lock:
        there = _pool.setdefault(model, [])
        there.append(memory)
        del there[:-MOST]


def forget() -> None:
    """Free what all calls left."""
    with _lock:
        _pool.clear()


def about_of(model: Any, plan: Plan) -> tuple[Any, ...] | None:
    """Return all that a graph of this plan depends on; None if that cannot be compared."""
    if plan.watermark is not None and plan.watermark.native is None:
        return None  # its key and its tables are part of the graph
    if plan.mixed:
        return None  # the other mark has a target, whose loop no graph of another call has
    known = all(part is None or type(part).__module__.startswith("caw.") for part in (plan.watermark, plan.policy))
    if not (plan.captured and known and plan.loop is None) or plan.settings.compile:
        return None
    weights, policy = _weights(model), plan.policy
    watermark = None if plan.watermark is None else plan.watermark.with_key(0)  # keys are memory that the graph reads
    numbers = (policy.theta, policy.beta) if isinstance(policy, CapacityPolicy) else policy
    settings = plan.settings
    return None if weights is None else (
        weights, watermark, type(policy), numbers, plan.limits, plan.mark_eos, plan.batch, plan.capacity,
        plan.slots, plan.history, plan.kernels, plan.warper, settings.return_trace,
        settings.prefill_attention,
    )  # fmt: skip


def _places(network: Evaluator | None) -> list[int]:
    return [] if network is None else [tensor.data_ptr() for tensor in network.state_dict().values()]


def _weights(model: Any) -> tuple[Any, ...] | None:
    """Every module, and where each of its tensors lies; None for modules of others and for such with hooks."""
    places: list[Any] = []
    for module in model.modules():
        hooks = module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        if hooks or not type(module).__module__.startswith(OWN):
            return None
        tensors = [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]
        places.append((id(module), type(module), module.training))
        places += [(t.data_ptr(), t.dtype, t.shape, t.stride()) for t in tensors]
    return (*places, *rotations_of(model))
