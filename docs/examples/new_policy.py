"""A custom policy: the less sure the model is of a token, the more strongly it is marked."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import caw
from caw.policies import Policy, Signals
from caw.policies.entropy import entropy


@dataclass(frozen=True)
class EntropyRamp(Policy):
    """Strength rises with the entropy of p_i, from 0 at none to `value` at `nats` and beyond."""

    nats: float = 2.0
    value: float = 1.0

    def __post_init__(self) -> None:
        if not self.nats > 0:
            raise ValueError(f"nats must be above 0, got {self.nats}; use 2")

    @property
    def max_strength(self) -> float:
        return self.value  # ladders are built up to it, so it must be exact

    def strength(self, signals: Signals) -> torch.Tensor:
        """signals.logits float32 [B, V] -> strength float32 [B]."""
        return (self.value * (entropy(signals.logits) / self.nats).clamp(max=1)).float()


def main() -> None:
    """How strongly tokens were marked, and how well the mark is detected: plain and ramp."""
    model, tokenizer = caw.load_model("smollm2-135m")
    watermark = caw.KGW(key=42)
    for policy in (caw.FixedStrength(1.0), EntropyRamp()):
        prompt = "Why do we sleep?"
        out = caw.generate(model, tokenizer, prompt, watermark=watermark, policy=policy, chat=True)
        assert out.trace is not None
        mean = sum(out.trace[0].strength) / out.num_tokens
        found = caw.detect(out.texts[0], tokenizer, watermark)
        name = type(policy).__name__
        print(f"{name}: strength {mean:.2f} on average, p = {found.p_value:.1e}")


if __name__ == "__main__":
    main()
