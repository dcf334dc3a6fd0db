"""Selection of the candidate to return."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caw.decoding.request import ActiveSequence, Request
from caw.detectable.trial import Verdict
from caw.io.show import shown
from caw.models.teacher import log_probs


@dataclass(frozen=True, eq=False)
class Candidate:
    """A finished attempt. text: as returned. strength_factor: of its policy's. request, sequence: of the decoder."""

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
    """Return the detected candidate with the weakest mark."""
    return next(candidate for candidate in candidates if candidate.found)


@dataclass(frozen=True)
class Likeliest:
    """Select the detected candidate that the unmarked model would most likely write: by log-likelihood per token,
    including the end.

    A sum over tokens would prefer texts that end early. The shared prompt of the candidates is read once.
    """

    model: Any = field(repr=False)

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        found = [candidate for candidate in candidates if candidate.found]
        if len(found) == 1:
            return found[0]
        texts = [([*one.request.ids, *one.tokens], len(one.request.ids)) for one in found]
        means = [float(each.mean()) for each in log_probs(self.model, texts, share=True)]
        return found[means.index(max(means))]


@dataclass(frozen=True)
class Consensus:
    """For `select=`: the weakest detected candidate with the most frequent answer among all candidates.

    read: extracts the answer of a text; None = no answer and no vote.
    """

    read: Callable[[str], Hashable]

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        answers = [self.read(candidate.text) for candidate in candidates]
        for answer in answers:
            if not isinstance(answer, Hashable):
                raise TypeError(f"read must give answers that can be counted, got {shown(answer)}; give e.g. a str")
        votes = Counter(answer for answer in answers if answer is not None)
        found = [(candidate, votes[answer]) for candidate, answer in zip(candidates, answers, strict=True)]
        return max((pair for pair in found if pair[0].found), key=lambda pair: pair[1])[0]


@dataclass(frozen=True)
class Agreement:
    """For `select=`: the weakest detected candidate with the answer of the unmarked text, which is the first attempt.

    Candidates are generated one after another until one agrees or attempts run out; then `Consensus` among all decides,
    including the unmarked text. An unmarked text without an answer agrees with every candidate; if it is detected by
    chance, it is returned as it is.

    read: extracts the answer of a text; None = no answer.
    """

    read: Callable[[str], Hashable]

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate:
        agreed = self._agreed(candidates)
        return agreed[0] if agreed else Consensus(self.read)(candidates)

    def settled(self, candidates: Sequence[Candidate]) -> bool:
        """Return whether a detected candidate agrees, so that no more are needed."""
        return bool(self._agreed(candidates))

    def _agreed(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        wanted = self.read(candidates[0].text) if candidates else None
        return [one for one in candidates if one.found and (wanted is None or self.read(one.text) == wanted)]


def any_found(candidates: Sequence[Candidate]) -> bool:
    return any(candidate.found for candidate in candidates)


@dataclass(frozen=True)
class Selection:
    """The meaning of `select` and `best_of`.

    choose: returns the candidate to return. together: number of candidates started together. settled: whether the
    existing ones are enough, weakest first. unmarked: whether the first attempt is the unmarked text.
    """

    choose: Choice
    together: int = 1
    settled: Callable[[Sequence[Candidate]], bool] = any_found
    unmarked: bool = False


def selection_of(select: str | Choice, best_of: int, model: Any) -> Selection:
    """Build the selection of a call; model: judges likelihood."""
    if isinstance(select, Agreement):
        return Selection(select, settled=select.settled, unmarked=True)
    if select == "weakest":  # it is found first by itself: those that are stronger need not be made
        return Selection(weakest)
    choose = Likeliest(model) if isinstance(select, str) else lambda candidates: _chosen(select, candidates)
    return Selection(choose, together=best_of)


def _chosen(select: Choice, candidates: Sequence[Candidate]) -> Candidate:
    """Return the choice of the caller's own function."""
    chosen = select(candidates)
    if not any(chosen is candidate and candidate.found for candidate in candidates):
        raise ValueError(f"select must return one of the detected candidates, got {shown(chosen)}; see its docs")
    return chosen
