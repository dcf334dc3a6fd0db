"""What a caller of generation gave, checked before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from caw import ops
from caw.decoding.forward import flash_decoding
from caw.decoding.prompt_cache import PromptCache
from caw.evaluator.network import warn_of_other_model
from caw.evaluator.token_classes import check_tokenizer
from caw.io.show import shown
from caw.io.warn import warn_caller
from caw.models.facts import ModelFacts
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.settings import Settings
from caw.watermarks import Watermark


@contextlib.contextmanager
def ended_on_error(streamer: Any) -> Iterator[None]:
    """End the streamer if the block fails: another thread may be waiting for its end."""
    try:
        yield
    except BaseException:
        if callable(getattr(streamer, "end", None)):
            streamer.end()
        raise


def check_streamer(streamer: Any, prompts: Any) -> None:
    """Raise TypeError unless it is a streamer, ValueError unless there is one prompt to stream."""
    if streamer is None:
        return
    if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise TypeError(
            f"streamer must have put and end as transformers' do, got {type(streamer).__name__}; leave it out"
        )
    # anything that is not a list of prompts is refused later, with the prompts
    count = len(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, str) else 1
    if count != 1:
        raise ValueError(f"a streamer shows one text, so it needs one prompt, got {count}; leave streamer out")


def made_once(settings: Settings) -> Settings:
    """Settings of a text that is shown while it is made: it is steered towards its test, and cannot be made again."""
    if settings.found_at is None:
        return settings
    if settings.best_of > 1:
        raise ValueError(f"a streamer shows one text, got best_of={settings.best_of}; leave one of them out")
    if settings.on_unfound == "drop":
        raise ValueError("a streamer shows a text before it is tested, got on_unfound='drop'; use 'keep' or 'raise'")
    if settings.max_attempts > 1:
        warn_caller(
            "a text that is streamed is made once: found_at steers it and tests it at its end, and it is not made "
            "again; set max_attempts=1 to say so"
        )
    return replace(settings, max_attempts=1)


def check_watermark(watermark: Any) -> None:
    if watermark is not None and not isinstance(watermark, Watermark):
        raise TypeError(
            f"watermark must be a caw watermark or None, got {type(watermark).__name__}; use e.g. caw.KGW(key=42)"
        )


def check_arguments(facts: ModelFacts, tokenizer: Any, watermark: Any, policy: Any, prompt_cache: Any) -> Policy:
    """The policy to use; raises or warns where arguments do not go together."""
    check_watermark(watermark)
    if not isinstance(prompt_cache, PromptCache | None):
        raise TypeError(f"prompt_cache must be a caw.PromptCache, got {type(prompt_cache).__name__}; leave it out")
    policy = check_policy(policy, facts.name, tokenizer)
    warn_of_ignored_settings(facts)
    warn_of_dropout(facts)
    return policy


def check_policy(policy: Policy | None, model_name: str, tokenizer: Any = None) -> Policy:
    """The policy to use; warns if its evaluator was trained for another model, refuses other tokens' classes."""
    if policy is None:
        return FixedStrength(1.0)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a caw policy, got {type(policy).__name__}; use e.g. caw.FixedStrength(1.0)")
    if isinstance(policy, CapacityPolicy):
        if model_name:
            warn_of_other_model(policy.network, model_name)
        if policy.network.token_class is not None and tokenizer is not None:
            check_tokenizer(policy.network.token_class.cpu(), tokenizer, policy.network.spec.line_ends)
    return policy


def warn_of_ignored_settings(facts: ModelFacts) -> None:
    """Warn where the model's own generation config would change the choice of tokens in `model.generate`."""
    if facts.ignored:
        warn_caller(
            f"the model's generation config sets {', '.join(facts.ignored)}, which caw.generate leaves out; use "
            "model.generate(..., custom_generate=caw.decode) to keep it"
        )


def warn_of_dropout(facts: ModelFacts) -> None:
    """Say that a model in train mode decodes as in eval mode; it is put back after every step."""
    if facts.dropping:
        warn_caller(
            f"the model is in train mode and {facts.dropping} would drop at random; its texts are those of eval mode, "
            "and its mode is left as it was"
        )


def kernels_of(backend: str | None, facts: ModelFacts) -> ops.Ops:
    """The ops that `backend` stands for: see `caw.generate`; ImportError where a package is missing."""
    if backend is None:
        return ops.dispatched()
    if backend == "reference":
        return ops.references()
    if backend == flash_decoding.NAME:
        kernels = flash_decoding.flash_kernels()
        flash_decoding.check_flash(facts.device, facts.dtype)
        return kernels
    raise ValueError(
        f"backend must be None, 'reference' or '{flash_decoding.NAME}', got {shown(backend)}; leave it out"
    )
