"""Strengths that a policy must not give end the text with an error: it was left unmarked, or had too few candidates."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from decoding.architectures import build, policy_of, prompt
from decoding.capturing import seen_by_fakes, started
from decoding.running import run
from tiny import tiny_model, tiny_tokenizer

import caw
from caw import ops
from caw.policies import Policy, Signals

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]
BAD = [math.nan, -1.0, 2.5, math.inf, -math.inf]


@dataclass(frozen=True)
class Own(Policy):
    """Strength 1 of at most 2, but `bad` where the likeliest token is `at`."""

    bad: float = 1.0
    at: int = -1
    most: Any = 2.0

    @property
    def max_strength(self) -> float:
        return self.most

    def strength(self, signals: Signals) -> torch.Tensor:
        return torch.where(signals.current.ids[:, 0] == self.at, self.bad, 1.0)


def sentence(bad: float, token: int) -> str:
    return (
        f"policy Own must give strengths in [0, 2], up to its declared max_strength, got {bad:.9g} at new token "
        f"{token}; fix its strength or declare a greater max_strength"
    )


PATHS: dict[str, dict[str, Any]] = {
    "eager": {}, "fused": {"fixed": True}, "fixed": {"fixed": True, "kernels": ops.references()},
    "refilled": {"batch": 2},
    "one by one": {"batch": 1}, "drafts": {"speculate": "own"},
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_the_text_ends_alone_and_says_why(llama: Any, path: str) -> None:
    settings = {"max_new_tokens": 20, "return_trace": True, **PATHS[path]}
    mark = caw.KGW(key=3, delta=3.0)
    sound = run(llama, PROMPTS, mark, Own(), **settings)
    assert sound.tokens == run(llama, PROMPTS, mark, caw.FixedStrength(1.0), **settings).tokens
    for n, bad in enumerate(BAD):
        at = [trace.candidates[5][0] for trace in sound.traces][n % 3]  # what was likeliest at a sixth token
        places = [next((i for i, step in enumerate(trace.candidates) if step[0] == at), None) for trace in sound.traces]
        done = run(llama, PROMPTS, mark, Own(bad, at), **settings)
        for row, place in enumerate(places):
            if place is None:
                assert done.tokens[row] == sound.tokens[row] and not done.errors[row]
            else:
                assert (done.tokens[row], done.errors[row]) == ([], sentence(bad, place + 1))


@pytest.mark.parametrize("kernels", [None, ops.references()])
def test_a_captured_step_reads_nothing_back(llama: Any, kernels: Any) -> None:
    decoder, step = started(llama, PROMPTS, caw.KGW(key=3), Own(), kernels=kernels)
    seen_by_fakes(decoder, step)


class Never(Own):
    def strength(self, signals: Signals) -> torch.Tensor:
        return torch.full_like(signals.current.logsumexp, math.nan)


class Wide(Own):
    def strength(self, signals: Signals) -> torch.Tensor:
        return super().strength(signals)[:, None]


class Squared(caw.CapacityPolicy):
    """Steps compute a CapacityPolicy's strength by a kernel: another one was passed over without a word."""

    def strength(self, signals: Signals) -> torch.Tensor:
        return super().strength(signals) ** 2


MOST = "max_strength of policy Own must be a number in"
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (Never(), ValueError, r"policy Never must give strengths in \[0, 2\], .* got nan at new token 1;"),
    (Wide(), ValueError, r"policy Wide must give a float tensor of shape \[1\]"),
    (Squared(policy_of(build("llama")).network), TypeError,
     "a policy that reads capacities must be a CapacityPolicy .* Squared has another"),
    *((Own(most=most), TypeError if most is None else ValueError, MOST) for most in (math.nan, -1.0, 1e3, None)),
]  # fmt: skip


def test_generate_raises_it() -> None:
    reader = tiny_tokenizer()
    model = tiny_model(len(reader))
    for policy, kind, message in REFUSED:
        with pytest.raises(kind, match=message):
            caw.generate(model, reader, [[5, 6, 7]], watermark=caw.KGW(key=3), policy=policy)
