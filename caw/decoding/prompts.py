"""Prompts to token ids, with every complaint a prompt can earn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from caw.decoding.slots import vocabulary_size

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


def encode_prompts(tokenizer: Any, prompts: Prompts, model: Any, *, chat: bool = False) -> list[list[int]]:
    """Token ids of each prompt.

    Raises TypeError for other types and ValueError for an empty prompt or an id the model does not have.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(f"prompts must be a str, a list of str or a list of id lists, got {type(prompts).__name__}")
    if prompts and all(isinstance(p, int) for p in prompts):
        raise TypeError("prompts must be a list of id lists, got one flat list of ids; wrap it in a list")
    if not callable(getattr(tokenizer, "decode", None)):
        raise TypeError(f"tokenizer must be the model's tokenizer, got {type(tokenizer).__name__}; see caw.load_model")
    vocab_size = vocabulary_size(model)
    encoded = []
    for index, prompt in enumerate(prompts):
        ids = _encode(tokenizer, prompt, index, chat)
        if not ids:
            raise ValueError(f"prompt {index} must have at least one token, got none; leave it out or add some text")
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            raise ValueError(
                f"prompt {index} must hold token ids below the model's vocabulary size {vocab_size}, got "
                f"{max(ids) if min(ids) >= 0 else min(ids)}; use the model's own tokenizer"
            )
        encoded.append(ids)
    return encoded


def _encode(tokenizer: Any, prompt: Any, index: int, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        if not chat:
            return list(tokenizer(prompt)["input_ids"])
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("chat=True needs a tokenizer with a chat template, this one has none; leave chat out")
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if chat:
        raise TypeError(f"chat=True needs prompts of text, prompt {index} is {type(prompt).__name__}; leave chat out")
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(ids, Sequence) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise TypeError(f"prompt {index} must be a str or a list of token ids, got {type(prompt).__name__}; convert it")
    return list(ids)


def fit_budget(model: Any, prompt_length: int, max_new_tokens: int, index: int) -> int:
    """New tokens that fit the model's positions after this prompt; warns when that is fewer than asked for.

    Raises ValueError if the prompt alone fills them.
    """
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if limit is None or prompt_length + max_new_tokens <= limit:
        return max_new_tokens
    if prompt_length >= limit:
        raise ValueError(
            f"prompt {index} must be shorter than the model's {limit} positions, got {prompt_length} tokens; shorten it"
        )
    warnings.warn(
        f"prompt {index} has {prompt_length} tokens and the model {limit} positions: it gets "
        f"{limit - prompt_length} new tokens instead of {max_new_tokens}",
        stacklevel=4,
    )
    return limit - prompt_length
