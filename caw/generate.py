"""From prompts to watermarked text: read this file first, then `decoding/step.py`.

prompts -> token ids -> slots of the decoder -> (prefill, then one step per token) -> texts
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caw import ops
from caw.decoding.prompts import Prompts, encode_prompts, fit_budget
from caw.decoding.settings import Branching, DecodeSettings
from caw.decoding.slots import ActiveSequence, Decoder
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace
from caw.models import end_token_ids
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.progress import generation_progress
from caw.watermarks import Watermark

DEFAULT_BATCH = 8


@dataclass
class GenerationResult:
    """One finished sequence: `index` of its prompt, new tokens only (an ending EOS included), its text without it."""

    index: int
    text: str
    tokens: list[int]
    finish_reason: str
    trace: SequenceTrace | None


@dataclass
class GenerationOutput:
    """Results in input order.

    texts: new text of each prompt, special tokens and a matched stop string left out.
    sequences: new token ids of each prompt, an ending EOS included. trace: one `SequenceTrace` per prompt, or None.
    finish_reasons: "eos", "length" or "stop". seconds: wall time of prefill and decoding.
    """

    texts: list[str] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    trace: list[SequenceTrace] | None = None
    finish_reasons: list[str] = field(default_factory=list)
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
        model: a transformers causal LM; its weights and settings are left as they were.
        tokenizer: its tokenizer.
        prompts: a str, a list of str (tokenizer(p), no chat template unless chat=True), or a list of id lists.
        watermark: KGW, Unigram, EXP; None = this library's own unwatermarked decode.
        policy: how strongly each token is marked; None = FixedStrength(1.0), the plain watermark.
        return_trace: keep capacity, strength, candidates and choice of every token.
        progress: show a progress bar if stderr is a terminal.
        options: see `iter_generate`: max_new_tokens, min_new_tokens, branching, do_sample, temperature, top_k, top_p,
            seed, batch_size, stop, streamer, chat, slots, backend.

    Returns:
        GenerationOutput, in input order; empty for an empty list.

    Raises TypeError or ValueError in one sentence (expected, found, remedy); NotImplementedError for models that
    cannot branch. Greedy decoding is deterministic; sampling depends on seed and prompt alone, not on the batch.
    """
    started = time.perf_counter()
    total = 1 if isinstance(prompts, str) else len(prompts)
    results: list[GenerationResult | None] = [None] * total
    with generation_progress(total, enabled=progress) as advance:
        iterator = iter_generate(
            model, tokenizer, prompts, watermark=watermark, policy=policy, return_trace=return_trace, **options
        )
        for result in iterator:
            results[result.index] = result
            advance(len(result.tokens))
    done = [r for r in results if r is not None]
    return GenerationOutput(
        texts=[r.text for r in done],
        sequences=[r.tokens for r in done],
        trace=[r.trace for r in done if r.trace is not None] if return_trace else None,
        finish_reasons=[r.finish_reason for r in done],
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
    backend: str | None = None,
) -> Iterator[GenerationResult]:
    """As `generate`, but yields each sequence as it finishes (not in input order).

    Args:
        max_new_tokens, min_new_tokens: bounds per sequence; end tokens are masked before the ladder until the minimum.
        branching: "tree" (one forward for all candidates), "sequential" or "batch" (the paper's baselines); equal text.
        do_sample, temperature, top_k, top_p: as in transformers; 0 and 1.0 switch top_k and top_p off.
        seed: of the sampling noise, in [0, 2^64).
        batch_size: sequences decoded at once; None = 8 or fewer. The text does not depend on it.
        stop: strings that end a sequence; they are left out of its text.
        streamer: a transformers streamer (put, end); one prompt only.
        chat: wrap each prompt in the tokenizer's chat template.
        slots: candidates one forward carries; None = 2 for green lists, up to 8 for EXP.
        backend: None or "reference"; which kernels run.
    """
    kernels = kernels_of(backend)
    ids = encode_prompts(tokenizer, prompts, model, chat=chat)
    if streamer is not None and len(ids) != 1:
        raise ValueError(f"a streamer shows one text, so it needs one prompt, got {len(ids)}; leave streamer out")
    policy = check_policy(policy, model)
    settings = DecodeSettings(
        max_new_tokens, min_new_tokens, branching, do_sample, temperature, top_k, top_p, seed, slots,
        tuple(sorted(end_token_ids(model, tokenizer))), return_trace,
    )  # fmt: skip
    budgets = [fit_budget(model, len(p), max_new_tokens, index) for index, p in enumerate(ids)]
    stops = StopStrings(tokenizer, stop, len(ids))
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}; leave it out for the default")
    if not ids:
        return
    batch = min(batch_size or DEFAULT_BATCH, len(ids))
    capacity = max(len(p) + budget for p, budget in zip(ids, budgets, strict=True))

    def on_token(index: int, tokens: list[int]) -> bool:
        if streamer is not None:
            streamer.put(_cpu_tensor(tokens[-1:]))
        return stops.reached(index, tokens)

    decoder = Decoder(model, watermark, policy, settings, batch, capacity, kernels=kernels)
    try:
        for sequence in decoder.run(ids, budgets, on_token):
            yield _finish(sequence, tokenizer, settings, stops)
    finally:
        if streamer is not None:
            streamer.end()


def check_policy(policy: Policy | None, model: Any) -> Policy:
    """The policy to use; warns if its evaluator was trained for another model."""
    if policy is None:
        return FixedStrength(1.0)
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be a caw policy, got {type(policy).__name__}; use e.g. caw.FixedStrength(1.0)")
    if isinstance(policy, CapacityPolicy):
        trained_on = policy.network.provenance.get("model")
        name = Path(getattr(model.config, "_name_or_path", "") or "").name
        if trained_on and name and Path(trained_on).name != name:
            warnings.warn(
                f"the evaluator was trained on {trained_on}, the model is {name}: capacities may be off; train one "
                "for this model with `caw train-evaluator`",
                stacklevel=3,
            )
    return policy


def kernels_of(backend: str | None) -> ops.Ops:
    """The ops that `backend` stands for: None = by device, "reference" = plain PyTorch."""
    if backend is None:
        return ops.dispatched()
    if backend == "reference":
        return ops.references()
    raise ValueError(f"backend must be None or 'reference', got {backend!r}; leave it out")


def _finish(sequence: ActiveSequence, tokenizer: Any, settings: DecodeSettings, stops: StopStrings) -> GenerationResult:
    tokens = sequence.tokens
    visible = tokens[:-1] if sequence.finish_reason == "eos" else tokens
    text = tokenizer.decode(visible, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return GenerationResult(
        sequence.index, stops.cut(text), tokens, sequence.finish_reason, sequence.trace if settings.trace else None
    )


def _cpu_tensor(tokens: list[int]) -> Any:
    import torch

    return torch.tensor(tokens)
