"""All decoder layers of a model in one operator, bit for bit; a fifth of a step was spent between 30 layers."""

from operator import is_, itemgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from transformers.modeling_outputs import BaseModelOutputWithPast

from caw import ops
from caw.decoding.forward.attention import Layout
from caw.decoding.forward.fused_layers import FusedLayer, global_hooks
from caw.decoding.forward.layer_kinds import BODIES, class_name
from caw.decoding.forward.sibling_cache import SiblingCache

ARGUMENTS = {"attention_mask", "inputs_embeds", "use_cache", "caw_layout"}  # beside ids, positions and cache
Forwards = list[tuple[dict[str, Any], Any]]  # (attributes of a module, what its forward is to be)


class Installed:
    """Give modules these forwards inside the block."""

    def __init__(self, forwards: Forwards) -> None:
        self.forwards = forwards

    def __enter__(self) -> None:
        # straight into __dict__: Module.__setattr__ would cost more than the smallest layers
        for attributes, forward in self.forwards:
            attributes["forward"] = forward

    def __exit__(self, *error: object) -> None:
        for attributes, _ in self.forwards:
            del attributes["forward"]


def with_stacks(model: Any, forwards: Forwards) -> Forwards:
    """`forwards` of a model's modules; where its layers run as one, those inside it are its body's affair."""
    for body in model.modules():
        if class_name(body) not in BODIES or "forward" in body.__dict__:
            continue
        parts = {id(part) for part in body.layers.modules()}
        inside = [pair for pair in forwards if id(pair[1].layer) in parts]
        layers = [forward for _, forward in inside if isinstance(forward, FusedLayer)]
        if runs_as_one(body, layers):
            forwards = [pair for pair in forwards if id(pair[1].layer) not in parts]
            forwards.append((body.__dict__, _Stack(body, layers, inside)))
    return forwards


def runs_as_one(body: Any, layers: list[FusedLayer]) -> bool:
    """Tell whether these are all layers of the body, in order, on a CPU, and one call has room for their settings."""
    every = list(body.layers)
    if not layers or len(layers) != body.config.num_hidden_layers or len(layers) != len(every):
        return False
    pairs = enumerate(zip(layers, every, strict=True))
    same = all(layer.layer is module and layer.index == i for i, (layer, module) in pairs)
    settings = {
        (layer.kind, layer.eps, layer.scale, layer.softcap, layer.multiplier, len(layer.weights)) for layer in layers
    }
    return same and len(settings) == 1 and all(layer.weights[0].is_cpu and layer.window != 0 for layer in layers)


class _Stack:
    """Forward of a body in a step: embedding, one operator, norm, as long as every layer is what it was found to be.

    Else its own, with `inside` as the forwards of its layers.
    """

    def __init__(self, body: Any, layers: list[FusedLayer], inside: Forwards) -> None:
        self.layer, self.layers, self.inside = body, layers, Installed(inside)
        self.windows = [layer.window or 0 for layer in layers]
        types = [layer.layer.self_attn.layer_type for layer in layers] if layers[0].kind.turned_by_type else []
        self._embedding_multiplier = layers[0].kind.embedding_multiplier
        self._types = sorted(set(types))  # each with a rotation of its own
        self._rotations = [self._types.index(one) for one in types]
        self._sources = [source for layer in layers for source in layer.sources]
        self._bias_sources = [source for layer in layers for source in layer.bias_sources]
        self._hooks = [hooks for layer in layers for hooks in layer.hooks]
        self._children = [child for layer in layers for child in layer.children]
        self._children += [(body.layers._modules, name) for name in body.layers._modules]
        self._known = [place[name] for place, name in self._children]
        self._attributes = [layer.layer.__dict__ for layer in layers]
        self._weights: list[Any] = []
        self._usable = self._looked = self._whole = self._biased = self._hooked = False
        self._handles = -1

    def as_made(self) -> bool:
        """Tell whether its layers have the settings that they had when this was made."""
        same, windows = self.layer.config.num_hidden_layers == len(self.layers), dict[int, Any]()
        return same and all(layer.as_made(windows) for layer in self.layers)

    def __call__(self, input_ids: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        positions, cache = kwargs.pop("position_ids", None), kwargs.pop("past_key_values", None)
        if input_ids is None or positions is None or args or not self._takes(cache, kwargs):
            with self.inside:
                options = {"position_ids": positions, "past_key_values": cache, **kwargs}
                return type(self.layer).forward(self.layer, input_ids, *args, **options)
        hidden = self.layer.embed_tokens(input_ids)
        if self._embedding_multiplier is not None:
            hidden = hidden * getattr(self.layer, self._embedding_multiplier)
        rotary = self._rotary(hidden, positions)
        hidden = self.layer.norm(self._run(hidden, rotary, kwargs["caw_layout"]))
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache)

    def _takes(self, cache: Any, kwargs: dict[str, Any]) -> bool:
        """Tell whether this forward is a step or a prompt of ours, and the layers are what they were."""
        layout = kwargs.get("caw_layout")
        if layout is None or layout.cache is not cache or type(cache) is not SiblingCache or kwargs.keys() - ARGUMENTS:
            return False
        if kwargs.get("attention_mask") is not None or kwargs.get("inputs_embeds") is not None:
            return False
        if layout.lengths is None and cache.prefill_attention != "sdpa":
            return False
        return not torch.compiler.is_compiling() and self._unchanged(first=layout.lengths is None)

    def _unchanged(self, first: bool) -> bool:
        """Tell whether the layers have what they had; parts and biases are looked at where a text begins (`first`).

        Not in every step: the one before has read all weights since, so that each object looked at comes from memory.
        """
        if first or RemovableHandle.next_id != self._handles:  # torch numbers hooks: with none new, none was added
            self._handles, self._hooked = RemovableHandle.next_id, any(self._hooks)
        if self._hooked or global_hooks() or any(map(itemgetter("training"), self._attributes)):
            return False
        if first or not self._looked:
            self._looked = True
            self._whole = all(map(is_, [place.get(name) for place, name in self._children], self._known))
            biases = [source["bias"] for source in self._bias_sources]
            self._biased = any(bias is not None for bias in biases)
        weights = [source[name] for source, name in self._sources]
        if len(weights) != len(self._weights) or not all(map(is_, weights, self._weights)):
            kinds = {(layer.weights[1].dtype, layer.shapes()) for layer in self.layers}
            self._weights, self._usable = weights, all(layer.usable for layer in self.layers) and len(kinds) == 1
        return self._usable and self._whole

    def _rotary(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if not self._types:
            pair: tuple[torch.Tensor, ...] = self.layer.rotary_emb(hidden, position_ids=positions)
            return pair
        pairs = [self.layer.rotary_emb(hidden, positions, one) for one in self._types]
        return tuple(torch.stack(both) for both in zip(*pairs, strict=True))

    def _run(self, hidden: torch.Tensor, rotary: tuple[torch.Tensor, ...], layout: Layout) -> torch.Tensor:
        cache, places = layout.cache, layout.places
        lengths, rows = layout.lengths, layout.rows
        if lengths is None:
            self._begin(hidden, cache)
            rows, places = cache.prefill_places(hidden.shape[1])
            lengths = places
            # the rotation is one for all rows, so it comes once
            rotary = tuple(x.expand(*x.shape[:-3], *hidden.shape[:2], -1) for x in rotary)
        assert cache.store is not None and cache.scratch is not None
        first = self.layers[0]
        return ops.decoder_stack(
            hidden, *rotary, cache.store, cache.scratch, cache.slot, lengths, self._weights, self._biases(), first.eps,
            first.scale, self.windows, rows, places, first.kind.family, first.softcap, self._rotations,
            first.multiplier,
        )  # fmt: skip

    def _begin(self, hidden: torch.Tensor, cache: SiblingCache) -> None:
        """Make the cache's memory if this is its first forward."""
        heads, dim = self.layers[0].kept_shape()
        for layer in cache.layers:
            if not layer.is_initialized:
                layer.lazy_initialization(*[hidden.new_empty(1, heads, 0, dim)] * 2)
            layer.attended = True

    def _biases(self) -> list[Any]:
        return [source["bias"] for source in self._bias_sources] if self._biased else []
