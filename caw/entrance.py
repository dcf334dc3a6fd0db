"""From prompts to watermarked text: read this file first, then `decoding/step.py`.

prompts -> token ids -> slots of the decoder -> (prefill, then one step per token) -> texts
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw import ops
from caw.decoding import flash_decoding
from caw.decoding.eval_mode import active_dropout
from caw.decoding.prefill_attention import PrefillAttention
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import Accepted, Prompts, accept_prompts
from caw.decoding.settings import Branching, DecodeSettings, marks_eos
from caw.decoding.slots import ActiveSequence, Decoder, decoding_device, vocabulary_size
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace
from caw.evaluator.network import check_model
from caw.evaluator.token_classes import check_tokenizer
from caw.models import end_token_ids
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.progress import GenerationProgress
from caw.watermarks import Watermark
from caw.watermarks.base import require_int

DEFAULT_BATCH = 8
# settings of a generation config that change greedy choices, and the values that switch each of them off
IGNORED_SETTINGS: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None,),
    "sequence_bias": (None,),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
}


@dataclass
class GenerationResult:
    """One finished sequence: `index` of its prompt, new tokens only (an ending EOS included), its text without it.

    error: why the prompt could not be continued (or that the model's logits became NaN or infinite), with finish_reason
        "error" and no tokens; else empty.
    """

    index: int
    text: str
    tokens: list[int]
    finish_reason: str
    trace: SequenceTrace | None
    error: str = ""


@dataclass
class GenerationOutput:
    """Results in input order.

    texts: new text of each prompt, special tokens and a matched stop string left out.
    sequences: new token ids of each prompt, an ending EOS included. trace: one `SequenceTrace` per prompt, or None.
    finish_reasons: "eos", "length", "stop" or "error". errors: for prompts that could not be continued, why (by place).
    seconds: wall time of prefill and decoding.
    """

    texts: list[str] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    trace: list[SequenceTrace] | None = None
    finish_reasons: list[str] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(len(s) for s in self.sequences)

    @property
    def tokens_per_second(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Prompts,
    *,
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    return_trace: bool = True,
    progress: bool = True,
    **options: Any,
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
        options: see `iter_generate`: max_new_tokens, min_new_tokens, branching, do_sample, temperature, top_k, top_p,
            seed, batch_size, max_memory, stop, streamer, chat, slots, prefill_attention, compile, backend,
            prompt_cache, mark_eos.

    Returns:
        GenerationOutput, in input order; empty for an empty list. A prompt that is empty, too long or holds unknown ids
        is left out with a warning and reported in `errors`; the others go on. So is one for which the model's logits
        become NaN or infinite.

    Raises TypeError or ValueError in one sentence (expected, found, remedy), also if no prompt at all can be continued;
    NotImplementedError for models that cannot branch. Greedy decoding is deterministic; sampling depends on seed and
    prompt alone, not on the batch.
    """
    started = time.perf_counter()
    total = len(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, str) else 1
    bar = GenerationProgress(total, enabled=progress)
    iterator = iter_generate(
        model, tokenizer, prompts, watermark=watermark, policy=policy, return_trace=return_trace,
        **{"report": bar.note, **options},
    )  # fmt: skip
    results: dict[int, GenerationResult] = {}
    with bar:
        for result in iterator:
            results[result.index] = result
            bar(len(result.tokens))
    done = [result for _, result in sorted(results.items())]
    if done and all(result.error for result in done):
        raise ValueError(done[0].error)
    return GenerationOutput(
        texts=[r.text for r in done],
        sequences=[r.tokens for r in done],
        trace=[r.trace for r in done if r.trace is not None] if return_trace else None,
        finish_reasons=[r.finish_reason for r in done],
        errors={r.index: r.error for r in done if r.error},
        seconds=time.perf_counter() - started,
    )


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
) -> Iterator[GenerationResult]:
    """As `generate`, but yields each sequence as it finishes (not in input order).

    Arguments are checked at once, before the first result is asked for.

    Args:
        max_new_tokens, min_new_tokens: bounds per sequence; end tokens are masked before the ladder until the minimum.
        branching: "tree" (one forward for all candidates), "sequential" or "batch" (the paper's baselines); equal text.
        do_sample, temperature, top_k, top_p: as in transformers; 0 and 1.0 switch top_k and top_p off; the temperature
            is at least 1e-6.
        seed: of the sampling noise, in [0, 2^64).
        batch_size: sequences decoded at once; None = 8 or fewer. In float32 the text does not depend on it; in bfloat16
            a near tie may (6 of 96 texts, benchmarks/bench_batches.py).
        stop: strings that end a sequence; they are left out of its text.
        streamer: a transformers streamer; one prompt only. As in transformers it is given the prompt's ids [1, T]
            first, then each token (those of a stop string too), and its end() is called whatever happens.
        chat: wrap each prompt in the tokenizer's chat template.
        slots: candidates one forward carries; None = 2 for green lists, up to 8 for EXP.
        max_memory: what decoding may use besides the weights: bytes, a share of what is free as a float, or a text such
            as "8GiB"; None = 0.9 of what is free. A batch that does not fit becomes a smaller one.
        prefill_attention: attention of prompts: "sdpa", "flash_attention_2" (the flash-attn package) or "eager".
        compile: run the model's body as torch.compile makes it: a minute of preparation, fewer kernels a step. Needs a
            model on one device in one process, and a watermark in this library's own format.
        backend: which kernels run: None = this library's; "reference" = plain PyTorch; "flash-attn" = its own, but
            attention of a step by the flash-attn package (CUDA, float16 or bfloat16).
        report: called with what is being prepared (a CUDA graph), and with "" when that is done.
        prompt_cache: a `PromptCache` given to several calls with this model: prompts that an earlier call read are not
            read again. Their keys and values stay in memory as long as it does, within what max_memory leaves. Not used
            where texts outgrow the model's first rotary embedding.
        mark_eos: whether the mark may decide where a text ends. With False the original token is kept wherever an end
            token is among the candidates that the policy's greatest strength reaches: a text has no end token to be
            read, so marking it gains nothing, and a key that disfavours it makes texts run on. Stop strings are marked
            as any text. None = True where texts shall be another system's, token for token (foreign formats of KGW,
            Unigram and EXP; SynthID), False for KGW, Unigram and EXP in this library's own (EXP's dual-key one too).
    """
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise TypeError(
            f"streamer must have put and end as transformers' do, got {type(streamer).__name__}; leave it out"
        )
    with ended_on_error(streamer):
        kernels = kernels_of(backend)
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
            raise TypeError(f"model must be a transformers causal LM, got {type(model).__name__}; see caw.load_model")
        if backend == flash_decoding.NAME:
            flash_decoding.check_flash(decoding_device(model), model.dtype)
        if streamer is not None and (count := 1 if isinstance(prompts, str) else len(prompts)) != 1:
            raise ValueError(f"a streamer shows one text, so it needs one prompt, got {count}; leave streamer out")
        check_watermark(watermark)
        policy = check_policy(policy, model, tokenizer)
        warn_of_ignored_settings(model)
        warn_of_dropout(model)
        vocab_size = vocabulary_size(model)
        ends = tuple(sorted(i for i in end_token_ids(model, tokenizer) if i < vocab_size))
        settings = DecodeSettings(
            max_new_tokens, min_new_tokens, branching, do_sample, temperature, top_k, top_p, seed, slots, ends,
            return_trace, marks_eos(mark_eos, watermark),
        )  # fmt: skip
        accepted = accept_prompts(tokenizer, prompts, model, max_new_tokens, chat=chat)
        stops = StopStrings(tokenizer, stop)
        if not isinstance(prompt_cache, PromptCache | None):
            raise TypeError(f"prompt_cache must be a caw.PromptCache, got {type(prompt_cache).__name__}; leave it out")
        if batch_size is not None:
            require_int("batch_size", batch_size, 1, 1 << 20)
        if not accepted.ids:
            return iter(())
        batch = min(batch_size or DEFAULT_BATCH, len(accepted.ids))
        capacity = max(len(p) + budget for p, budget in zip(accepted.ids, accepted.budgets, strict=True))
        decoder = Decoder(
            model, watermark, policy, settings, batch, capacity, kernels=kernels, max_memory=max_memory,
            prefill_attention=prefill_attention, compile=compile, report=report, prompt_cache=prompt_cache,
        )  # fmt: skip
    results = _results(decoder, accepted, stops, streamer)
    next(results)  # a generator that never started runs no `finally`: from here on closing it ends the streamer
    return results


def _results(decoder: Decoder, accepted: Accepted, stops: StopStrings, streamer: Any) -> Iterator[GenerationResult]:
    def on_token(index: int, tokens: list[int]) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor(tokens[-1:]))
        return stops.reached(tokens)

    started: Any = None
    try:
        yield started
        if streamer is not None:
            streamer.put(torch.tensor(accepted.ids))
        for index, error in accepted.refused.items():
            yield GenerationResult(
                index, "", [], "error", SequenceTrace() if decoder.settings.trace else None, str(error)
            )
        for sequence in decoder.run(accepted.ids, accepted.budgets, on_token):
            result = _finish(sequence, accepted.indices[sequence.index], decoder.settings, stops)
            if result.error:
                warnings.warn(result.error, stacklevel=3)
            yield result
    finally:
        if streamer is not None:
            streamer.end()


@contextlib.contextmanager
def ended_on_error(streamer: Any) -> Iterator[None]:
    """Whoever reads a streamer in another thread waits for its end, also when nothing could be generated."""
    try:
        yield
    except BaseException:
        if streamer is not None:
            streamer.end()
        raise


def check_watermark(watermark: Any) -> None:
    if watermark is not None and not isinstance(watermark, Watermark):
        raise TypeError(
            f"watermark must be a caw watermark or None, got {type(watermark).__name__}; use e.g. caw.KGW(key=42)"
        )


def warn_of_ignored_settings(model: Any) -> None:
    """Warn where the model's own generation config would change the choice of tokens in `model.generate`."""
    config = getattr(model, "generation_config", None)
    found = [f"{k}={getattr(config, k)}" for k, off in IGNORED_SETTINGS.items() if getattr(config, k, None) not in off]
    if found:
        warnings.warn(
            f"the model's generation config sets {', '.join(found)}, which caw.generate leaves out; use "
            "model.generate(..., custom_generate=caw.decode) to keep it",
            stacklevel=4,
        )


def warn_of_dropout(model: Any) -> None:
    """Say that a model in train mode decodes as in eval mode; it is put back after every step."""
    dropping = active_dropout(model)
    if dropping:
        warnings.warn(
            f"the model is in train mode and {dropping} would drop at random; its texts are those of eval mode, and "
            "its mode is left as it was",
            stacklevel=4,
        )


def check_policy(policy: Policy | None, model: Any, tokenizer: Any = None) -> Policy:
    """The policy to use; warns if its evaluator was trained for another model, refuses other tokens' classes."""
    if policy is None:
        return FixedStrength(1.0)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a caw policy, got {type(policy).__name__}; use e.g. caw.FixedStrength(1.0)")
    if isinstance(policy, CapacityPolicy):
        name = getattr(model.config, "_name_or_path", "") or ""
        if name:
            check_model(policy.network, name, stacklevel=4)
        if policy.network.token_class is not None and tokenizer is not None:
            check_tokenizer(policy.network.token_class.cpu(), tokenizer, policy.network.spec.line_ends)
    return policy


def kernels_of(backend: str | None) -> ops.Ops:
    """The ops that `backend` stands for: see `iter_generate`; ImportError where a package is missing."""
    if backend is None:
        return ops.dispatched()
    if backend == "reference":
        return ops.references()
    if backend == flash_decoding.NAME:
        return flash_decoding.flash_kernels()
    raise ValueError(f"backend must be None, 'reference' or '{flash_decoding.NAME}', got {backend!r}; leave it out")


def _finish(sequence: ActiveSequence, index: int, settings: DecodeSettings, stops: StopStrings) -> GenerationResult:
    tokens = sequence.tokens
    visible = tokens[:-1] if sequence.finish_reason == "eos" else tokens
    trace = sequence.trace if settings.trace else None
    error = f"prompt {index}: {sequence.error}" if sequence.error else ""
    return GenerationResult(index, stops.cut(stops.text(visible)), tokens, sequence.finish_reason, trace, error)
