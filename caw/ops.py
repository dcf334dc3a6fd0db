"""Every torch op of this library: schema, reference, fake, dispatch. The only place where ops are registered.

CPU tensors go to the compiled extension where it has a kernel, else to the PyTorch reference; CUDA tensors go to the
Triton kernels. `references()` asks for PyTorch explicitly; nothing falls back silently on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from caw import _ext
from caw.triton_kernels.commit_kv_ref import commit_kv_ref
from caw.triton_kernels.evaluate_capacity_ref import evaluate_capacity_ref
from caw.triton_kernels.select_candidate_ref import select_candidate_ref
from caw.triton_kernels.sibling_attention_ref import sibling_attention_ref
from caw.triton_kernels.topk_softmax_ref import topk_softmax_ref

NAMESPACE = "caw"
_library = torch.library.Library(NAMESPACE, "DEF")


def _register(schema: str, reference: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define one op; its CPU kernel is the extension's if that brought one, else the reference."""
    name = schema.split("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", "CPU"):
        _library.impl(name, reference, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(torch.ops.caw, name).default


# ---- topk_softmax: exact, stable top-K of each row with its logsumexp ------------------------------------------------
def _topk_softmax_fake(logits: torch.Tensor, k: int, rows: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    count = logits.shape[0] if rows is None else rows.shape[0]
    values = logits.new_empty((count, k), dtype=torch.float32)
    ids = logits.new_empty((count, k), dtype=torch.int64)
    return values, ids, torch.empty_like(values), logits.new_empty((count,), dtype=torch.float32)


topk_softmax = _register(
    "topk_softmax(Tensor logits, int k, Tensor? rows=None) -> (Tensor, Tensor, Tensor, Tensor)",
    topk_softmax_ref,
    _topk_softmax_fake,
)

# ---- sibling_attention: C candidates over the committed prefix and themselves ----------------------------------------
sibling_attention = _register(
    "sibling_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor k_own, Tensor v_own, Tensor lengths, "
    "float scale, int? window=None, float? softcap=None, Tensor? sinks=None) -> Tensor",
    sibling_attention_ref,
    lambda q, *args, **kwargs: q.new_empty(q.shape),
)

# ---- commit_kv: the chosen sibling's keys and values become part of the cache, in place ------------------------------
commit_kv = _register(
    "commit_kv(Tensor(a!) store, Tensor scratch, Tensor choice, Tensor(b!) lengths, Tensor active) -> ()",
    commit_kv_ref,
    lambda *args: None,
)

# ---- evaluate_capacity: the evaluator's network ----------------------------------------------------------------------
evaluate_capacity = _register(
    "evaluate_capacity(Tensor features, Tensor[] weights) -> Tensor",
    evaluate_capacity_ref,
    lambda features, weights: features.new_empty(features.shape[:1]),
)

# ---- select_candidate: which rung of a ladder a strength chooses -----------------------------------------------------
select_candidate = _register(
    "select_candidate(Tensor candidates, Tensor needs, Tensor counts, Tensor strength, int rule, float full) -> Tensor",
    select_candidate_ref,
    lambda candidates, needs, counts, strength, rule, full: torch.empty_like(counts),
)


@dataclass(frozen=True)
class Ops:
    """One implementation of the ops that decoding uses."""

    topk_softmax: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
    sibling_attention: Callable[..., torch.Tensor]
    commit_kv: Callable[..., None]
    evaluate_capacity: Callable[..., torch.Tensor]
    select_candidate: Callable[..., torch.Tensor]


def dispatched() -> Ops:
    """The ops as torch dispatches them by device."""
    return Ops(topk_softmax, sibling_attention, commit_kv, evaluate_capacity, select_candidate)


def references() -> Ops:
    """Plain PyTorch on any device: `backend="reference"`."""
    return Ops(topk_softmax_ref, sibling_attention_ref, commit_kv_ref, evaluate_capacity_ref, select_candidate_ref)


def missing_extension() -> str:
    """Why the compiled extension is not in use; empty if it is."""
    return _ext.WHY_MISSING
