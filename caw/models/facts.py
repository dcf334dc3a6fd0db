"""Everything that decoding asks about a model, asked once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from caw.io.token_texts import require_tokenizer
from caw.models.branchable import branchable_config, check_weights
from caw.models.ends import end_token_ids
from caw.models.eval_mode import active_dropout
from caw.models.packed import PackedLinear
from caw.models.quantised import QuantisedLinear
from caw.models.rope import rope_limit
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
    """Properties of a model, at the time of the call.

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

    kind: str
    name: str
    config: Any
    device: torch.device
    spread: bool
    mesh: Any
    dtype: torch.dtype
    vocab_size: int
    ends: tuple[int, ...]
    positions: int | None
    rope_limit: int | None
    dropping: str | None
    ignored: tuple[str, ...]
    dense_bytes: int = 0

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> ModelFacts:
        """The facts of a model; with a tokenizer, its end tokens count too.

        Raises TypeError if it is not a model, NotImplementedError where candidates cannot share one forward, ValueError
        where weights lie on several devices without a device map, or have a dtype that no kernel supports.
        """
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
            raise TypeError(f"model must be a transformers causal LM, got {type(model).__name__}; see caw.load_model")
        config = branchable_config(model)
        check_weights(model)
        if tokenizer is not None:
            require_tokenizer(tokenizer)
        vocab_size = vocabulary_size(model)
        return cls(
            kind=config.model_type,
            name=str(getattr(model.config, "_name_or_path", "") or ""),
            config=config,
            device=decoding_device(model),
            spread=main_device(model) is not None,
            mesh=mesh_of(model),
            dtype=model.dtype,
            vocab_size=vocab_size,
            ends=tuple(sorted(i for i in end_token_ids(model, tokenizer) if i < vocab_size)),
            positions=position_limit(model),
            rope_limit=rope_limit(model),
            dropping=active_dropout(model),
            ignored=_ignored(getattr(model, "generation_config", None)),
            dense_bytes=max((m.dense_bytes for m in model.modules() if isinstance(m, PackedLinear)), default=0),
        )

    def ending_with(self, ends: tuple[int, ...]) -> ModelFacts:
        """The same model whose texts end with these ids; ids that it does not have are left out."""
        return dataclasses.replace(self, ends=tuple(i for i in ends if i < self.vocab_size))

    def check_unchanged(self, model: Any) -> None:
        """Raise RuntimeError if the model has another dtype or device by now."""
        device = decoding_device(model)
        if (model.dtype, device) != (self.dtype, self.device):
            raise RuntimeError(
                f"expected the model as it was when generation was asked for ({self.dtype} on {self.device}), found "
                f"{model.dtype} on {device}; ask again"
            )


def vocabulary_size(model: Any) -> int:
    """V: the width of the model's logits, which may exceed the tokenizer's."""
    head = model.get_output_embeddings()
    if isinstance(head, (QuantisedLinear, PackedLinear)):
        return head.outputs
    return head.weight.shape[0] if head is not None else model.config.get_text_config(decoder=True).vocab_size


def position_limit(model: Any) -> int | None:
    """The longest text that the model has positions for; None = no limit."""
    limit: int | None = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return limit


def decoding_device(model: Any) -> torch.device:
    """Where ids go in and logits come out: the main device of a device map, else the one of all weights."""
    return main_device(model) or single_device(model)


def main_device(model: Any) -> torch.device | None:
    """Where ids of a model with a device map go in and logits come out; None if it has none, or one device only."""
    places = set(getattr(model, "hf_device_map", {}).values())
    if len(places) < 2:
        return None
    devices = [place for place in model.hf_device_map.values() if place not in ("cpu", "disk")]
    first = devices[0] if devices else "cpu"
    return torch.device("cuda", first) if isinstance(first, int) else torch.device(first)


def single_device(model: Any) -> torch.device:
    """The device of all of a model's parameters; ValueError if they are spread over several."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise ValueError(
            f"the model must be on one device, found {', '.join(devices)}; load it again, with or without a device map"
        )
    return torch.device(devices[0])


def _ignored(config: Any) -> tuple[str, ...]:
    found = {name: getattr(config, name, None) for name in IGNORED_SETTINGS}
    return tuple(f"{name}={value}" for name, value in found.items() if value not in IGNORED_SETTINGS[name])
