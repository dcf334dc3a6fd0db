"""Which tokens end a text."""

from __future__ import annotations

from typing import Any

from caw.io.token_texts import tokenizer_end_ids


def end_token_ids(model: Any, tokenizer: Any = None) -> set[int]:
    """Every token id that ends a text: the model's own and, given a tokenizer, its well-known end tokens."""
    # the config counts only without a generation config: its class defaults may be ids of another vocabulary
    sources = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    own = [getattr(source, "eos_token_id", None) for source in sources]
    first: Any = next((ids for ids in own if ids is not None), [])
    found: set[int] = {first} if isinstance(first, int) else set(first)
    return found if tokenizer is None else found | tokenizer_end_ids(tokenizer)
