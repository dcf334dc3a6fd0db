"""Which text is made how strongly, and when it is done.

The decoder is handed the first attempts of all texts; each later one takes a row as soon as its predecessor was tested,
beside whatever else is decoded then. So attempts run as batches, and texts leave as they are done.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.workload import Workload
from caw.detection.detector import Detector
from caw.found.early import refuse_idle
from caw.found.efforts import Effort, efforts, steered
from caw.found.receipts import Receipt, write_receipt
from caw.found.selection import Candidate, Selection, any_found, selection_of
from caw.found.trial import Trial, make_trial
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Watermark

SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that seeds of the attempts at a text differ; 2^64 over the golden ratio

Add = Callable[..., int]  # `Waiting.add`


class UnfoundError(ValueError):
    """No attempt made a text findable that had to be found. index: its prompt's place. receipt: what its test said."""

    def __init__(self, index: int, receipt: Receipt) -> None:
        self.index, self.receipt = index, receipt
        super().__init__(self.of(f"text {index}"))

    def __reduce__(self) -> tuple[type[UnfoundError], tuple[int, Receipt]]:
        return type(self), (self.index, self.receipt)  # pickle would call it with its message alone

    def of(self, text: str) -> str:
        """The sentence, about a text that its owner calls so."""
        times = f"{self.receipt.attempts} attempt{'s' * (self.receipt.attempts > 1)}"
        return (
            f"expected every text to be found at {self.receipt.level:g}, {text} is not after {times} "
            f"({self.receipt.reason}); allow more tokens or attempts, or on_unfound='keep'"
        )


@dataclass(frozen=True)
class Finished:
    """A text that is done: the place of its request, the sequence that leaves, what its test said (None = no test).

    lost: whether it had to be found and is not.
    """

    place: int
    sequence: ActiveSequence
    receipt: Receipt | None = None
    lost: bool = False


class Attempts(ABC):
    """What a decoder is asked for, and what becomes of the sequences that it gives back.

    first: the requests to begin with; the decoder numbers them, and those added later, from 0.
    policy: that of the call, or what testing makes of it. prompts: what is kept of prompts, None = nothing.
    """

    first: Sequence[Request]
    policy: Policy
    prompts: PromptCache | None

    @abstractmethod
    def workload(self, most: int, model_ends: Sequence[int]) -> Workload:
        """Of everything that may be asked of the decoder, up to `most` texts at once."""

    @abstractmethod
    def take(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        """A finished sequence; None where its text is not done. `add` asks the decoder for one more."""


class OneAttempt(Attempts):
    """Every text is made once and leaves untested."""

    def __init__(self, requests: Sequence[Request], policy: Policy, prompts: PromptCache | None) -> None:
        self.first, self.policy, self.prompts = requests, policy, prompts

    def workload(self, most: int, model_ends: Sequence[int]) -> Workload:
        return Workload.of(self.first, most, model_ends)

    def take(self, sequence: ActiveSequence, add: Add) -> Finished:
        return Finished(sequence.index, sequence)


@dataclass
class _Text:
    """A text in the making. started: attempts; candidates: those that are finished; failed: one without tokens."""

    place: int
    request: Request
    started: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    failed: list[ActiveSequence] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.started - len(self.candidates) - len(self.failed)


class FoundTexts(Attempts):
    """Every text is tested, and made again more strongly until it is found.

    Args:
        trial: the test. efforts: of each attempt at a text.
        selection: how many candidates are made, and which one leaves. settings, policy: of the call.
        prompts: what is kept of prompts; forget: whether those of texts that are done may go.
    """

    def __init__(
        self, requests: Sequence[Request], trial: Trial, efforts: Sequence[Effort], selection: Selection,
        stops: StopStrings, settings: Settings, policy: Policy, prompts: PromptCache | None = None, *,
        forget: bool = False,
    ) -> None:  # fmt: skip
        self.trial, self.efforts, self.selection, self.stops = trial, efforts, selection, stops
        self.settings, self.policy = settings, policy
        self.texts = [_Text(place, request) for place, request in enumerate(requests)]
        self.owners: list[_Text] = []
        self.first = [self._next(text) for text in self.texts for _ in range(selection.together)]
        self.prompts, self.forget = prompts, forget

    def workload(self, most: int, model_ends: Sequence[int]) -> Workload:
        rows = [self._attempt(text, number) for text in self.texts for number in range(len(self.efforts))]
        return dataclasses.replace(Workload.of(rows, most, model_ends), batch=min(most, len(self.first)))

    def take(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        text = self.owners[sequence.index]
        if sequence.error:
            text.failed.append(sequence)
        else:
            self._test(text, sequence)
        if text.under_way:
            return None
        if not self.selection.settled(text.candidates) and not text.failed and text.started < len(self.efforts):
            add(self._next(text), ahead=True)  # while its prompt is still kept
            return None
        if self.forget and self.prompts is not None:
            self.prompts.forget(text.request.ids)
        return self._finish(text)

    def _next(self, text: _Text) -> Request:
        """The next attempt at a text."""
        self.owners.append(text)
        text.started += 1
        return self._attempt(text, text.started - 1)

    def _attempt(self, text: _Text, number: int) -> Request:
        """An attempt at a text by its number; the draws of samples differ, those of the first are the caller's."""
        row = text.request.row
        seed = (row.seed + number * SEED_STEP) % (1 << 64) if row.do_sample else row.seed
        effort = self.efforts[number]
        factor, margin = row.strength_factor * effort.factor, row.margin + effort.margin
        return dataclasses.replace(
            text.request, row=dataclasses.replace(row, seed=seed, strength_factor=factor, margin=margin)
        )

    def _test(self, text: _Text, sequence: ActiveSequence) -> None:
        shown, request = self.stops.shown(sequence.visible), sequence.request
        verdict = self.trial(shown, request.row.key)
        text.candidates.append(Candidate(shown, request.row.strength_factor, verdict, request, sequence))
        text.candidates.sort(key=lambda candidate: candidate.strength_factor)

    def _finish(self, text: _Text) -> Finished:
        if not text.candidates:
            return Finished(text.place, text.failed[0])
        found = any_found(text.candidates)
        if found:
            chosen = self.selection.choose(text.candidates)
        else:
            chosen = min(text.candidates, key=lambda candidate: candidate.p_value)
        detector, sequence = self.trial.under(text.request.row.key), chosen.sequence
        receipt = write_receipt(chosen, text.started, detector, self.policy, self.trial.edits)
        if not found and self.settings.on_unfound == "drop":
            sequence.withhold()
        return Finished(text.place, sequence, receipt, lost=not found and self.settings.on_unfound == "raise")


def plan_attempts(
    requests: Sequence[Request],
    facts: ModelFacts,
    watermark: Watermark | None,
    policy: Policy,
    settings: Settings,
    *,
    model: Any,
    stops: StopStrings,
    detector: Detector | None,
    kept: PromptCache | None,
) -> Attempts:
    """What the settings of a call ask for. Raises TypeError or ValueError where it cannot be had."""
    if settings.found_at is None:
        refuse_idle(settings, *(["detector"] if detector is not None else []))
        return OneAttempt(requests, policy, kept)
    known = None if watermark is None else watermark.with_vocabulary(facts.vocab_size)
    most = max((min(request.budget, request.row.max_new_tokens) for request in requests), default=1)
    trial = make_trial(settings, detector, known, stops.tokenizer, most)
    assert known is not None
    policy = steered(policy, trial.detector)
    selection = selection_of(settings.select, settings.best_of, model)
    planned = efforts(known, policy, settings, unmarked=selection.unmarked)
    # processes that split a model keep different prompts; one attempt reads each prompt once anyway
    own = kept is None and len(planned) > 1 and facts.mesh is None
    return FoundTexts(
        requests, trial, planned, selection, stops, settings, policy,
        PromptCache() if own else kept, forget=own,
    )  # fmt: skip
