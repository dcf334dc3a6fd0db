"""From prompts to watermarked text. Read this file first, then `decoding/`: plan, decoder, prefill, step, choosing.

call     keyword arguments -> one `Call`, which checks them      call.py, settings.py
accept   prompts -> token ids                                   decoding/prompts.py
plan     what each text may ask for, which step, what fits      detectable/planned.py, decoding/plan.py
run      rows of a batch: prefill, then one step per token      decoding/decoder.py, prefill.py, step.py
return   finished token ids -> texts                            output.py
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from caw import ops
from caw.arguments import (
    check_model,
    check_streamer,
    checked_mark,
    ended_on_error,
    prompt_count,
    warn_of_idle,
    without_retries,
)
from caw.call import Call, WatchedCall, takes_fields
from caw.decoding.plan import make_plan
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import Accepted, accepted_for
from caw.decoding.request import limits_of
from caw.decoding.stopping import StopStrings
from caw.detectable.planned import plan_attempts
from caw.detection.detector import Detector
from caw.io.progress import GenerationProgress
from caw.models.parts import looked_at_once
from caw.output import GenerationOutput, GenerationResult, refusals, run_decoder
from caw.policies import Policy
from caw.policies.recommended import mark_of, row_of
from caw.settings import Settings
from caw.watermarks import Signature

DEFAULT_BATCH = 8

__all__ = ["GenerationOutput", "GenerationResult", "generate", "iter_generate", "stream_results"]


# called with the fields of WatchedCall as keywords, which it gets as one object
@takes_fields(WatchedCall)
def generate(call: WatchedCall) -> GenerationOutput:
    """Generate (watermarked) continuations.

    >>> model, tokenizer = caw.load_model("smollm2-135m")
    >>> out = caw.generate(model, tokenizer, "The sea is", watermark=caw.KGW(key=123), max_new_tokens=50)
    >>> print(out.texts[0])

    Returns:
        GenerationOutput, in input order; empty for an empty list. A prompt that is empty, too long or holds unknown ids
        has an empty text at its place, a warning and its reason in `errors`; the others go on. So has one for which the
        model's logits become NaN or infinite.

    Raises TypeError or ValueError in one sentence (expected, found, remedy), also if no prompt at all can be continued;
    NotImplementedError for models that cannot branch. Greedy decoding is deterministic; sampling
    depends on the seed, the prompt and how often the prompt came before, not on the batch.

    A child forked from a process that computed on several threads computes on one: torch's threads do not survive it.
    """
    started = time.perf_counter()
    bar = GenerationProgress(prompt_count(call.prompts), enabled=call.progress)
    iterator = results_for(call, call.report or bar.note)
    results: dict[int, GenerationResult] = {}
    with bar:
        for result in iterator:
            results[result.index] = result
            bar(len(result.tokens))
    done = [result for _, result in sorted(results.items())]
    if done and all(result.error for result in done):
        raise ValueError(done[0].error)
    return GenerationOutput.of(
        done, time.perf_counter() - started, with_trace=call.return_trace, tested=bool(call.level)
    )


@takes_fields(Call)
def iter_generate(call: Call) -> Iterator[GenerationResult]:
    """As `generate`, but yields each sequence as it finishes (not in input order).

    Arguments are the same (no `progress`) and checked at once, before the first result is asked for.
    """
    return results_for(call, call.report)


def results_for(call: Call, report: Callable[[str], None] | None) -> Iterator[GenerationResult]:
    """Accept the prompts of a call and return its results as they finish."""
    with looked_at_once():
        with ended_on_error(call.streamer):
            settings = call.settings
            check_streamer(call.streamer, call.prompts)
            accepted = accepted_for(call.model, call.tokenizer, call.prompts, settings)
            accepted.tell()
        return stream_results(
            call.model, call.tokenizer, accepted, call.watermark, call.policy, settings,
            streamer=call.streamer, report=report, prompt_cache=call.prompt_cache, detector=call.detector,
        )  # fmt: skip


def stream_results(
    model: Any, tokenizer: Any, accepted: Accepted, watermark: Signature | None, policy: Policy | None,
    settings: Settings, *, streamer: Any = None, report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None, detector: Detector | None = None,
) -> Iterator[GenerationResult]:  # fmt: skip
    """Check, plan and run: yield a result for every prompt that `accept_prompts` was given, refused ones first.

    What may differ from text to text is read from the requests (`RowSettings`), not from `settings`.
    """
    with ended_on_error(streamer):
        # check what goes together
        if report is not None and not callable(report):
            raise TypeError(f"report must be a function that takes a str, got {type(report).__name__}; leave it out")
        if not isinstance(prompt_cache, PromptCache | None):
            raise TypeError(f"prompt_cache must be a caw.PromptCache, got {type(prompt_cache).__name__}; leave it out")
        settings = settings if streamer is None else without_retries(settings)
        facts, kernels = accepted.facts, ops.of_backend(settings.backend)
        warn_of_idle(watermark, policy, settings)
        # a Recommended is a rule: it adjusts the settings of the call and of each text, and picks the mark by them
        settings = row_of(watermark, settings)
        requests = [replace(each, row=row_of(watermark, each.row)) for each in accepted.requests]
        mark = mark_of(watermark, policy, settings, settings.level)
        mark = checked_mark(mark, facts, tokenizer, sampled=settings.do_sample)
        check_model(facts, settings.applied())
        stops = StopStrings(tokenizer, settings.stop)
        if not requests:
            return iter(refusals(accepted, with_trace=settings.return_trace))

        # plan: the attempts that each text may get, then how a decoder makes them
        attempts = plan_attempts(
            requests, facts, mark, settings, model=model, stops=stops, detector=detector, prompts=prompt_cache,
            reader=watermark, streams=streamer is not None,
        )  # fmt: skip
        limits = limits_of(attempts.possible, facts.ends)
        batch = min(settings.batch_size or DEFAULT_BATCH, attempts.together)
        plan = make_plan(
            facts, mark.watermark, attempts.policy, settings, limits, batch, kernels=kernels,
            prompt_cache=attempts.prompts,
        )  # fmt: skip

        # run: the decoder gets the first attempts, and more as texts are tested
        results = run_decoder(attempts.decoder(model, plan, report), accepted, attempts, stops, streamer)
    next(results)  # a generator that never started runs no `finally`: from here on closing it ends the streamer
    return results
