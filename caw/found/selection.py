"""Which of the candidates of a text leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caw.decoding.request import Request
from caw.decoding.sequence import ActiveSequence
from caw.found.trial import Verdict
from caw.io.show import shown
from caw.models.teacher import log_probs


@dataclass(frozen=True, eq=False)
class Candidate:
    """One finished attempt at a text.

    text: as it would leave, a stop string cut off. strength_factor: of its policy's strength.
    verdict: of its test. request, sequence: what was asked of the decoder, and what came.
    """

    text: str
    strength_factor: float
    verdict: Verdict
    request: Request = field(repr=False)
    sequence: ActiveSequence = field(repr=False)

    @property
    def found(self) -> bool:
        return self.verdict.found

    @property
    def p_value(self) -> float:
        return self.verdict.result.p_value

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens


# takes all candidates of a text, the weakest first and at least one of them found; returns a found one
Choice = Callable[[Sequence[Candidate]], Candidate]


def weakest(candidates: Sequence[Candidate]) -> Candidate:
    """The least strongly marked one that is found."""
    return next(candidate for candidate in candidates if candidate.found)


@dataclass(frozen=True)
class Likeliest:
    """The found one that the model, unmarked, would most likely write: by log-likelihood a token, an end included.

    A sum over tokens would prefer texts that end early.
    """

    model: Any = field(repr=False)

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        found = [candidate for candidate in candidates if candidate.found]
        if len(found) == 1:
            return found[0]
        texts = [([*one.request.ids, *one.tokens], len(one.request.ids)) for one in found]
        means = [float(each.mean()) for each in log_probs(self.model, texts)]
        return found[means.index(max(means))]


@dataclass(frozen=True)
class Consensus:
    """For `select=`: of the found ones, the weakest with the answer that most candidates gave, found or not.

    read: the answer in a text, None where there is none, which has no vote.
    """

    read: Callable[[str], Hashable]

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        answers = [self.read(candidate.text) for candidate in candidates]
        votes = Counter(answer for answer in answers if answer is not None)
        found = [(candidate, votes[answer]) for candidate, answer in zip(candidates, answers, strict=True)]
        return max((pair for pair in found if pair[0].found), key=lambda pair: pair[1])[0]


def choice_of(select: str | Choice, model: Any) -> Choice:
    """The choice that `select` asks for."""
    if not isinstance(select, str):
        return lambda candidates: _chosen(select, candidates)
    return weakest if select == "weakest" else Likeliest(model)


def _chosen(select: Choice, candidates: Sequence[Candidate]) -> Candidate:
    """What the caller's own function chooses."""
    chosen = select(candidates)
    if not any(chosen is candidate and candidate.found for candidate in candidates):
        raise ValueError(f"select must return one of the candidates that are found, got {shown(chosen)}; see found")
    return chosen
