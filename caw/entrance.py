"""From prompts to watermarked text: read this file first, then `decoding/`: plan, decoder, prefill, step.

prompts -> token ids -> rows of the decoder -> (prefill, then one step per token) -> texts
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from caw.arguments import check_arguments, check_streamer, ended_on_error, kernels_of, made_once
from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import Accepted, Prompts, accept_prompts
from caw.decoding.row_settings import RowSettings
from caw.decoding.stopping import StopStrings
from caw.detection.detector import Detector
from caw.found.attempts import plan_attempts
from caw.found.selection import Choice
from caw.io.progress import GenerationProgress
from caw.models.facts import ModelFacts
from caw.output import GenerationOutput, GenerationResult, refusals, results_of
from caw.policies import Policy
from caw.settings import Branching, OnUnfound, PrefillAttention, Settings
from caw.watermarks import Watermark

DEFAULT_BATCH = 8

__all__ = ["GenerationOutput", "GenerationResult", "generate", "iter_generate", "stream_results"]


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompts,
    *,
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    max_new_tokens: int = 200,
    min_new_tokens: int = 0,
    branching: Branching = "tree",
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int | None = None,
    return_trace: bool = True,
    stop: str | Sequence[str] | None = None,
    streamer: Any = None,
    chat: bool = False,
    slots: int | None = None,
    max_memory: int | float | str | None = None,
    prefill_attention: PrefillAttention = "sdpa",
    compile: bool = False,
    backend: str | None = None,
    report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None,
    mark_eos: bool | None = None,
    found_at: float | None = None,
    max_attempts: int = 4,
    best_of: int = 1,
    select: str | Choice = "weakest",
    on_unfound: OnUnfound = "keep",
    edits: float = 0.0,
    detector: Detector | None = None,
    speculate: Any = "auto",
    progress: bool = True,
) -> GenerationOutput:
    """Generate (watermarked) continuations.

    Args:
        model: a transformers causal LM; its weights and settings are left as they were. It decodes as in eval mode.
        tokenizer: its tokenizer.
        prompts: a str, a list of str (tokenizer(p), no chat template unless chat=True), or a list of id lists.
        watermark: KGW, Unigram, EXP; None = this library's own unwatermarked decode.
        policy: how strongly each token is marked; None = FixedStrength(1.0), the plain watermark.
        return_trace: keep capacity, strength, candidates and choice of every token.
        progress: show a progress bar if stderr is a terminal.
        max_new_tokens, min_new_tokens: bounds per sequence; end tokens are masked before the ladder until the minimum.
        branching: "tree" (one forward for all candidates), "sequential" or "batch" (the paper's baselines); equal text.
        do_sample, temperature, top_k, top_p: as in transformers; 0 and 1.0 switch top_k and top_p off; the temperature
            is at least 1e-6.
        seed: of the sampling noise, in [0, 2^64).
        batch_size: sequences decoded at once; None = 8 or fewer. Texts do not depend on it in float32, nor in bfloat16
            on a CPU with the compiled extension; elsewhere a near tie may.
        stop: strings that end a sequence; they are left out of its text.
        streamer: a transformers streamer; one prompt only. As in transformers it is given the prompt's ids [1, T]
            first, then each token (those of a stop string too), and its end() is called whatever happens.
        chat: wrap each prompt in the tokenizer's chat template.
        slots: candidates one forward carries; None = 2 for green lists, up to 8 for EXP.
        max_memory: what decoding may use besides the weights: bytes, a share of what is free as a float, or a text such
            as "8GiB"; None = 0.9 of what is free. A batch that does not fit becomes a smaller one.
        prefill_attention: attention of prompts: "sdpa" (on a CPU this library's own), "flash_attention_2" (the
            flash-attn package) or "eager".
        compile: run the model's body as torch.compile makes it: a minute of preparation, fewer kernels a step. Needs a
            model on one device in one process, and a watermark and policy that need nothing of the host (docs/gpu.md).
        backend: which kernels run: None = this library's; "reference" = plain PyTorch; "flash-attn" = its own, but
            attention of a step by the flash-attn package (CUDA, float16 or bfloat16).
        report: called with what is being prepared (a CUDA graph), and with "" when that is done.
        prompt_cache: a `PromptCache` given to several calls with this model: prompts that an earlier call read are not
            read again. Not used where texts may reach the length from which the model's rotary embedding changes.
        mark_eos: whether the mark may decide where a text ends. With False the original token is kept wherever an end
            token is among the candidates that the policy's greatest strength reaches: marking ends gains nothing, and a
            key that disfavours them makes texts run on. Stop strings are marked as any text. None = True where texts
            must be another system's, token for token (foreign formats; SynthID), False in this library's own formats.
        found_at: test every text before it leaves, as `caw.detect` does at this false-positive rate, and make those
            that are not found again, each time more strongly, up to `max_attempts` in all; see `receipts`.
        best_of: candidates of each text: at the policy's own strength and weaker. All are made and tested; with
            select="weakest" no more than up to the first that is found.
        select: which candidate leaves: "weakest" found, "likeliest" found under the unmarked model, or a function that
            takes them all and returns one that is found (`caw.found.selection`).
        on_unfound: a text that no attempt made findable is kept, dropped (its text is empty) or raised as a ValueError.
        edits: the text must also be found after this share of its words is deleted, in 0.9 of 50 seeded draws.
        detector: a `caw.detection.Detector` for the test, of the same key; None = `caw.detect` without options.
        speculate: tokens guessed and checked ahead, which changes no text: "auto" = looked up in all texts of the call
            where it pays, on a CPU, "own" = in each by itself; None = none; a number = always so many; or a `Drafter`.

    Returns:
        GenerationOutput, in input order; empty for an empty list. A prompt that is empty, too long or holds unknown ids
        is left out with a warning and reported in `errors`; the others go on. So is one for which the model's logits
        become NaN or infinite.

    Raises TypeError or ValueError in one sentence (expected, found, remedy), also if no prompt at all can be continued;
    NotImplementedError for models that cannot branch. Greedy decoding is deterministic; sampling depends on seed and
    prompt alone, not on the batch.

    A child forked from a process that computed on several threads computes on one: torch's threads do not survive it.
    """
    started = time.perf_counter()
    total = len(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, str) else 1
    bar = GenerationProgress(total, enabled=progress)
    iterator = iter_generate(
        model, tokenizer, prompts, watermark=watermark, policy=policy, max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens, branching=branching, do_sample=do_sample, temperature=temperature, top_k=top_k,
        top_p=top_p, seed=seed, batch_size=batch_size, return_trace=return_trace, stop=stop, streamer=streamer,
        chat=chat, slots=slots, max_memory=max_memory, prefill_attention=prefill_attention, compile=compile,
        backend=backend, report=report or bar.note, prompt_cache=prompt_cache, mark_eos=mark_eos, found_at=found_at,
        max_attempts=max_attempts, best_of=best_of, select=select, on_unfound=on_unfound, edits=edits,
        detector=detector, speculate=speculate,
    )  # fmt: skip
    results: dict[int, GenerationResult] = {}
    with bar:
        for result in iterator:
            results[result.index] = result
            bar(len(result.tokens))
    done = [result for _, result in sorted(results.items())]
    if done and all(result.error for result in done):
        raise ValueError(done[0].error)
    return GenerationOutput.of(done, time.perf_counter() - started, with_trace=return_trace, tested=bool(found_at))


def iter_generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompts,
    *,
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    max_new_tokens: int = 200,
    min_new_tokens: int = 0,
    branching: Branching = "tree",
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    batch_size: int | None = None,
    return_trace: bool = True,
    stop: str | Sequence[str] | None = None,
    streamer: Any = None,
    chat: bool = False,
    slots: int | None = None,
    max_memory: int | float | str | None = None,
    prefill_attention: PrefillAttention = "sdpa",
    compile: bool = False,
    backend: str | None = None,
    report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None,
    mark_eos: bool | None = None,
    found_at: float | None = None,
    max_attempts: int = 4,
    best_of: int = 1,
    select: str | Choice = "weakest",
    on_unfound: OnUnfound = "keep",
    edits: float = 0.0,
    detector: Detector | None = None,
    speculate: Any = "auto",
) -> Iterator[GenerationResult]:
    """As `generate`, but yields each sequence as it finishes (not in input order).

    Arguments are the same (no `progress`) and checked at once, before the first result is asked for.
    """
    with ended_on_error(streamer):
        settings = Settings(
            max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, branching=branching, do_sample=do_sample,
            temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, slots=slots, stop=stop, chat=chat,
            mark_eos=mark_eos, return_trace=return_trace, batch_size=batch_size, max_memory=max_memory,
            prefill_attention=prefill_attention, compile=compile, backend=backend, found_at=found_at,
            max_attempts=max_attempts, best_of=best_of, select=select, on_unfound=on_unfound, edits=edits,
            speculate=speculate,
        )  # fmt: skip
        check_streamer(streamer, prompts)
        row, facts = RowSettings.of(settings), ModelFacts.of(model, tokenizer)
        accepted = accept_prompts(tokenizer, prompts, facts, row, chat=chat)
        accepted.tell()
    return stream_results(
        model, tokenizer, accepted, watermark, policy, settings,
        streamer=streamer, report=report, prompt_cache=prompt_cache, detector=detector,
    )  # fmt: skip


def stream_results(
    model: Any,
    tokenizer: Any,
    accepted: Accepted,
    watermark: Watermark | None,
    policy: Policy | None,
    settings: Settings,
    *,
    streamer: Any = None,
    report: Callable[[str], None] | None = None,
    prompt_cache: PromptCache | None = None,
    detector: Detector | None = None,
) -> Iterator[GenerationResult]:
    """A result for every prompt that `accept_prompts` was given, refused ones first: check, plan, run.

    What may differ from text to text is read from the requests (`RowSettings`), not from `settings`.
    """
    with ended_on_error(streamer):
        if report is not None and not callable(report):
            raise TypeError(f"report must be a function that takes a str, got {type(report).__name__}; leave it out")
        settings = settings if streamer is None else made_once(settings)
        facts, kernels = accepted.facts, kernels_of(settings.backend, accepted.facts)
        policy = check_arguments(facts, tokenizer, watermark, policy, prompt_cache)
        stops, requests = StopStrings(tokenizer, settings.stop), accepted.requests
        if not requests:
            return iter(refusals(accepted, with_trace=settings.return_trace))
        attempts = plan_attempts(
            requests, facts, watermark, policy, settings, model=model, stops=stops, detector=detector, kept=prompt_cache
        )
        work = attempts.workload(settings.batch_size or DEFAULT_BATCH, facts.ends)
        plan = make_plan(
            facts, watermark, attempts.policy, settings, work, kernels=kernels, prompt_cache=attempts.prompts
        )
        results = results_of(Decoder(model, plan, report), accepted, attempts, stops, streamer)
    next(results)  # a generator that never started runs no `finally`: from here on closing it ends the streamer
    return results
