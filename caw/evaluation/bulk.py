"""Generate for every prompt of a large run: one that cannot be continued becomes a result of its own, never an end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from caw.decoding.prompts import encode_prompts, fit_budget
from caw.entrance import GenerationResult, iter_generate
from caw.models.facts import ModelFacts


def generate_every(
    model: Any, tokenizer: Any, prompts: Sequence[str], *, max_new_tokens: int = 200, chat: bool = False, **options: Any
) -> Iterator[GenerationResult]:
    """As `caw.iter_generate` for texts, but where none of the prompts can be continued each is still reported.

    `iter_generate` raises there, which is right for a call of one's own, but would stop a shard for good.
    """
    facts = ModelFacts.of(model, tokenizer)
    encode_prompts(tokenizer, [], facts, chat=chat)  # what is wrong with the call, not with a prompt, is raised here
    good, places = [], []
    for place, prompt in enumerate(prompts):
        try:
            [ids] = encode_prompts(tokenizer, [prompt], facts, chat=chat)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of cut budgets: iter_generate says it once
                fit_budget(facts, len(ids), max_new_tokens, place)
        except (TypeError, ValueError) as error:
            yield GenerationResult(place, "", [], "error", None, str(error))
            continue
        good.append(ids)
        places.append(place)
    if good:
        for result in iter_generate(model, tokenizer, good, max_new_tokens=max_new_tokens, **options):
            yield replace(result, index=places[result.index])
