"""Facts about a model that decoding needs, collected once."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from caw.io.token_texts import require_tokenizer
from caw.models.branchable import branchable_config, check_weights
from caw.models.ends import end_token_ids
from caw.models.eval_mode import active_dropout
from caw.models.packed import PackedLinear
from caw.models.parts import ModelParts
from caw.models.quantized import QuantizedLinear
from caw.models.tensor_parallel import mesh_of

# settings of a generation config that change greedy output, each with the values that turn it off
IGNORED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None,),
    "sequence_bias": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
}


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model, at the time of the call; of a model that another engine has, only the first three.

    kind, name: its model type, and what it was loaded as. config: its text config.
    device: where ids go in and logits come out. spread: its layers lie on several devices. mesh: torch's device mesh
        where its weights are split over several processes, else None.
    vocab_size: V, the width of its logits, which may exceed the tokenizer's. ends: ids below V that end a text.
    positions: the longest text it has positions for, None = no limit.
    rope_limit: length in tokens beyond which its rotary embedding changes for every position, None = never.
    dropping: name of a module whose dropout is active, None if there is none.
    ignored: settings of its generation config that `caw.generate` leaves out, as "name=value".
    dense_bytes: most bytes that a forward of many rows takes to make packed weights dense, 0 = it has none.
    """

    device: torch.device
    vocab_size: int
    ends: tuple[int, ...]
    kind: str = ""
    name: str = ""
    config: Any = None
    spread: bool = False
    mesh: Any = None
    dtype: torch.dtype = torch.float32
    positions: int | None = None
    rope_limit: int | None = None
    dropping: str | None = None
    ignored: tuple[str, ...] = ()
    dense_bytes: int = 0

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> "ModelFacts":
        """Collect the facts of a model; with a tokenizer, its end tokens count too.

        Raises TypeError if it is not a model, NotImplementedError where candidates cannot share one forward, ValueError
        where weights lie on several devices without a device map, or have a dtype that no kernel supports.
        """
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
            raise TypeError(f"model must be a transformers causal LM, got {type(model).__name__}; see caw.load_model")
        config, parts = branchable_config(model), ModelParts.of(model)
        parts.once("check_weights", lambda: check_weights(model))
        if tokenizer is not None:
            require_tokenizer(tokenizer)
        vocab_size = vocabulary_size(model)
        return cls(
            kind=config.model_type,
            name=str(getattr(model.config, "_name_or_path", "") or ""),
            config=config,
            device=main_device(model) or parts.once("device", lambda: single_device(model)),
            spread=main_device(model) is not None,
            mesh=mesh_of(model),
            dtype=model.dtype,
            vocab_size=vocab_size,
            ends=tuple(sorted(i for i in end_token_ids(model, tokenizer) if i < vocab_size)),
            positions=position_limit(model),
            rope_limit=rope_limit(model),
            dropping=active_dropout(model) if model.training or any(m.training for m in parts.below) else None,
            ignored=_ignored(getattr(model, "generation_config", None)),
            dense_bytes=parts.once("dense_bytes", lambda: _dense_bytes(model)),
        )

    def ending_with(self, ends: tuple[int, ...]) -> "ModelFacts":
        """Return the facts with these end tokens; ids that the model does not have are dropped."""
        return dataclasses.replace(self, ends=tuple(i for i in ends if i < self.vocab_size))

    def broken_logits(self, token: int) -> str:
        """Say that the logits of a new token, counted from 1, are not finite."""
        remedy = "check its weights" if self.dtype == torch.float32 else "load it with dtype='float32'"
        kind = str(self.dtype).removeprefix("torch.")
        return f"expected finite logits from the {kind} model, got NaN or infinity at new token {token}; {remedy}"

    def check_unchanged(self, model: Any) -> None:
        """Raise RuntimeError if the model's dtype or device has changed.

        One parameter tells: of a model that was moved in part, torch's own operators complain.
        """
        device = main_device(model) or next(model.parameters()).device
        if (model.dtype, device) != (self.dtype, self.device):
            raise RuntimeError(
                f"the model must stay on its dtype and device ({self.dtype} on {self.device}), found {model.dtype} on "
                f"{device}; start generation again"
            )


def vocabulary_size(model: Any) -> int:
    """Return V: the width of the model's logits, which may exceed the tokenizer's."""
    head = model.get_output_embeddings()
    if isinstance(head, (QuantizedLinear, PackedLinear)):
        return head.outputs
    return head.weight.shape[0] if head is not None else model.config.get_text_config(decoder=True).vocab_size


def position_limit(model: Any) -> int | None:
    """Return the maximum text length in positions; None = no limit."""
    limit: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit


def decoding_device(model: Any) -> torch.device:
    """Return the device of ids and logits: the main device of a device map, otherwise that of all weights."""
    return main_device(model) or single_device(model)


def main_device(model: Any) -> torch.device | None:
    """Return the device of ids and logits of a model with a device map; None without one, or with one device only."""
    places = set(getattr(model, "hf_device_map", {}).values())
    if len(places) < 2:
        return None
    devices = [place for place in model.hf_device_map.values() if place not in ("cpu", "disk")]
    first = devices[0] if devices else "cpu"
    return torch.device("cuda", first) if isinstance(first, int) else torch.device(first)


def single_device(model: Any) -> torch.device:
    """Return the device of all of a model's parameters. ValueError if they are on several."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"the model must be on one device, found {', '.join(devices)}; load it on one device or with a device map"
        )
    return torch.device(devices[0])


def _dense_bytes(model: Any) -> int:
    return max((m.dense_bytes for m in model.modules() if isinstance(m, PackedLinear)), default=0)


def _ignored(config: Any) -> tuple[str, ...]:
    found = {name: getattr(config, name, None) for name in IGNORED_SETTINGS}
    return tuple(f"{name}={value}" for name, value in found.items() if value not in IGNORED_SETTINGS[name])


LENGTH_DEPENDENT = ("dynamic", "longrope")
ORIGINAL = "original_max_position_embeddings"


def rope_limit(model: Any) -> int | None:
    """Return the length beyond which all rotations change and earlier keys are wrong; None = never, 0 = unknown."""
    config = model.config.get_text_config(decoder=True)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [
        value for value in parameters.values() if isinstance(value, Mapping)
    ]  # some models have one for each type of layer
    limits = [_limit(each, config) for each in (parameters, *by_layer)]
    return min((limit for limit in limits if limit is not None), default=None)


def _limit(parameters: Mapping[str, Any], config: Any) -> int | None:
    if (parameters.get("rope_type") or parameters.get("type")) not in LENGTH_DEPENDENT:
        return None
    original = parameters.get(ORIGINAL) or getattr(config, ORIGINAL, None)
    return int(original or getattr(config, "max_position_embeddings", None) or 0)
