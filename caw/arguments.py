"""Check the arguments of generation before anything runs."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from caw.decoding.prompts import listed
from caw.detection.weights import TokenWeights
from caw.evaluator.network import check_serves
from caw.io.warn import warn_caller
from caw.models.facts import ModelFacts
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.policies.mark import Mark, check_kinds
from caw.policies.target import read_target
from caw.settings import DRAWING, Settings
from caw.watermarks import Signature


@contextlib.contextmanager
def ended_on_error(streamer: Any) -> Iterator[None]:
    """End the streamer if the block fails, because another thread may be waiting for it."""
    try:
        yield
    except BaseException:
        if callable(getattr(streamer, "end", None)):
            streamer.end()
        raise


def prompt_count(prompts: Any) -> int:
    """Return the number of prompts of a call. Anything that is not a list of prompts is rejected later."""
    prompts = listed(prompts)
    return len(prompts) if isinstance(prompts, Sequence) else 1


def check_streamer(streamer: Any, prompts: Any) -> None:
    """Raise TypeError unless it is a streamer, ValueError unless there is exactly one prompt."""
    if streamer is None:
        return
    if not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise TypeError(
            f"streamer must have put and end as transformers' do, got {type(streamer).__name__}; leave it out"
        )
    if (count := prompt_count(prompts)) != 1:
        raise ValueError(f"a streamer requires exactly one prompt, got {count}; leave streamer out")


def without_retries(settings: Settings) -> Settings:
    """Return the settings of a streamed text: it is steered towards its test, and never retried."""
    if settings.level is None:
        return settings
    if settings.best_of > 1:
        raise ValueError(f"a streamer requires best_of=1, got best_of={settings.best_of}; leave one of them out")
    if settings.on_undetected in ("drop", "unmarked"):
        raise ValueError(
            f"a streamer shows the text before it is tested, so on_undetected={settings.on_undetected!r} is impossible"
            "; use 'keep' or 'raise'"
        )
    if settings.max_attempts > 1 and settings.guard is None:
        warn_caller(
            "a streamed text is generated once: detectable_at steers it and tests it at the end, without retries; set "
            "max_attempts=1 to silence this warning"
        )
    return replace(settings, max_attempts=1)


def check_model(facts: ModelFacts, sampling: Mapping[str, Any]) -> None:
    """Warn of what decoding leaves out of a model in train mode or with a generation config; `sampling` is applied."""
    warn_of_ignored_settings(facts, sampling)
    warn_of_dropout(facts)


def checked_mark(mark: Mark, facts: ModelFacts, tokenizer: Any, *, sampled: bool) -> Mark:
    """Return what marks the texts of a model, its policy made ready for the tokenizer.

    Raises TypeError or ValueError for kinds, vocabularies, a target or a free beginning that do not go together; warns
    of a race where texts are to be greedy.
    """
    check_kinds(mark.watermark)
    mark = Mark(mark.watermark, check_policy(mark.policy, facts.name, tokenizer))
    mark.check_target()
    mark.check_beginning(sampled=sampled)
    if not sampled and mark.races:
        warn_caller(
            "EXP(strength='scale') at full strength draws each token by the key's noise, as at temperature 1, got "
            "do_sample=False; set do_sample=True with a temperature, or give caw.Recommended, or strength='top_k'"
        )
    return mark


def check_policy(policy: Policy | None, model_name: str, tokenizer: Any = None) -> Policy:
    """Return the policy to use. Its evaluator and the weights of its target must fit the model's vocabulary.

    Raises TypeError or ValueError if they do not; warns if the evaluator was trained on another model.
    """
    if policy is None:
        return FixedStrength(1.0)
    check_kinds(None, policy)
    if isinstance(policy, CapacityPolicy):
        given, policy = policy, policy.serving(tokenizer)
        if policy is given:
            check_serves(policy.network, model_name, tokenizer)
    target = read_target(policy.target)
    if target is not None and target.weights is not None and tokenizer is not None:
        table = target.weights if isinstance(target.weights, TokenWeights) else TokenWeights.load(target.weights)
        table.check_tokenizer(tokenizer)
    return policy


def warn_of_ignored_settings(facts: ModelFacts, applied: Mapping[str, Any]) -> None:
    """Warn if the model's own generation config would change the tokens that `model.generate` chooses."""
    if ignored := [said for said in facts.ignored if said.partition("=")[0] not in applied]:
        own = all(said.startswith("repetition_penalty=") for said in ignored)
        remedy = "give **caw.model_sampling(model)" if own else "use model.generate(..., custom_generate=caw.decode)"
        found = f"the model's generation config sets {', '.join(ignored)}"
        warn_caller(f"{found}, which caw.generate ignores; {remedy} to apply it")


def warn_of_idle(watermark: Signature | None, policy: Policy | None, settings: Settings) -> None:
    """Warn of arguments that have no effect: a policy without a watermark, and settings of sampling in greedy text."""
    if watermark is None and isinstance(policy, Policy):
        warn_caller(
            f"a policy marks nothing without a watermark, got {type(policy).__name__} and watermark=None; give a "
            "watermark, e.g. caw.Recommended(key=...), or leave policy out"
        )
    idle = [] if settings.do_sample else [name for name in DRAWING if name in settings.applied()]
    if idle:
        warn_caller(
            f"greedy text does not depend on {' and '.join(idle)}, got do_sample=False; set do_sample=True, or leave "
            f"{'it' if len(idle) == 1 else 'them'} out"
        )


def warn_of_dropout(facts: ModelFacts) -> None:
    """Warn that a model in train mode decodes as in eval mode; its mode is restored after every step."""
    if facts.dropping:
        warn_caller(
            f"the model is in train mode and {facts.dropping} would apply dropout; it decodes in eval mode, and its "
            "mode is restored"
        )
