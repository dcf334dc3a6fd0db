"""Generate for many prompts: one that cannot be continued becomes a result of its own and never ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import accept_prompts
from caw.decoding.row_settings import RowSettings
from caw.detection import Detector
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
    detector: Detector | None = None,
) -> Iterator[GenerationResult]:
    """A result for every prompt, not in their order; one that cannot be continued has its complaint in `error`.

    `caw.iter_generate` does the same, but raises where it can continue none of the prompts. That suits a single call; a
    shard of a large run would never get past it. Raises what is wrong with the call itself, as `iter_generate` does.
    """
    row, facts = RowSettings.of(settings), ModelFacts.of(model, tokenizer)
    accepted = accept_prompts(tokenizer, prompts, facts, row, chat=settings.chat)
    return stream_results(
        model,
        tokenizer,
        accepted,
        watermark,
        policy,
        settings,
        report=report,
        prompt_cache=prompt_cache,
        detector=detector,
    )
