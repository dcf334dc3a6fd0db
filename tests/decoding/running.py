"""Run the decoder on tiny models and look inside its steps."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from decoding.brute_force import BruteForce, agree

from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.trace import SequenceTrace
from caw.models.facts import ModelFacts
from caw.policies import FixedStrength
from caw.policies.mark import Mark
from caw.settings import Settings


@dataclass
class Run:
    """What came out, per prompt, and per step what happened: (active, emitted, counts, forwarded)."""

    tokens: list[list[int]]
    reasons: list[str]
    traces: list[SequenceTrace]
    errors: list[str]
    steps: list[tuple[list[bool], list[bool], list[int], int]] = field(default_factory=list)

    @property
    def overflows(self) -> int:
        return sum(a and not e for active, emitted, _, _ in self.steps for a, e in zip(active, emitted, strict=True))

    @property
    def mixed_steps(self) -> int:
        found = 0
        for active, _, counts, forwarded in self.steps:
            used = [c for a, c in zip(active, counts, strict=True) if a]
            found += forwarded > 1 and min(used) == 1 < max(used)
        return found

    @property
    def changed(self) -> int:
        return sum(c > 0 for trace in self.traces for c in trace.choice)


def make_decoder(
    model: Any,
    watermark: Any = None,
    policy: Any = None,
    batch: int = 1,
    capacity: int = 40,
    *,
    eos_token_ids: tuple[int, ...] = (),
    fixed: bool | None = None,
    kernels: Any = None,
    prompt_cache: Any = None,
    processors: Any = None,
    limits: RowLimits | None = None,
    race: Mark | None = None,
    **settings: Any,
) -> Decoder:
    """A decoder whose texts end with these ids alone; marks decide about ends unless told otherwise."""
    facts = ModelFacts.of(model).ending_with(eos_token_ids)
    chosen = Settings(**{"mark_eos": True, "speculate": None, **settings})
    limits = dataclasses.replace(limits or RowLimits.of([RowSettings.of(chosen)], facts.ends), length=capacity)
    plan = make_plan(
        facts, watermark, policy or FixedStrength(1.0), chosen, limits, batch, kernels=kernels,
        captured=fixed, prompt_cache=prompt_cache, processors=processors, race=race,
    )  # fmt: skip
    return Decoder(model, plan)


def run(
    model: Any,
    prompts: list[list[int]],
    watermark: Any = None,
    policy: Any = None,
    *,
    max_new_tokens: int = 12,
    batch: int | None = None,
    budgets: list[int] | None = None,
    fixed: bool | None = None,
    kernels: Any = None,
    on_token: Any = None,
    watched: bool = True,
    prompt_cache: Any = None,
    race: Mark | None = None,
    rows: list[RowSettings] | None = None,
    marks: list[Mark | None] | None = None,
    **settings: Any,
) -> Run:
    """Decode prompts, `batch` at once (None = all); fixed: as a graph could. rows, marks: of each. watched: steps."""
    decoder = make_decoder(
        model, watermark, policy, batch or len(prompts), max(map(len, prompts)) + max_new_tokens, fixed=fixed,
        kernels=kernels, prompt_cache=prompt_cache, max_new_tokens=max_new_tokens, race=race,
        limits=RowLimits.of(rows, settings.get("eos_token_ids", ())) if rows else None, **settings,
    )  # fmt: skip
    own = rows or [RowSettings.of(decoder.plan.settings)] * len(prompts)
    requests = requests_for(prompts, budgets or [row.max_new_tokens for row in own], own)
    if marks is not None:
        requests = [dataclasses.replace(one, mark=mark) for one, mark in zip(requests, marks, strict=True)]
    result = Run([[]] * len(prompts), [""] * len(prompts), [SequenceTrace()] * len(prompts), [""] * len(prompts))
    original = decoder.step.decode

    def step(state: Any, cache: Any) -> Any:
        active = decoder.choosing.texts.active.tolist()
        done = original(state, cache)
        result.steps.append((active, done.emitted.tolist(), done.counts.tolist(), done.forwarded))
        return done

    if watched:
        decoder.step.decode = step  # type: ignore[method-assign]
    for sequence in decoder.run(requests, on_token):
        result.tokens[sequence.index] = sequence.tokens
        result.reasons[sequence.index] = sequence.finish_reason
        result.traces[sequence.index] = sequence.trace
        result.errors[sequence.index] = sequence.error
    assert not torch.is_inference_mode_enabled()
    return result


def same_texts(got: Run, wanted: Run, references: list[BruteForce], prompts: list[list[int]]) -> None:
    """Equal, ends too; or another token where the decision was within its margin: a batch that reads back carries other
    numbers of rows, for which a GPU's products round otherwise. references: how each text is made."""
    for i, (ids, reference) in enumerate(zip(prompts, references, strict=True)):
        if not agree(got.tokens[i], wanted.tokens[i], reference, ids, f"captured {i}"):
            assert got.reasons[i] == wanted.reasons[i]
