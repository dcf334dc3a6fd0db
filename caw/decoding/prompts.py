"""Turn prompts into token ids, and refuse those that cannot be continued."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from caw.decoding.request import Request, requests_for
from caw.decoding.row_settings import RowSettings
from caw.io.show import shown
from caw.io.token_texts import require_tokenizer
from caw.io.unicode import is_unicode
from caw.io.warn import warn_caller
from caw.models.conversations import Messages, is_conversation, write_conversation
from caw.models.facts import ModelFacts
from caw.settings import Settings

Prompts = str | Messages | Sequence[str | Sequence[int] | Messages]


class PromptWarning(UserWarning):
    """A warning about single prompts of a call, by their numbers."""


@dataclass(frozen=True)
class Remark:
    """A remark about a prompt, by its place. text: follows "prompt 3". error: its kind, None where it is continued."""

    index: int
    text: str
    error: type[Exception] | None = None

    def of(self, prompt: str) -> str:
        """Return the sentence, with the prompt called by this name."""
        return f"{prompt} {self.text}"

    def __str__(self) -> str:
        return self.of(f"prompt {self.index}")


class PromptError(Exception):
    """(what a prompt must be and is not, the kind of error)."""


@dataclass(frozen=True)
class Accepted:
    """Prompts that can be continued, in order, and why others cannot.

    facts: of the model that they are for. indices: place of each among the prompts given.
    requests: what is asked of a decoder for it. refused: about the others. shortened: about those whose budget is cut.
    """

    facts: ModelFacts
    indices: list[int] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    shortened: list[Remark] = field(default_factory=list)

    def tell(self) -> None:
        """Warn of prompts that get no text or are cut; raise about the first (TypeError or ValueError) if all are."""
        for remark in self.shortened:
            warn_caller(str(remark), PromptWarning)
        if not self.refused:
            return
        first = self.refused[0]
        if not self.requests:
            raise (first.error or ValueError)(str(first))
        total = len(self.refused) + len(self.requests)
        warn_caller(
            f"{len(self.refused)} of {total} prompts get no text, the rest goes on; the first: {first}", PromptWarning
        )

    @property
    def ids(self) -> list[Sequence[int]]:
        return [request.ids for request in self.requests]


def accept_prompts(
    tokenizer: Any, prompts: Prompts, facts: ModelFacts, rows: RowSettings | Sequence[RowSettings], *,
    chat: bool = False,
) -> Accepted:  # fmt: skip
    """Encode prompts; one that is empty, too long, of another type or holds ids unknown to the model is refused.

    rows: settings of all prompts, or of each.

    Raises TypeError where `prompts` is no list of them or `rows` are no settings, ValueError for a chat without a
    template and for another number of settings than of prompts.
    """
    accepted, listed = Accepted(facts), _listed(tokenizer, prompts, chat)
    settings, texts, budgets = _settings_of_each(rows, len(listed)), [], []
    for row in {id(row): row for row in settings}.values():
        row.check_vocabulary(facts.vocab_size)
    for index, prompt in enumerate(listed):
        try:
            ids = _encode(tokenizer, prompt, chat, facts.vocab_size)
        except PromptError as refused:
            accepted.refused.append(Remark(index, *refused.args))
            continue
        budget, remark = fit_budget(facts, len(ids), settings[index].max_new_tokens)
        if not budget:
            accepted.refused.append(Remark(index, remark, ValueError))
            continue
        if remark:
            accepted.shortened.append(Remark(index, remark))
        accepted.indices.append(index)
        texts.append(ids)
        budgets.append(budget)
    accepted.requests.extend(requests_for(texts, budgets, [settings[index] for index in accepted.indices]))
    return accepted


def accepted_for(
    model: Any, tokenizer: Any, prompts: Prompts, settings: Settings, occurrences: Sequence[int] | None = None
) -> Accepted:
    """As `accept_prompts`, all with one call's settings. occurrences: equal ones before each, None = as given here."""
    facts = ModelFacts.of(model, tokenizer)
    accepted = accept_prompts(tokenizer, prompts, facts, RowSettings.of(settings), chat=settings.chat)
    if occurrences is not None:
        pairs = zip(accepted.indices, accepted.requests, strict=True)
        accepted.requests[:] = [replace(request, occurrence=occurrences[index]) for index, request in pairs]
    return accepted


def _settings_of_each(rows: Any, count: int) -> Sequence[RowSettings]:
    """Return settings for each of `count` prompts."""
    if isinstance(rows, RowSettings):
        return [rows] * count
    if not isinstance(rows, Sequence) or not all(isinstance(row, RowSettings) for row in rows):
        raise TypeError(f"rows must be RowSettings or a list of them, got {type(rows).__name__}; use RowSettings()")
    if len(rows) != count:
        raise ValueError(f"rows must hold settings for each of {count} prompts, got {len(rows)}; give one for each")
    return rows


def listed(prompts: Prompts) -> Any:
    """Wrap one text or one conversation in a list; return anything else as it is."""
    return [prompts] if isinstance(prompts, str) or is_conversation(prompts) else prompts


def _listed(tokenizer: Any, prompts: Prompts, chat: bool) -> Sequence[Any]:
    """Return the prompts as a sequence; raise for what cannot be one, and for a chat without a template."""
    prompts = listed(prompts)
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise TypeError(
            "prompts must be a str, a conversation, or a list of str, of id lists or of conversations, got "
            f"{type(prompts).__name__}; convert it"
        )
    if prompts and all(isinstance(p, int) for p in prompts):
        raise TypeError("prompts must be a list of id lists, got one flat list of ids; wrap it in a list")
    require_tokenizer(tokenizer)
    if (
        chat
        and any(isinstance(p, str) or is_conversation(p) for p in prompts)
        and not getattr(tokenizer, "chat_template", None)
    ):
        raise ValueError("chat=True needs a tokenizer with a chat template, this one has none; leave chat out")
    return prompts


def _encode(tokenizer: Any, prompt: Any, chat: bool, vocab_size: int) -> list[int]:
    ids = tokens_of(tokenizer, prompt, chat)
    if not ids:
        raise PromptError("must have at least one token, got none; leave it out or add some text", ValueError)
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        raise PromptError(
            f"must hold token ids below the model's vocabulary size {vocab_size}, got "
            f"{shown(max(ids) if min(ids) >= 0 else min(ids))}; use the model's own tokenizer",
            ValueError,
        )
    return ids


def tokens_of(tokenizer: Any, prompt: Any, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        if chat:
            return _chat_tokens(tokenizer, [{"role": "user", "content": prompt}])
        return list(tokenizer(_unicode(prompt))["input_ids"])
    if is_conversation(prompt):
        if not chat:
            raise PromptError("is a conversation, which needs the model's chat template; say chat=True", ValueError)
        return _chat_tokens(tokenizer, prompt)
    if chat:
        why = f"must be a str or a list of messages with chat=True, got {type(prompt).__name__}; leave chat out"
        raise PromptError(why, TypeError)
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    expected = "must be a str or a list of token ids, got"
    if not isinstance(ids, Sequence) or isinstance(ids, bytes):
        raise PromptError(f"{expected} {type(prompt).__name__}; convert it", TypeError)
    if strange := {type(i) for i in ids if not isinstance(i, (int, np.integer)) or isinstance(i, bool)}:
        names = ", ".join(sorted(kind.__name__ for kind in strange))
        raise PromptError(f"{expected} a list with {names}; convert it", TypeError)
    return [int(i) for i in ids]


def _chat_tokens(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the ids of a conversation; a last message of the assistant is continued."""
    try:
        text = write_conversation(tokenizer, messages, resume=True)
    except ValueError as error:
        raise PromptError(f"is no conversation for this model: {error}", ValueError) from error
    return list(tokenizer(_unicode(text), add_special_tokens=False)["input_ids"])


def _unicode(text: str) -> str:
    if not is_unicode(text):
        raise PromptError(
            "must be valid Unicode, found half of a surrogate pair, which no tokenizer reads; repair the text",
            ValueError,
        )
    return text


def fit_budget(facts: ModelFacts, prompt_length: int, max_new_tokens: int) -> tuple[int, str]:
    """Return (new tokens that fit the model's positions behind a prompt, a remark about it if fewer than asked)."""
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


CLOCK = "strftime_now"
STOPPED = "{%- macro strftime_now(format) -%}{{ format }}{%- endmacro -%}"


class _Timeless:
    """A tokenizer whose chat template gets no date: today's would change every prompt each day."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.tokenizer(*args, **options)

    @property
    def chat_template(self) -> Any:
        return self.tokenizer.chat_template

    def apply_chat_template(self, messages: Any, tools: Any = None, **options: Any) -> Any:
        template = self.tokenizer.get_chat_template()
        if CLOCK in template:
            options["chat_template"] = STOPPED + template
        return self.tokenizer.apply_chat_template(messages, tools, **options)


def prompt_digest(tokenizer: Any, prompt: Any, *, chat: bool = False) -> str:
    """Return 32 digits of SHA-256 of a prompt's ids, with a date's form for today's; "" if it cannot be encoded."""
    try:
        ids = tokens_of(_Timeless(tokenizer), prompt, chat)
    except PromptError:
        return ""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:32]
