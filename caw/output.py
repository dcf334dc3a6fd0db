"""Results of generation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.decoding.decoder import Decoder
from caw.decoding.prompts import Accepted, PromptWarning
from caw.decoding.request import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace
from caw.detectable.attempts import Attempts, UndetectedError
from caw.detectable.receipts import Receipt
from caw.io.show import shown
from caw.io.warn import warn_caller


@dataclass
class GenerationResult:
    """One finished sequence.

    index: index of its prompt. text: new text, without special tokens and a matched stop string.
    tokens: new token ids, including a final EOS. finish_reason: "eos", "length", "stop", "error" or "undetected".
    trace: per-token trace of decoding; None unless requested.
    error: why the prompt could not be continued (or that the model's logits became NaN or infinite), with finish_reason
        "error" and no tokens; else empty. reason: the same without the prompt's number.
    receipt: the result of its test; None where texts are not tested.
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
    ) -> "GenerationResult":
        """Build the result of a finished sequence; the text ends before a matched stop string."""
        trace = sequence.trace if with_trace else None
        error = f"prompt {index}: {sequence.error}" if sequence.error else ""
        text, reason = stops.shown(sequence.visible), sequence.finish_reason
        return cls(index, text, sequence.tokens, reason, trace, error, sequence.error, receipt)


def refusals(accepted: Accepted, *, with_trace: bool) -> list[GenerationResult]:
    """Return the results of prompts that cannot be continued."""
    return [
        GenerationResult(
            remark.index, "", [], "error", SequenceTrace() if with_trace else None, str(remark), remark.of("the prompt")
        )
        for remark in accepted.refused
    ]


def run_decoder(
    decoder: Decoder, accepted: Accepted, attempts: Attempts, stops: StopStrings, streamer: Any
) -> Iterator[GenerationResult]:
    """Yield None at the start, then each prompt's result over all attempts. The streamer is always ended."""
    settings = decoder.plan.settings
    with_trace = settings.return_trace

    def put(tokens: Sequence[int]) -> None:
        for token in tokens:
            streamer.put(torch.tensor([token]))

    each = streamer is not None and not attempts.sends(put)

    def on_token(sequence: ActiveSequence) -> bool:
        if each:
            put(sequence.tokens[-1:])
        return stops.reached(sequence.tokens) or attempts.ended(sequence)

    started: Any = None
    sequences = decoder.run(attempts.first, on_token)
    try:
        yield started
        if streamer is not None:
            streamer.put(torch.tensor(accepted.ids))
        yield from refusals(accepted, with_trace=with_trace)
        for sequence in sequences:
            done = attempts.on_finished(sequence, decoder.waiting.add)
            if done is None:
                continue
            place, text, receipt = done
            index = accepted.indices[place]
            if receipt is not None and not receipt.detected and settings.on_undetected == "raise":
                raise UndetectedError(index, receipt)
            result = GenerationResult.of(text, index, stops, receipt=receipt, with_trace=with_trace)
            if result.error:
                warn_caller(result.error, PromptWarning)
            yield result
    finally:
        if streamer is not None:
            streamer.end()


@dataclass(repr=False)
class GenerationOutput:
    """Results in input order.

    texts: new text of each prompt, without special tokens and a matched stop string.
    sequences: new token ids of each prompt, including a final EOS. trace: one `SequenceTrace` per prompt, or None
        unless requested.
    finish_reasons: "eos", "length", "stop", "error", or "undetected" for a text that was dropped because no attempt was
        detected.
    errors: why prompts could not be continued, by index. seconds: wall time of prefill and decoding.
    receipts: one `Receipt` per prompt where texts are tested (None for an error), else None.
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
    ) -> "GenerationOutput":
        """Collect results in input order. tested: whether they have receipts."""
        return cls(
            texts=[r.text for r in results],
            sequences=[r.tokens for r in results],
            trace=[r.trace for r in results if r.trace is not None] if with_trace else None,
            finish_reasons=[r.finish_reason for r in results],
            errors={r.index: r.error for r in results if r.error},
            seconds=seconds,
            receipts=[r.receipt for r in results] if tested else None,
        )

    def __repr__(self) -> str:
        """Return the beginning of the first text and what there is of all."""
        first = shown(self.texts[0]) if self.texts else "none"
        errors = f", errors={self.errors}" * bool(self.errors)
        return (
            f"GenerationOutput({len(self.texts)} texts, the first {first}; {self.num_tokens} tokens in "
            f"{self.seconds:.1f} s{errors})"
        )

    @property
    def num_tokens(self) -> int:
        return sum(len(s) for s in self.sequences)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts per second of wall time; 0 if no time passed."""
        return self.num_tokens / self.seconds if self.seconds else 0.0
