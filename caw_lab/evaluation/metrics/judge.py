"""Perplexity of a run's texts under a second model; perplexity.jsonl has a line for each text."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from caw.io.jsonl import JsonlWriter
from caw.io.progress import Bar
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.metrics.perplexity import perplexities
from caw_lab.evaluation.metrics.scoring import Scorer
from caw_lab.evaluation.store import text_digest

PERPLEXITY_FILE = "perplexity.jsonl"
CHUNK = 32  # texts between two writes
Given = Literal["question", "prompt", "nothing"]
SAID = {"question": "given the question", "prompt": "given the whole prompt", "nothing": "of the text alone"}


@dataclass
class Judge:
    """A second model that reads a run's texts.

    Args:
        scorer: of the run. model, tokenizer, name: the second model; its name is written into the lines.
        given: what the model reads before a text: the "question" (the last paragraph of the prompt; the examples before
            it would cost most of the time), the whole "prompt", or "nothing".
        limit: maximum questions per cell. say: called with a line for people after each cell.

    Raises ValueError for another `given`.
    """

    scorer: Scorer
    model: Any
    tokenizer: Any
    name: str
    given: Given = "question"
    limit: int | None = None
    say: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        check_given(self.given)

    def run(self, plans: Sequence[CellPlan]) -> int:
        """Read the texts without a line; return their number. Finished lines survive a kill at any moment.

        Raises ValueError if the file has lines of another model or another `given`, which cannot be compared.
        """
        path = self.scorer.store.path / PERPLEXITY_FILE
        made, names = 0, ("model", "given", "cell", "id", "of")
        with JsonlWriter(
            path, resume=True, made_by="caw evaluate perplexity", unique=None,
            keep=lambda line: tuple(line.get(name) for name in names),
        ) as writer:  # fmt: skip
            for model, given, *_ in writer.existing[:1]:
                if (model, given) != (self.name, self.given):
                    raise ValueError(
                        f"{path} is by {model}, {SAID.get(given, given)}, and cannot be continued by {self.name}, "
                        f"{SAID[self.given]}; use the same model and --given, or remove the file"
                    )
            known = {(cell, name): digest for _, _, cell, name, digest in writer.existing}
            cells = {plan.name: plan for plan in plans}.values()
            todo = [(plan, some) for plan in cells if (some := self._todo(plan, known))]
            with Bar(sum(len(some) for _, some in todo), "reading", "texts", announced=True) as bar:
                for plan, some in todo:
                    bar.begin(f"reading {plan.name}")
                    self._cell(plan, some, writer, bar)
                    made += len(some)
        return made

    def _todo(self, plan: CellPlan, known: dict[tuple[str, str], str]) -> list[tuple[str, str, str]]:
        """Return (id, text, digest) of the texts without a line."""
        texts = [(g.id, g.truncated_text) for g in self.scorer.generations(plan)][: self.limit]
        todo = [(i, t, text_digest(t)) for i, t in texts if t.strip()]
        # a text that has changed (its answer ends elsewhere now) gets another line, and the last line counts
        return [item for item in todo if known.get((plan.name, item[0])) != item[2]]

    def _cell(self, plan: CellPlan, todo: Sequence[tuple[str, str, str]], writer: JsonlWriter, bar: Bar) -> None:
        asked = self.scorer.questions(plan.task)
        for at in range(0, len(todo), CHUNK):
            some = todo[at : at + CHUNK]
            before = None if self.given == "nothing" else [self._before(asked[i].prompt) for i, _, _ in some]
            found = perplexities(self.model, self.tokenizer, [t for _, t, _ in some], before)
            for (name, _, digest), result in zip(some, found, strict=True):
                writer.write({
                    "id": name, "cell": plan.name, "model": self.name, "given": self.given,
                    "given_prompt": result.given_prompt, "alone": result.alone, "num_tokens": result.num_tokens,
                    "of": digest,
                })  # fmt: skip
            bar(pieces=len(some))
        self.say(f"{plan.name}: {len(todo)} texts")

    def _before(self, prompt: str) -> str:
        if self.given == "prompt":
            return prompt
        return re.split(r"\n[ \t]*\n", prompt.rstrip())[-1]


def check_given(given: str) -> None:
    if given not in get_args(Given):
        raise ValueError(f"--given must be one of {', '.join(get_args(Given))}, got {given!r}; choose one")


def judge_name(source: str) -> str:
    """Return the model's name as in lines: of a path only the last part."""
    return Path(source).name if Path(source).exists() else source
