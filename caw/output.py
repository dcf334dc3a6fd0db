"""What generation gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from caw.decoding.prompts import Accepted
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import SequenceTrace


@dataclass
class GenerationResult:
    """One finished sequence.

    index: place of its prompt among those given. text: new text, without special tokens and a matched stop string.
    tokens: new token ids, an ending EOS included. finish_reason: "eos", "length", "stop" or "error".
    trace: what decoding did at each token; None unless asked for.
    error: why the prompt could not be continued (or that the model's logits became NaN or infinite), with finish_reason
        "error" and no tokens; else empty. reason: the same without the prompt's number.
    """

    index: int
    text: str
    tokens: list[int]
    finish_reason: str
    trace: SequenceTrace | None
    error: str = ""
    reason: str = ""

    @classmethod
    def of(
        cls, sequence: ActiveSequence, index: int, stops: StopStrings, *, with_trace: bool = True
    ) -> GenerationResult:
        """Of a finished sequence; a stop string and what follows it are left out of the text."""
        tokens = sequence.tokens
        visible = tokens[:-1] if sequence.finish_reason == "eos" else tokens
        trace = sequence.trace if with_trace else None
        error = f"prompt {index}: {sequence.error}" if sequence.error else ""
        text = stops.cut(stops.text(visible))
        return cls(index, text, tokens, sequence.finish_reason, trace, error, sequence.error)


def refusals(accepted: Accepted, *, with_trace: bool) -> list[GenerationResult]:
    """Results of the prompts that cannot be continued."""
    return [
        GenerationResult(
            remark.index, "", [], "error", SequenceTrace() if with_trace else None, str(remark), remark.of("the prompt")
        )
        for remark in accepted.refused
    ]


@dataclass
class GenerationOutput:
    """Results in input order.

    texts: new text of each prompt, special tokens and a matched stop string left out.
    sequences: new token ids of each prompt, an ending EOS included. trace: one `SequenceTrace` per prompt, or None
        unless asked for.
    finish_reasons: "eos", "length", "stop" or "error". errors: for prompts that could not be continued, why (by place).
    seconds: wall time of prefill and decoding.
    """

    texts: list[str] = field(default_factory=list)
    sequences: list[list[int]] = field(default_factory=list)
    trace: list[SequenceTrace] | None = None
    finish_reasons: list[str] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, results: list[GenerationResult], seconds: float, *, with_trace: bool) -> GenerationOutput:
        """Of results in input order."""
        return cls(
            texts=[r.text for r in results],
            sequences=[r.tokens for r in results],
            trace=[r.trace for r in results if r.trace is not None] if with_trace else None,
            finish_reasons=[r.finish_reason for r in results],
            errors={r.index: r.error for r in results if r.error},
            seconds=seconds,
        )

    @property
    def num_tokens(self) -> int:
        """New tokens of all prompts together."""
        return sum(len(s) for s in self.sequences)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all prompts together by wall time; 0 for no time."""
        return self.num_tokens / self.seconds if self.seconds else 0.0
