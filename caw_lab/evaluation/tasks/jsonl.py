"""Your own questions: a JSONL file with a prompt and an answer on each line."""

from dataclasses import dataclass
from typing import Any, ClassVar

from caw.io.jsonl import text_field
from caw_lab.evaluation.tasks.base import Graded, Question
from caw_lab.evaluation.tasks.grading import GRADES
from caw_lab.evaluation.tasks.prompts import PromptsTask


@dataclass(frozen=True)
class JsonlTask(PromptsTask):
    """Prompts are used unchanged, without examples.

    Args:
        path: the file. A line's id is its field "id", or else its number.
        prompt_field, answer_field: fields of the prompt and the right answer (text or a number).
        reference_field: field of a full human answer, a negative for the detector; None = none.
        grade_by: "number", "letter", "exact" or "contains" (`grade` in a config). stops: strings that end an answer.

    Raises ValueError without a path and for another `grade_by`.
    """

    graded: ClassVar[bool] = True
    kind: ClassVar[str] = "jsonl"
    answer_field: str = "answer"
    reference_field: str | None = None
    grade_by: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grade_by not in GRADES:
            known = ", ".join(GRADES)
            raise ValueError(f"tasks.{self.name}.grade must be one of {known}, got {self.grade_by!r}; choose one")

    def grade(self, text: str, gold: str) -> Graded:
        return GRADES[self.grade_by](text, gold)

    def of_line(self, question: str, value: dict[str, Any]) -> Question:
        gold = value.get(self.answer_field)
        if isinstance(gold, (int, float)) and not isinstance(gold, bool):
            value[self.answer_field] = str(gold)
        reference = text_field(value, self.reference_field) if self.reference_field else ""
        prompt, answer = text_field(value, self.prompt_field), text_field(value, self.answer_field)
        return Question(question, prompt, answer, reference)
