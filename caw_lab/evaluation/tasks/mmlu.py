"""MMLU (Hendrycks et al. 2020, arXiv 2009.03300), one subject: the answer is the letter of one of four choices.

Prompts begin with Flan's chain-of-thought examples in chain-of-thought-hub's layout.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caw_lab.evaluation.tasks.base import Graded, Question, Task
from caw_lab.evaluation.tasks.grading import grade_letter

HUB_ID = "cais/mmlu"
HUB_SPLITS = {"val": "validation"}
LETTERS = "ABCD"
THINK = "A: Let's think step by step."


@dataclass(frozen=True)
class MMLU(Task):
    """data: a folder with mmlu_SUBJECT/SUBJECT_SPLIT.csv (question, four choices, letter; no header) and
    mmlu_SUBJECT/mmlu_cot_prompt.json ({SUBJECT: text}). From a hub, name a `prompt` file of that form.

    subject: e.g. sociology; if it is not given, it comes from the task's name ("mmlu-sociology").
    """

    subject: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.subject:
            object.__setattr__(self, "subject", self.name.removeprefix("mmlu-").replace("-", "_"))

    @property
    def stop(self) -> tuple[str, ...]:
        return ("Q:",)

    def load(self) -> list[Question]:
        folder = f"mmlu_{self.subject}"
        path = self.file(folder, f"{self.subject}_{self.split}.csv")
        if path:
            # newline="": a quoted choice may hold line breaks
            with open(path, newline="", encoding="utf-8") as lines:
                rows = list(csv.reader(lines))
        else:
            split = HUB_SPLITS.get(self.split, self.split)
            rows = [_hub_row(row) for row in self.hub_rows(HUB_ID, self.subject, split)]
        examples = self._examples(folder)
        where = str(path) if path else "the data set"
        return self.usable(rows, where, lambda index, row: self._question(index, row, examples))

    def grade(self, text: str, gold: str) -> Graded:
        return grade_letter(text, gold)

    def _question(self, index: int, row: Sequence[str], examples: str) -> Question:
        if len(row) != 6 or row[5].strip() not in tuple(LETTERS):
            raise ValueError(f"expected question, four choices and a letter of {LETTERS}, found {len(row)} columns")
        choices = " ".join(f"({letter}) {choice.strip()}" for letter, choice in zip(LETTERS, row[1:5], strict=True))
        prompt = f"{examples}Q: {row[0].strip()}\n{choices}\n{THINK}"
        return Question(f"{self.name}/{self.split}/{index}", prompt, row[5].strip())

    def _examples(self, folder: str) -> str:
        path = Path(self.prompt) if self.prompt else self.file(folder, "mmlu_cot_prompt.json")
        if path is None:
            raise ValueError(
                f"task {self.name} from a hub needs a file of chain-of-thought examples; name it as `prompt`"
            )
        try:
            text = json.loads(path.read_text(encoding="utf-8"))[self.subject]
            header, _, examples = text.partition("\n\n")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f'expected {{"{self.subject}": text}} in {path}, found something else; repair it'
            ) from None
        return f"{header.strip()}\n\n{self.blocks(examples)}"


def _hub_row(row: dict[str, Any]) -> list[str]:
    try:
        return [str(row["question"]), *map(str, row["choices"]), LETTERS[row["answer"]]]
    except (KeyError, TypeError, IndexError):
        return []
