"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): word problems whose answer is a number.

Prompts begin with the chain-of-thought examples of Wei et al. 2022 (arXiv 2201.11903) in chain-of-thought-hub's layout.
The line "Let's think step by step" belongs to the prompt, so that every generated token is the model's own reasoning.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caw_lab.evaluation.tasks.base import Graded, Question, Task
from caw_lab.evaluation.tasks.grading import grade_number, plain_number, same_number
from caw_lab.training.labels import strip_notes

HUB_ID, HUB_CONFIG = "openai/gsm8k", "main"
THINK = "Let's think step by step"
FINAL = "#### "


@dataclass(frozen=True)
class GSM8K(Task):
    """data: a folder with gsm8k/SPLIT.jsonl and gsm8k/cot_prompt_8shot.txt.

    From a hub, the examples are the first questions of the train split with their solutions.
    """

    @property
    def stop(self) -> tuple[str, ...]:
        return ("Question:",)

    def load(self) -> list[Question]:
        path = self.file("gsm8k", f"{self.split}.jsonl")
        where = str(path) if path else "the data set"
        rows: list[Any] = path.read_bytes().splitlines() if path else self.hub_rows(HUB_ID, HUB_CONFIG, self.split)
        examples = self._examples()
        return self.usable(rows, where, lambda index, row: self._question(index, row, examples))

    def grade(self, text: str, gold: str) -> Graded:
        return grade_number(text, gold)

    def _question(self, index: int, row: Any, examples: str) -> Question:
        question, answer = fields_of(row)
        reasoning, mark, gold = answer.rpartition(FINAL)
        gold = plain_number(gold.strip())
        if not mark or not same_number(gold, gold):
            raise ValueError(f"expected an answer that ends in `{FINAL}` and a number, found {answer[-30:]!r}")
        prompt = f"{examples}Question: {question}\n{THINK}\n"
        return Question(f"{self.name}/{self.split}/{index}", prompt, gold, stated(reasoning, gold))

    def _examples(self) -> str:
        path = Path(self.prompt) if self.prompt else self.file("gsm8k", "cot_prompt_8shot.txt")
        if path is not None:
            return self.blocks(path.read_text(encoding="utf-8"))
        rows = self.hub_rows(HUB_ID, HUB_CONFIG, "train")[: self.shots] if self.shots else []
        solved = []
        for row in rows:
            question, answer = fields_of(row)
            reasoning, _, gold = answer.rpartition(FINAL)
            solved.append(f"Question: {question}\n{THINK}\n{stated(reasoning, gold.strip())}\n\n")
        return "".join(solved)


def stated(reasoning: str, gold: str) -> str:
    """Return a solution that ends like those of the examples."""
    return f"{strip_notes(reasoning).strip()}\nThe answer is {gold}."


def fields_of(row: Any) -> tuple[str, str]:
    """Return (question, answer) of a row, or of a JSON line. Raises ValueError."""
    try:
        value = json.loads(row) if isinstance(row, bytes) else row
        question, answer = value["question"], value["answer"]
    except (ValueError, KeyError, TypeError):
        question = answer = None
    if not isinstance(question, str) or not isinstance(answer, str):
        raise ValueError("expected an object with the texts `question` and `answer`, found something else")
    return question.strip(), answer
