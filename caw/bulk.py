"""Generate for many prompts: a prompt that cannot be continued becomes an error result and never ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import accept_prompts
from caw.decoding.row_settings import RowSettings
from caw.detection import Detector
from caw.entrance import GenerationResult, stream_results
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Signature


def generate_every(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    settings: Settings,
    *,
    watermark: Signature | None = None,
    policy: Policy | None = None,
    report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None,
    detector: Detector | None = None,
    occurrences: Sequence[int] | None = None,
) -> Iterator[GenerationResult]:
    """Yield a result for every prompt, in any order; one that cannot be continued has its message in `error`.

    Unlike `caw.iter_generate`, which raises if no prompt can be continued: a shard of a large run would never get past
    that. Raises errors of the call itself, as `iter_generate` does.
    """
    row, facts = RowSettings.of(settings), ModelFacts.of(model, tokenizer)
    accepted = accept_prompts(tokenizer, prompts, facts, row, chat=settings.chat)
    for place, index in enumerate(accepted.indices if occurrences is not None else ()):
        assert occurrences is not None
        accepted.requests[place] = replace(accepted.requests[place], occurrence=occurrences[index])
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
