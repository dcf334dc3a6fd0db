"""The strength of each attempt at a text, and when the text is done.

The decoder receives the first attempts of all texts; each retry takes a row as soon as its predecessor has been tested,
in the same batch as everything else. So attempts run as batches, and texts are returned as they finish.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caw.decoding.decoder import Decoder
from caw.decoding.plan import Plan
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.stopping import StopStrings
from caw.detectable.efforts import Effort
from caw.detectable.receipts import Receipt, write_receipt
from caw.detectable.selection import Candidate, Selection, any_found
from caw.detectable.trial import Trial
from caw.policies import Policy
from caw.policies.base import MAX_STRENGTH
from caw.settings import Settings

SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that seeds of the attempts at a text differ; 2^64 over the golden ratio

Add = Callable[..., int]  # `Waiting.add`


def seed_of(seed: int, number: int) -> int:
    """Return the seed of an attempt at a text, in [0, 2^64); the first one keeps the caller's."""
    return (seed + number * SEED_STEP) % (1 << 64)


class UndetectedError(ValueError):
    """No attempt made a text detectable that had to be. index: of its prompt. receipt: the result of its test."""

    def __init__(self, index: int, receipt: Receipt) -> None:
        self.index, self.receipt = index, receipt
        super().__init__(self.of(f"text {index}"))

    def __reduce__(self) -> "tuple[type[UndetectedError], tuple[int, Receipt]]":
        return type(self), (self.index, self.receipt)  # pickle would call it with its message alone

    def of(self, text: str) -> str:
        """Return the message, with the owner's name of the text."""
        count, what, remedy = self.receipt.attempts, "attempt", "allow more tokens or attempts"
        if self.receipt.rollouts is not None:
            count, what = self.receipt.rollouts, "rollout"
            remedy = "allow more tokens or rollouts, let the guard keep less"
        return (
            f"every text must be detectable at {self.receipt.level:g}, {text} is not after {count} {what}"
            f"{'s' * (count != 1)} ({self.receipt.reason}); {remedy}, or use on_undetected='keep'"
        )


# a finished text: the place of its request, the sequence to return, and the result of its test (None = no test)
Finished = tuple[int, ActiveSequence, Receipt | None]


class Attempts(ABC):
    """The requests for a decoder, and the handling of finished sequences.

    first: the initial requests; the decoder numbers them, and those added later, from 0. policy: that of the call,
    adjusted for the test. prompts: cache of prompts, None = none. owners: of each request so far, what it belongs to.
    """

    owners: Sequence[Any]
    first: Sequence[Request]
    policy: Policy
    prompts: PromptCache | None

    @property
    def possible(self) -> Sequence[Request]:
        """All requests that there may be."""
        return self.first

    @property
    def together(self) -> int:
        """The most texts at once that are any use."""
        return len(self.first)

    def decoder(self, model: Any, plan: Plan, report: Callable[[str], None] | None) -> Decoder:
        return Decoder(model, plan, report)

    def sends(self, send: Callable[[Sequence[int]], None]) -> bool:
        """Give `send` the tokens of the one text that may be shown, as soon as they may; False = all may, at once."""
        return False

    def ended(self, sequence: ActiveSequence) -> bool:
        """Tell after each token whether a sequence has served its purpose."""
        return False

    @abstractmethod
    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        """Handle a finished sequence; return None if its text is not done. `add` requests one more from the decoder."""


class OneAttempt(Attempts):
    """Generate every text once and return it untested."""

    def __init__(self, requests: Sequence[Request], policy: Policy, prompts: PromptCache | None) -> None:
        self.first, self.policy, self.prompts, self.owners = requests, policy, prompts, requests

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished:
        return sequence.index, sequence, None


@dataclass
class _TextAttempts:
    """A text in progress. started: attempts; candidates: the finished ones; failed: one without tokens."""

    place: int
    request: Request
    started: int = 0
    candidates: list[Candidate] = field(default_factory=list)
    failed: list[ActiveSequence] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.started - len(self.candidates) - len(self.failed)


class DetectableTexts(Attempts):
    """Test every text, and retry with a stronger mark until it is detected.

    Args:
        trial: the test. efforts: strength and margin of each attempt at a text.
        selection: number of candidates, and which one to return. settings, policy: of the call.
        prompts: cache of prompts; forget: whether to drop prompts of finished texts. greatest: factor of the policy's
            strength that a text may have.
    """

    def __init__(
        self, requests: Sequence[Request], trial: Trial, efforts: Sequence[Effort], selection: Selection,
        stops: StopStrings, settings: Settings, policy: Policy, prompts: PromptCache | None = None, *,
        forget: bool = False, greatest: float = MAX_STRENGTH,
    ) -> None:  # fmt: skip
        self.trial, self.efforts, self.selection, self.stops = trial, efforts, selection, stops
        self.settings, self.policy, self.greatest = settings, policy, greatest
        self.prompts, self.forget = prompts, forget
        self.texts = [_TextAttempts(place, request) for place, request in enumerate(requests)]
        self.owners: list[_TextAttempts] = []
        self.first = [self._next(text) for text in self.texts for _ in range(selection.together)]

    @property
    def possible(self) -> Sequence[Request]:
        return [self._attempt(text, number) for text in self.texts for number in range(len(self.efforts))]

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
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

    def _next(self, text: _TextAttempts) -> Request:
        self.owners.append(text)
        text.started += 1
        return self._attempt(text, text.started - 1)

    def _attempt(self, text: _TextAttempts, number: int) -> Request:
        """Return an attempt at a text by its number; each samples otherwise, and the first uses the caller's seed."""
        row, seed = text.request.row, text.request.row.seed
        if row.do_sample:
            seed = seed_of(row.known_seed, number)
        effort = self.efforts[number]
        factor, margin = min(row.strength_factor * effort.factor, self.greatest), row.margin + effort.margin
        return dataclasses.replace(
            text.request, row=dataclasses.replace(row, seed=seed, strength_factor=factor, margin=margin)
        )

    def _test(self, text: _TextAttempts, sequence: ActiveSequence) -> None:
        shown, request = self.stops.shown(sequence.visible), sequence.request
        verdict = self.trial(shown, request.row.key)
        text.candidates.append(Candidate(shown, request.row.strength_factor, verdict, request, sequence))
        text.candidates.sort(key=lambda candidate: candidate.strength_factor)

    def _finish(self, text: _TextAttempts) -> Finished:
        if not text.candidates:
            return text.place, text.failed[0], None
        detected = any_found(text.candidates)
        if detected:
            chosen = self.selection.choose(text.candidates)
        else:
            chosen = min(text.candidates, key=lambda candidate: candidate.p_value)
        sequence, receipt = chosen.sequence, write_receipt(chosen, text.started, self.trial, self.policy)
        if not detected and self.settings.on_undetected == "drop":
            sequence.withhold()
        return text.place, sequence, receipt
