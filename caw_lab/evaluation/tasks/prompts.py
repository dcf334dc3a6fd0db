"""Texts without a right answer: a JSONL file with a prompt on each line."""

from dataclasses import dataclass
from typing import Any, ClassVar

from caw.io.inputs import open_input
from caw.io.jsonl import BadLine, read_rows, text_field
from caw_lab.evaluation.tasks.base import Graded, Question, Task


@dataclass(frozen=True)
class PromptsTask(Task):
    """Prompts are used unchanged, and the whole text is tested; it ends by itself or at the token limit.

    Args:
        path: the file. A line's id is its field "id", or else its number.
        prompt_field: field of the prompt. stops: strings that end a text.

    Raises ValueError without a path.
    """

    graded: ClassVar[bool] = False
    kind: ClassVar[str] = "prompts"
    path: str = ""
    prompt_field: str = "prompt"
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.path:
            raise ValueError(f"task {self.name} of kind {self.kind} needs a `path`, got none; name the file")

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(self.stops)

    def load(self) -> list[Question]:
        with open_input(self.path) as lines:
            return self.usable(read_rows(lines, field=self.prompt_field), self.path, self._question)

    def grade(self, text: str, gold: str) -> Graded:
        return Graded(None, None, None, text)

    def _question(self, index: int, row: Any) -> Question:
        if isinstance(row, BadLine):
            raise ValueError(row.message)
        return self.of_line(f"{self.name}/{row.id}", dict(row.value))

    def of_line(self, question: str, value: dict[str, Any]) -> Question:
        """Return the question with this id in a line. ValueError if a field is missing."""
        return Question(question, text_field(value, self.prompt_field), "")
