"""What generation gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.decoding.decoder import Decoder
from caw.decoding.prompts import Accepted, PromptWarning
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace
from caw.found.attempts import Attempts, UnfoundError
from caw.found.receipts import Receipt
from caw.io.warn import warn_caller


@dataclass
class GenerationResult:
    """One finished sequence.

    index: place of its prompt among those given. text: new text, without special tokens and a matched stop string.
    tokens: new token ids, an ending EOS included. finish_reason: "eos", "length", "stop", "error" or "unfound".
    trace: what decoding did at each token; None unless asked for.
    error: why the prompt could not be continued (or that the model's logits became NaN or infinite), with finish_reason
        "error" and no tokens; else empty. reason: the same without the prompt's number.
    receipt: what its test said, with found_at.
    """

    index: int
    text: str
    tokens: list[int]
    finish_reason: str
    trace: SequenceTrace | None
    error: str = ""
    reason: str = ""
    receipt: Receipt | None = None

    @classmethod
    def of(
        cls,
        sequence: ActiveSequence,
        index: int,
        stops: StopStrings,
        *,
        receipt: Receipt | None = None,
        with_trace: bool = True,
    ) -> GenerationResult:
        """Of a finished sequence; a stop string and what follows it are left out of the text."""
        trace = sequence.trace if with_trace else None
        error = f"prompt {index}: {sequence.error}" if sequence.error else ""
        text, reason = stops.shown(sequence.visible), sequence.finish_reason
        return cls(index, text, sequence.tokens, reason, trace, error, sequence.error, receipt)


def refusals(accepted: Accepted, *, with_trace: bool) -> list[GenerationResult]:
    """Results of the prompts that cannot be continued."""
    return [
        GenerationResult(
            remark.index, "", [], "error", SequenceTrace() if with_trace else None, str(remark), remark.of("the prompt")
        )
        for remark in accepted.refused
    ]


def results_of(
    decoder: Decoder, accepted: Accepted, attempts: Attempts, stops: StopStrings, streamer: Any
) -> Iterator[GenerationResult]:
    """A result for every prompt, after a first value that says it has begun; the streamer is ended whatever happens."""
    with_trace = decoder.plan.settings.return_trace

    def on_token(sequence: ActiveSequence) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor(sequence.tokens[-1:]))
        return stops.reached(sequence.tokens)

    started: Any = None
    sequences = decoder.run(attempts.first, on_token)
    try:
        yield started
        if streamer is not None:
            streamer.put(torch.tensor(accepted.ids))
        yield from refusals(accepted, with_trace=with_trace)
        for sequence in sequences:
            done = attempts.take(sequence, decoder.waiting.add)
            if done is None:
                continue
            index, receipt = accepted.indices[done.place], done.receipt
            if done.lost and receipt is not None:
                raise UnfoundError(index, receipt)
            result = GenerationResult.of(done.sequence, index, stops, receipt=receipt, with_trace=with_trace)
            if result.error:
                warn_caller(result.error, PromptWarning)
            yield result
    finally:
        if streamer is not None:
            streamer.end()


@dataclass
class GenerationOutput:
    """Results in input order.

    texts: new text of each prompt, special tokens and a matched stop string left out.
    sequences: new token ids of each prompt, an ending EOS included. trace: one `SequenceTrace` per prompt, or None
        unless asked for.
    finish_reasons: "eos", "length", "stop", "error", or "unfound" for a text that was dropped because no test found it.
    errors: for prompts that could not be continued, why (by place). seconds: wall time of prefill and decoding.
    receipts: one `Receipt` per prompt with found_at (None for an error), else None.
    """

    texts: list[str] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    trace: list[SequenceTrace] | None = None
    finish_reasons: list[str] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    receipts: list[Receipt | None] | None = None

    @classmethod
    def of(
        cls, results: list[GenerationResult], seconds: float, *, with_trace: bool, tested: bool = False
    ) -> GenerationOutput:
        """Of results in input order; tested: whether they have receipts."""
        return cls(
            texts=[r.text for r in results],
            sequences=[r.tokens for r in results],
            trace=[r.trace for r in results if r.trace is not None] if with_trace else None,
            finish_reasons=[r.finish_reason for r in results],
            errors={r.index: r.error for r in results if r.error},
            seconds=seconds,
            receipts=[r.receipt for r in results] if tested else None,
        )

    @property
    def num_tokens(self) -> int:
        """New tokens of all prompts together."""
        return sum(len(s) for s in self.sequences)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts together by wall time; 0 for no time."""
        return self.num_tokens / self.seconds if self.seconds else 0.0
