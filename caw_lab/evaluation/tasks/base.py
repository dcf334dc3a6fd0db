"""Base of all tasks: questions with their prompts, stop strings, and a grade for each answer."""

import hashlib
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from caw.requirements import require

BadLines = Literal["error", "skip"]
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
# with quotes, brackets and emphasis that close after it. An abbreviation counts as an end too; that only loses words
SENTENCE_END = re.compile(r"""[.!?][)\]}"'”’*_]*(?=\s|$)|[。！？]|(?=\n)""")
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """id: "task/split/index". prompt: the full model input, including examples. gold: the right answer.

    reference: a full human answer; "" if the data has none.
    """

    id: str
    prompt: str
    gold: str
    reference: str = ""


@dataclass(frozen=True)
class Graded:
    """answer: read from the text, None if nothing could be read. extraction: how: "stated", "last" or None.

    correct: whether it is the right answer, None if the task has none. text: the text up to the end of its answer.
    """

    answer: str | None
    extraction: str | None
    correct: bool | None
    text: str


@dataclass(frozen=True)
class Task(ABC):
    """Questions of one split of one data set.

    Args:
        name: of the task in the config; ids begin with it.
        data: a folder, or a `datasets` hub id; None = the task's own hub id.
        split, first, count: the questions to use; count None = all from `first` on.
        shots: solved examples in every prompt. prompt: a file of them, instead of the one in the data folder.
        bad_lines: a malformed line of the data is an "error", or is left out with a warning ("skip").
        generation: settings of its texts that differ from those of the config.

    graded: whether there are right answers.

    Raises ValueError for an argument that cannot be.
    """

    graded: ClassVar[bool] = True
    name: str
    data: str | None = None
    split: str = "test"
    first: int = 0
    count: int | None = None
    shots: int = 5
    prompt: str | None = None
    bad_lines: BadLines = "error"
    generation: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, low in (("first", 0), ("count", 1), ("shots", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise ValueError(f"tasks.{self.name}.{name} must be an integer from {low} on, got {value!r}; change it")
        if self.bad_lines not in ("error", "skip"):
            raise ValueError(f"tasks.{self.name}.bad_lines must be error or skip, got {self.bad_lines!r}; choose one")

    @property
    @abstractmethod
    def stop(self) -> tuple[str, ...]:
        """Strings that end an answer, such as the start of another question made up by the model."""

    @abstractmethod
    def load(self) -> list[Question]:
        """Read all questions of the split, in order. ValueError or OSError for missing or malformed data."""

    @abstractmethod
    def grade(self, text: str, gold: str) -> Graded:
        """Read the answer of one text and compare it with `gold`."""

    @cached_property
    def everything(self) -> list[Question]:
        return self.load()

    def questions(self, count: int | None = None) -> list[Question]:
        """Return the questions that `first` and `count` select; a `count` given here keeps the first of them."""
        whole = self.everything[self.first :][: self.count]
        if not whole:
            raise ValueError(
                f"task {self.name} has {len(self.everything)} questions, none from number {self.first} on; "
                "lower `first`"
            )
        return whole[:count]

    @cached_property
    def sha256(self) -> str:
        """Return SHA-256 of the ids, prompts and answers of the whole split."""
        digest = hashlib.sha256()
        for question in self.everything:
            for part in (question.id, question.prompt, question.gold, question.reference):
                digest.update(part.encode() + b"\0")
        return digest.hexdigest()

    def file(self, *parts: str) -> Path | None:
        """Return a file of the local data folder, None if data comes from a hub. FileNotFoundError if missing."""
        if self.data is None or (HUB_ID.fullmatch(self.data) and not Path(self.data).exists()):
            return None
        path = Path(self.data, *parts)
        if not path.is_file():
            raise FileNotFoundError(
                f"task {self.name} needs {'/'.join(parts)} in its data folder, found none in {self.data}; "
                "check `data`, or leave it out to load from the hub"
            )
        return path

    def hub_rows(self, hub_id: str, config: str, split: str) -> list[dict[str, Any]]:
        """Return a `datasets` data set's rows. ImportError without it, ValueError if the data cannot be loaded."""
        require("datasets", f"task {self.name} without a local data folder")
        from datasets import load_dataset

        try:
            return [dict(row) for row in load_dataset(self.data or hub_id, config, split=split)]
        except Exception as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ValueError(
                f"could not load {self.data or hub_id} ({reason}); give a local folder as `data`"
            ) from error

    def blocks(self, text: str) -> str:
        """Return a text's first `shots` examples, with blank lines between them. ValueError if it has fewer."""
        found = [block for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").strip()) if block.strip()]
        if len(found) < self.shots:
            raise ValueError(
                f"task {self.name} wants {self.shots} shots, the prompt file has {len(found)}; lower `shots`"
            )
        return "".join(f"{block.strip()}\n\n" for block in found[: self.shots])

    def usable(self, rows: Iterable[T], where: str, read: Callable[[int, T], Question]) -> list[Question]:
        """Yield questions of rows; `bad_lines` decides about rows that `read` rejects with ValueError."""
        return list(self._usable(rows, where, read))

    def _usable(self, rows: Iterable[T], where: str, read: Callable[[int, T], Question]) -> Iterator[Question]:
        seen = set[str]()
        for index, row in enumerate(rows):
            try:
                question = read(index, row)
                if question.id in seen:  # 1 and "1" are two ids of JSON, but one of a question
                    raise ValueError(f"a question's id must be used once, found {question.id} again")
                seen.add(question.id)
                yield question
            except ValueError as error:
                message = f"{where}, line {getattr(row, 'number', index + 1)}: {error}"
                if self.bad_lines == "error":
                    raise ValueError(f"{message}; repair it, or set tasks.{self.name}.bad_lines to skip") from None
                warnings.warn(f"{message}; skipped", stacklevel=2)


def up_to_sentence_end(text: str, position: int) -> str:
    """Return the text up to the end of the sentence or line that contains `position`, without trailing space."""
    end = SENTENCE_END.search(text, position)
    return (text if end is None else text[: end.end()]).rstrip()


def last(found: Sequence[T]) -> T | None:
    return found[-1] if found else None
