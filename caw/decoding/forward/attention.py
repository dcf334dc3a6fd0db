"""Hooks into a transformers model: an attention function, and a layout that travels in kwargs.

The function is registered as "caw" with the attention interface but not with the mask interface, so transformers
builds no mask at all: prefill is causal over left-aligned rows, a decoding step needs only lengths. What a model would
have told a mask (a window, a mask of its own) or done between cache and attention would be lost without a word, so
`_check_contract` refuses it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw import ops
from caw.decoding.forward.prefill_attention import causal_attention, compiled_prefill
from caw.decoding.forward.sibling_cache import SiblingCache, SpreadCache
from caw.models.branchable import refusal
from caw.models.llamas import LanguageModel

NAME = "caw"
MAX_DIM = 512  # the head dimension that compiled attention takes


@dataclass
class Layout:
    """Layout of the rows of one forward.

    cache: where their keys and values go.
    lengths: int64 [rows], committed tokens before the candidates; None in prefill, of left-aligned prompts.
    limit: places of the cache that any row uses. start: in prefill, how many tokens of each prompt are in the cache.
    rows: int64 [N], ascending, the sequence of each candidate, where the rows of the forward are packed candidates of
        one token each; lengths are then [B].
    places: int64 [N], where the cache keeps each row's key and value, in a forward with drafts; lengths are then [N],
        the position of each row, which reads all places before it.
    """

    cache: SiblingCache | SpreadCache
    lengths: torch.Tensor | None = None
    limit: int = 0
    start: int = 0
    rows: torch.Tensor | None = None
    places: torch.Tensor | None = None

    def attend(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Return `attention` of a module of our own."""
        return attention(module, query, key, value, None, scaling, caw_layout=self)[0]


def attention(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, sliding_window: int | None = None,
    softcap: float | None = None, s_aux: torch.Tensor | None = None, caw_layout: Layout | None = None, **kwargs: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """transformers' attention contract: query [R, H, Q, D], key and value [R, HK, Q, D] -> ([R, Q, H, D], None)."""
    _check_contract(module, key, value, attention_mask, sliding_window, caw_layout, kwargs.get("is_causal"))
    assert caw_layout is not None
    cache, layer = caw_layout.cache, caw_layout.cache.layers[module.layer_idx]
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if caw_layout.lengths is None and _has_kernel(cache, query):
        out = _as_steps(query, key, value, layer, scale, sliding_window, softcap, s_aux)
    elif caw_layout.lengths is None:
        if caw_layout.start:
            before = layer.owner.before(layer.index)
            key, value = torch.cat([before[0], key], dim=2), torch.cat([before[1], value], dim=2)
        out = causal_attention(query, key, value, scale, sliding_window, softcap, s_aux, cache.prefill_attention)
    elif caw_layout.places is not None:
        keys, values = layer.owner.store[layer.index]
        at = (caw_layout.lengths, caw_layout.rows)
        out = ops.prefix_attention(query, keys, values, key, value, *at, scale, sliding_window, softcap, s_aux)
    else:
        lengths, kernels = caw_layout.lengths.to(query.device), cache.kernels
        prefix = layer.owner.store[layer.index, :, : lengths.shape[0], :, : caw_layout.limit]
        given = (query, prefix[0], prefix[1], key, value, lengths)
        if caw_layout.rows is None:
            out = kernels.sibling_attention(*given, scale, sliding_window, softcap, s_aux)
        else:
            out = kernels.sibling_attention_packed(*given, caw_layout.rows, scale, sliding_window, softcap, s_aux)
    layer.attended = True
    # contiguous, as transformers' own functions return it: some models take a view of it
    return out.transpose(1, 2).contiguous(), None


def _has_kernel(cache: SiblingCache | SpreadCache, query: torch.Tensor) -> bool:
    return query.shape[3] <= MAX_DIM and compiled_prefill(cache.prefill_attention, query.device, cache.kernels)


def _as_steps(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: Any, scale: float, window: int | None,
    softcap: float | None, sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Attention of prompts with the arithmetic of a step, position by position: the same bits however they are cut."""
    rows, tokens = query.shape[0], query.shape[2]
    keys, values = layer.owner.store[layer.index]
    q, k, v = (x.transpose(1, 2).reshape(rows * tokens, -1, 1, x.shape[3]) for x in (query, key, value))
    places, positions = layer.owner.prefill_places(tokens)
    out = ops.prefix_attention(q, keys, values, k, v, positions, places, scale, window, softcap, sinks)
    return out.view(rows, tokens, -1, query.shape[3]).transpose(1, 2)


def _check_contract(
    module: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, window: int | None,
    layout: Layout | None, is_causal: bool | None,
) -> None:  # fmt: skip
    """Raise NotImplementedError where this model's attention is not what `attention` computes."""
    kind = getattr(getattr(module, "config", None), "model_type", type(module).__name__)
    if layout is None:
        raise refusal(kind, "its layers do not hand their arguments on to the attention function")
    if mask is not None:
        raise refusal(kind, "it brings an attention mask of its own")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise refusal(kind, "its attention is not causal")
    layer = layout.cache.layers[module.layer_idx]
    if key is not layer.keys or value is not layer.values:
        raise refusal(kind, "it changes keys or values after they are cached")
    expected = declared_window(module)
    if window is None and expected is not None and expected < layout.cache.capacity:
        raise refusal(kind, f"it does not tell the attention function of its sliding window of {expected}")


def windows_of(config: Any) -> tuple[int | None, Any]:
    """Return the sliding window that a config gives some layers, and the type of each layer, None = all have it."""
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or not getattr(config, "use_sliding_window", True):
        return None, None
    return window, getattr(config, "layer_types", None)


def declared_window(module: torch.nn.Module, windows: tuple[int | None, Any] | None = None) -> int | None:
    """Return the sliding window that the config gives this layer. windows: `windows_of` its config, if it is known."""
    window, types = windows_of(getattr(module, "config", None)) if windows is None else windows
    return None if window is not None and types and "sliding" not in types[module.layer_idx] else window


class caw_attention:
    """Make the model use this library's attention inside the block, and its own again afterwards in any case.

    Made once for a model and entered around every forward: nothing of it is left while a caller looks at a result.
    below: the modules below it, if they are known (`ModelParts`).
    """

    def __init__(self, model: Any, below: Sequence[torch.nn.Module] | None = None) -> None:
        self._configs: list[Any] = []
        self._before: list[str | None] = []
        if isinstance(model, LanguageModel):
            return  # asks the layout, and nobody waits for transformers' base
        from transformers import AttentionInterface, PreTrainedModel

        AttentionInterface.register(NAME, attention)
        modules = model.modules() if below is None else (model, *below)
        owners = [model.config, *(m.config for m in modules if isinstance(m, PreTrainedModel))]
        configs = [config for owner in owners for config in _with_sub_configs(owner)]
        self._configs = list({id(config): config for config in configs}.values())

    def __enter__(self) -> None:
        self._before = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation = NAME

    def __exit__(self, *error: object) -> None:
        # parents first: setting one sets its sub-configs too
        for config, before in zip(self._configs, self._before, strict=True):
            config._attn_implementation = before


def _with_sub_configs(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", {}):
        if getattr(config, name, None) is not None:
            yield from _with_sub_configs(getattr(config, name))
