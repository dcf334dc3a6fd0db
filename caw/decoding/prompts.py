"""Prompts to token ids, with every complaint a prompt can earn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caw.io.show import shown
from caw.io.token_texts import require_tokenizer
from caw.io.unicode import is_unicode
from caw.models.facts import ModelFacts

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Accepted:
    """The prompts that can be continued, in order, and why others cannot.

    indices: place of each among the prompts given. ids: its tokens. budgets: the new tokens it may get.
    refused: place and complaint of the others.
    """

    indices: list[int]
    ids: list[list[int]]
    budgets: list[int]
    refused: dict[int, Exception]


def accept_prompts(
    tokenizer: Any, prompts: Prompts, facts: ModelFacts, max_new_tokens: int, *, chat: bool = False
) -> Accepted:
    """Encode prompts; one that is empty, too long, of another type or holds ids unknown to the model is left out with a
    warning.

    Raises TypeError where `prompts` is no list of them, and what is wrong with the first (TypeError or ValueError) if
    there is nothing but prompts to refuse.
    """
    accepted = Accepted([], [], [], {})
    listed = _listed(tokenizer, prompts, chat)
    for index, prompt in enumerate(listed):
        try:
            ids = _encode(tokenizer, prompt, index, chat, facts.vocab_size)
            budget = fit_budget(facts, len(ids), max_new_tokens, index)
        except (TypeError, ValueError) as error:
            accepted.refused[index] = error
            continue
        accepted.indices.append(index)
        accepted.ids.append(ids)
        accepted.budgets.append(budget)
    if accepted.refused:
        first = next(iter(accepted.refused.values()))
        if not accepted.ids:
            raise first
        warnings.warn(
            f"{len(accepted.refused)} of {len(listed)} prompts are left out, the rest goes on; the first: {first}",
            stacklevel=4,
        )
    return accepted


def encode_prompts(tokenizer: Any, prompts: Prompts, facts: ModelFacts, *, chat: bool = False) -> list[list[int]]:
    """Token ids of each prompt.

    Raises TypeError for other types and ValueError for an empty prompt or an id the model does not have.
    """
    listed, vocab_size = _listed(tokenizer, prompts, chat), facts.vocab_size
    return [_encode(tokenizer, prompt, index, chat, vocab_size) for index, prompt in enumerate(listed)]


def _listed(tokenizer: Any, prompts: Prompts, chat: bool) -> Sequence[Any]:
    """The prompts as a sequence; raises for what cannot be one, and for a chat without a template."""
    if isinstance(prompts, str):
        prompts = [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(
            f"prompts must be a str, a list of str or a list of id lists, got {type(prompts).__name__}; convert it"
        )
    if prompts and all(isinstance(p, int) for p in prompts):
        raise TypeError("prompts must be a list of id lists, got one flat list of ids; wrap it in a list")
    require_tokenizer(tokenizer)
    if chat and any(isinstance(p, str) for p in prompts) and not getattr(tokenizer, "chat_template", None):
        raise ValueError("chat=True needs a tokenizer with a chat template, this one has none; leave chat out")
    return prompts


def _encode(tokenizer: Any, prompt: Any, index: int, chat: bool, vocab_size: int) -> list[int]:
    ids = _tokens(tokenizer, prompt, index, chat)
    if not ids:
        raise ValueError(f"prompt {index} must have at least one token, got none; leave it out or add some text")
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise ValueError(
            f"prompt {index} must hold token ids below the model's vocabulary size {vocab_size}, got "
            f"{shown(max(ids) if min(ids) >= 0 else min(ids))}; use the model's own tokenizer"
        )
    return ids


def _tokens(tokenizer: Any, prompt: Any, index: int, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        if not is_unicode(prompt):
            raise ValueError(
                f"prompt {index} must be valid Unicode, found half of a surrogate pair, which no tokenizer reads; "
                "repair the text"
            )
        if not chat:
            return list(tokenizer(prompt)["input_ids"])
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if chat:
        raise TypeError(f"chat=True needs prompts of text, prompt {index} is {type(prompt).__name__}; leave chat out")
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(ids, Sequence) or isinstance(ids, bytes):
        raise TypeError(f"prompt {index} must be a str or a list of token ids, got {type(prompt).__name__}; convert it")
    if strange := {type(i) for i in ids if not isinstance(i, (int, np.integer)) or isinstance(i, bool)}:
        names = ", ".join(sorted(kind.__name__ for kind in strange))
        raise TypeError(f"prompt {index} must be a str or a list of token ids, got a list with {names}; convert it")
    return [int(i) for i in ids]


def fit_budget(facts: ModelFacts, prompt_length: int, max_new_tokens: int, index: int) -> int:
    """New tokens that fit the model's positions after this prompt; warns when that is fewer than asked for.

    Raises ValueError if the prompt alone fills them.
    """
    limit = facts.positions
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
