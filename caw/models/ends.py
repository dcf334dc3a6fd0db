"""End tokens of a model."""

from collections.abc import Iterable
from typing import Any

from caw.io.token_texts import tokenizer_end_ids


def ids_of(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """Return the ids of a generation config's field, which may be one id, several or None."""
    return () if value is None else (value,) if isinstance(value, int) else tuple(value)


def end_token_ids(model: Any, tokenizer: Any = None) -> set[int]:
    """Return every token id that ends a text: the model's own and, given a tokenizer, its well-known end tokens."""
    # the config counts only without a generation config: its class defaults may be ids of another vocabulary
    sources = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    own = [getattr(source, "eos_token_id", None) for source in sources]
    found = set(ids_of(next((ids for ids in own if ids is not None), None)))
    return found if tokenizer is None else found | tokenizer_end_ids(tokenizer)
