"""Prompts to token ids, and every reason to refuse one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from caw.decoding.request import Request, requests_for
from caw.decoding.row_settings import RowSettings
from caw.io.show import shown
from caw.io.token_texts import require_tokenizer
from caw.io.unicode import is_unicode
from caw.io.warn import warn_caller
from caw.models.facts import ModelFacts

Prompts = str | Sequence[str] | Sequence[Sequence[int]]


class PromptWarning(UserWarning):
    """About single prompts of a call, by their numbers: of use to whoever gave them in a list."""


@dataclass(frozen=True)
class Remark:
    """What is to be said about one prompt.

    index: its place among the prompts given. said: what it must be and is not, to follow the words "prompt 3".
    error: the kind of error that it is, None where the prompt is continued all the same.
    """

    index: int
    said: str
    error: type[Exception] | None = None

    def of(self, prompt: str) -> str:
        """The sentence, about a prompt that its owner calls so."""
        return f"{prompt} {self.said}"

    def __str__(self) -> str:
        return self.of(f"prompt {self.index}")


class _RefusedError(Exception):
    """(what a prompt must be and is not, the kind of error)."""


@dataclass(frozen=True)
class Accepted:
    """The prompts that can be continued, in order, and why others cannot.

    facts: of the model that they are for. indices: place of each among the prompts given.
    requests: what is asked of a decoder for it. refused: about the others. shortened: about those whose budget is cut.
    """

    facts: ModelFacts
    indices: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    shortened: list[Remark] = field(default_factory=list)

    def tell(self) -> None:
        """Warn of prompts that are left out or cut; raise about the first (TypeError or ValueError) if all are."""
        for remark in self.shortened:
            warn_caller(str(remark), PromptWarning)
        if not self.refused:
            return
        first = self.refused[0]
        if not self.requests:
            raise (first.error or ValueError)(str(first))
        total = len(self.refused) + len(self.requests)
        warn_caller(
            f"{len(self.refused)} of {total} prompts are left out, the rest goes on; the first: {first}",
            PromptWarning,
        )

    @property
    def ids(self) -> list[Sequence[int]]:
        """Tokens of each prompt."""
        return [request.ids for request in self.requests]


def accept_prompts(
    tokenizer: Any,
    prompts: Prompts,
    facts: ModelFacts,
    rows: RowSettings | Sequence[RowSettings],
    *,
    chat: bool = False,
) -> Accepted:
    """Encode prompts; one that is empty, too long, of another type or holds ids unknown to the model is left out.

    rows: settings of all prompts, or of each.

    Raises TypeError where `prompts` is no list of them or `rows` are no settings, ValueError for a chat without a
    template and for another number of settings than of prompts.
    """
    accepted, listed = Accepted(facts), _listed(tokenizer, prompts, chat)
    settings, texts, budgets = _settings_of_each(rows, len(listed)), [], []
    for index, prompt in enumerate(listed):
        try:
            ids = _encode(tokenizer, prompt, chat, facts.vocab_size)
        except _RefusedError as refused:
            accepted.refused.append(Remark(index, *refused.args))
            continue
        budget, said = fit_budget(facts, len(ids), settings[index].max_new_tokens)
        if not budget:
            accepted.refused.append(Remark(index, said, ValueError))
            continue
        if said:
            accepted.shortened.append(Remark(index, said))
        accepted.indices.append(index)
        texts.append(ids)
        budgets.append(budget)
    accepted.requests.extend(requests_for(texts, budgets, [settings[index] for index in accepted.indices]))
    return accepted


def _settings_of_each(rows: Any, count: int) -> Sequence[RowSettings]:
    """Settings for each of `count` prompts."""
    if isinstance(rows, RowSettings):
        return [rows] * count
    if not isinstance(rows, Sequence) or not all(isinstance(row, RowSettings) for row in rows):
        raise TypeError(f"rows must be RowSettings or a list of them, got {type(rows).__name__}; use RowSettings()")
    if len(rows) != count:
        raise ValueError(f"rows must hold settings for each of {count} prompts, got {len(rows)}; give one for each")
    return rows


def encode_prompts(tokenizer: Any, prompts: Prompts, facts: ModelFacts, *, chat: bool = False) -> list[list[int]]:
    """Token ids of each prompt.

    Raises TypeError for other types and ValueError for an empty prompt or an id the model does not have.
    """
    encoded = []
    for index, prompt in enumerate(_listed(tokenizer, prompts, chat)):
        try:
            encoded.append(_encode(tokenizer, prompt, chat, facts.vocab_size))
        except _RefusedError as refused:
            said, kind = refused.args
            raise kind(str(Remark(index, said))) from None
    return encoded


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


def _encode(tokenizer: Any, prompt: Any, chat: bool, vocab_size: int) -> list[int]:
    ids = _tokens(tokenizer, prompt, chat)
    if not ids:
        raise _RefusedError("must have at least one token, got none; leave it out or add some text", ValueError)
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise _RefusedError(
            f"must hold token ids below the model's vocabulary size {vocab_size}, got "
            f"{shown(max(ids) if min(ids) >= 0 else min(ids))}; use the model's own tokenizer",
            ValueError,
        )
    return ids


def _tokens(tokenizer: Any, prompt: Any, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        if not is_unicode(prompt):
            raise _RefusedError(
                "must be valid Unicode, found half of a surrogate pair, which no tokenizer reads; repair the text",
                ValueError,
            )
        if not chat:
            return list(tokenizer(prompt)["input_ids"])
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if chat:
        raise _RefusedError(f"must be a str with chat=True, got {type(prompt).__name__}; leave chat out", TypeError)
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    expected = "must be a str or a list of token ids, got"
    if not isinstance(ids, Sequence) or isinstance(ids, bytes):
        raise _RefusedError(f"{expected} {type(prompt).__name__}; convert it", TypeError)
    if strange := {type(i) for i in ids if not isinstance(i, (int, np.integer)) or isinstance(i, bool)}:
        names = ", ".join(sorted(kind.__name__ for kind in strange))
        raise _RefusedError(f"{expected} a list with {names}; convert it", TypeError)
    return [int(i) for i in ids]


def fit_budget(facts: ModelFacts, prompt_length: int, max_new_tokens: int) -> tuple[int, str]:
    """(new tokens that fit the model's positions after a prompt, what is to be said of the prompt).

    0 new tokens where the prompt alone fills them; nothing to be said where all fit.
    """
    limit = facts.positions
    if limit is None or prompt_length + max_new_tokens <= limit:
        return max_new_tokens, ""
    if prompt_length >= limit:
        return 0, f"must be shorter than the model's {limit} positions, got {prompt_length} tokens; shorten it"
    left = limit - prompt_length
    return left, (
        f"has {prompt_length} tokens and the model {limit} positions: it gets {left} new tokens instead of "
        f"{max_new_tokens}"
    )
