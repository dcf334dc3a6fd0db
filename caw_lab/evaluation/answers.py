"""Graded answers and scores without the texts, from which results are computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.metrics.style import Style, style_of
from caw_lab.evaluation.store import Generation, Score

LONGEST_ANSWER = 32  # characters; a longer one may be a whole text


@dataclass(frozen=True)
class Answer:
    """One graded answer. The fields are those of `Generation`, but `tokens` is a count.

    answer: also None if longer than `LONGEST_ANSWER`. style: of a text without a right answer, otherwise None.
    """

    id: str
    answer: str | None
    extraction: str | None
    correct: bool | None
    finish_reason: str
    tokens: int
    marked: float
    changed: float
    attempts: int = 1
    found: bool | None = None
    style: Style | None = None

    def __post_init__(self) -> None:
        if isinstance(self.style, Mapping):  # of a line
            object.__setattr__(self, "style", Style(**{**self.style, "distinct": tuple(self.style["distinct"])}))

    @classmethod
    def of(cls, made: Generation) -> Answer:
        short = made.answer if made.answer is None or len(made.answer) <= LONGEST_ANSWER else None
        return cls(
            made.id, short, made.extraction, made.correct, made.finish_reason, len(made.tokens), made.marked,
            made.changed, made.attempts, made.found, style_of(made.text) if made.correct is None else None,
        )  # fmt: skip

    @property
    def line(self) -> dict[str, Any]:
        """Return the fields for a published line; the last three only if they have a value."""
        usual = {"attempts": 1, "found": None, "style": None}
        return {name: value for name, value in asdict(self).items() if name not in usual or value != usual[name]}

    @property
    def unparsed(self) -> bool:
        """Whether an answer was expected and could not be read; a long answer was read, so it has an `extraction`."""
        return self.correct is not None and self.answer is None and self.extraction is None


@dataclass(frozen=True)
class CellAnswers:
    """A cell's manifest, the ids of the runs that generated its texts (sorted), and its answers in id order."""

    manifest: Mapping[str, Any]
    runs: tuple[str, ...]
    answers: Sequence[Answer]


class Source(Protocol):
    """A source of results: a run's folder (`Scorer`) or a published copy (`Published`)."""

    def answers(self, plan: CellPlan) -> CellAnswers:
        """Return the answers of one cell; an empty list if it has no texts."""
        ...

    def every_score(self) -> list[Score]:
        """Return the scores of the texts as graded now, see `current_scores`."""
        ...

    def command(self, run: str) -> str:
        """Return the command line of a run; "" for an unknown run."""
        ...


def current_scores(scores: Iterable[Score]) -> list[Score]:
    """Return the scores but those of attacks on texts that have changed; `caw evaluate attack` recomputes these."""
    every = list(scores)
    place = lambda s: (s.cell, s.watermark, s.key, s.source, s.id)  # noqa: E731
    texts = {place(score): score.of for score in every if score.attack == "none"}
    return [score for score in every if texts.get(place(score), score.of) == score.of]
