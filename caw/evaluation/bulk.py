"""Generate for many prompts: one that cannot be continued becomes a result of its own and never ends the run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import encode_prompts, fit_budget
from caw.entrance import GenerationResult, stream_results
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Watermark


def generate_every(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    settings: Settings,
    *,
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None,
) -> Iterator[GenerationResult]:
    """A result for every prompt, not in their order; one that cannot be continued has its complaint in `error`.

    `caw.iter_generate` does the same, but raises where it can continue none of the prompts. That suits a single call; a
    shard of a large run would never get past it. Raises what is wrong with the call itself, as `iter_generate` does.
    """
    facts = ModelFacts.of(model, tokenizer)
    encode_prompts(tokenizer, [], facts, chat=settings.chat)  # complains about the call, not about a prompt
    encoded, places = [], []
    for place, prompt in enumerate(prompts):
        try:
            [ids] = encode_prompts(tokenizer, [prompt], facts, chat=settings.chat)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of shorter budgets: stream_results warns of them
                fit_budget(facts, len(ids), settings.max_new_tokens, place)
        except (TypeError, ValueError) as error:
            yield GenerationResult(place, "", [], "error", None, str(error))
            continue
        encoded.append(ids)
        places.append(place)
    if encoded:
        settings = replace(settings, chat=False)  # the template is in the ids
        for result in stream_results(
            model, tokenizer, encoded, watermark, policy, settings, report=report, prompt_cache=prompt_cache
        ):
            yield replace(result, index=places[result.index])
