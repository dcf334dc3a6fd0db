"""What results are made of: grades and scores, without the texts they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from caw.evaluation.config import CellPlan
from caw.evaluation.store import Generation, Score

LONGEST_ANSWER = 32  # characters; a longer one may be a whole text


@dataclass(frozen=True)
class Answer:
    """One graded answer; the names mean what they mean in `Generation`, but tokens is their number.

    answer: None also where it is longer than a number or a letter.
    """

    id: str
    answer: str | None
    extraction: str | None
    correct: bool
    finish_reason: str
    tokens: int
    marked: float
    changed: float

    @classmethod
    def of(cls, made: Generation) -> Answer:
        short = made.answer if made.answer is None or len(made.answer) <= LONGEST_ANSWER else None
        return cls(
            made.id, short, made.extraction, made.correct, made.finish_reason, len(made.tokens), made.marked,
            made.changed,
        )  # fmt: skip

    @property
    def unparsed(self) -> bool:
        """Whether no answer could be read: a long one was, and says how."""
        return self.answer is None and self.extraction is None


@dataclass(frozen=True)
class CellAnswers:
    """A cell's manifest, the ids of the runs that made its texts, sorted, and its answers by id."""

    manifest: Mapping[str, Any]
    runs: tuple[str, ...]
    answers: Sequence[Answer]


class Source(Protocol):
    """A run's folder (`Scorer`) or a published copy (`Published`)."""

    def answers(self, plan: CellPlan) -> CellAnswers:
        """Of one cell; none of them where it has no texts."""
        ...

    def every_score(self) -> list[Score]:
        """Of texts as they are read now, see `current_scores`."""
        ...

    def command(self, run: str) -> str:
        """The command line of a run; "" for an unknown one."""
        ...


def current_scores(scores: Iterable[Score]) -> list[Score]:
    """Without scores of attacks on another text than the one that is scored now: they are made by `attack` again."""
    every = list(scores)
    place = lambda s: (s.cell, s.watermark, s.key, s.source, s.id)  # noqa: E731
    texts = {place(score): score.of for score in every if score.attack == "none"}
    return [score for score in every if texts.get(place(score), score.of) == score.of]
