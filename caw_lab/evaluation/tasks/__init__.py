"""Tasks: questions with their prompts, and grading of answers. A new task is one file and one line in KINDS."""

from caw_lab.evaluation.tasks.base import Graded, Question, Task
from caw_lab.evaluation.tasks.gsm8k import GSM8K
from caw_lab.evaluation.tasks.jsonl import JsonlTask
from caw_lab.evaluation.tasks.mmlu import MMLU
from caw_lab.evaluation.tasks.prompts import PromptsTask

KINDS: dict[str, type[Task]] = {"gsm8k": GSM8K, "mmlu": MMLU, "jsonl": JsonlTask, "prompts": PromptsTask}

__all__ = ["GSM8K", "KINDS", "MMLU", "Graded", "JsonlTask", "PromptsTask", "Question", "Task"]
