"""Your own questions: a JSONL file with a prompt and an answer on each line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caw.evaluation.tasks.base import Graded, Question, Task
from caw.evaluation.tasks.grading import GRADES
from caw.io.inputs import open_input
from caw.io.jsonl import BadLine, read_rows, text_field


@dataclass(frozen=True)
class JsonlTask(Task):
    """Prompts are used as they are, without examples.

    Args:
        path: the file. A line's id is its field "id", or else its number.
        prompt_field, answer_field: fields of the prompt and the right answer (text or a number).
        reference_field: field of a person's whole answer, a negative for the detector; None = there is none.
        grade_by: "number", "letter", "exact" or "contains" (`grade` in a config). stops: strings that end an answer.

    Raises ValueError without a path and for another `grade_by`.
    """

    path: str = ""
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    reference_field: str | None = None
    grade_by: str = "exact"
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError(f"task {self.name} of kind jsonl needs a `path`, got none; name the file")
        if self.grade_by not in GRADES:
            known = ", ".join(GRADES)
            raise ValueError(f"tasks.{self.name}.grade must be one of {known}, got {self.grade_by!r}; choose one")

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.stops)

    def load(self) -> list[Question]:
        with open_input(self.path) as lines:
            return self.usable(read_rows(lines), self.path, self._question)

    def grade(self, text: str, gold: str) -> Graded:
        return GRADES[self.grade_by](text, gold)

    def _question(self, index: int, row: Any) -> Question:
        if isinstance(row, BadLine):
            raise ValueError(row.message)
        value = dict(row.value)
        gold = value.get(self.answer_field)
        if isinstance(gold, (int, float)) and not isinstance(gold, bool):
            value[self.answer_field] = str(gold)
        reference = text_field(value, self.reference_field) if self.reference_field else ""
        prompt, answer = text_field(value, self.prompt_field), text_field(value, self.answer_field)
        return Question(f"{self.name}/{row.id}", prompt, answer, reference)
