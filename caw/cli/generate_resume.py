"""`caw generate --resume`: match lines to prompts by digest, whatever their ids, which may be line numbers."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.cli.errors import complain
from caw.io.jsonl import JsonlWriter, RowId
from caw.io.progress import doing

if TYPE_CHECKING:
    from caw.cli.generate_prompts import PromptEntry

REMEDY = "resume with the same options, or use another --output"
DIGEST, MODEL = "prompt_digest", "model_digest"
SHOWN = 5  # ids in a message


@dataclass(frozen=True)
class Line:
    """A line of an earlier run: its position in the file, its id, and the digest of its prompt."""

    place: int
    id: RowId | None
    digest: str


@dataclass
class LineCheck:
    """Raises ValueError for an existing line of other settings than `label`. models: digests, by their first line."""

    path: Path
    label: Mapping[str, Any]
    models: dict[str, int] = field(default_factory=dict)

    def __call__(self, place: int, line: Mapping[str, Any]) -> Line:
        if not isinstance(line.get(DIGEST), str):
            raise ValueError(
                f"{self.path}, line {place} is from an earlier version and does not name its prompt; use another "
                "--output"
            )
        for name, then, now in differences(line, self.label):
            raise ValueError(f"{self.path}, line {place} was made with {name} {then}, this run has {now}; {REMEDY}")
        self.models.setdefault(line["settings"].get(MODEL), place)
        return Line(place, line.get("id"), line[DIGEST])

    def check_model(self, digest: str) -> None:
        """Raise ValueError if the lines were made by a model with another digest."""
        for found, place in self.models.items():
            if found != digest:
                raise ValueError(
                    f"{self.path}, line {place} was made with {MODEL} {str(found)[:12]}, this run has {digest[:12]}: "
                    f"the model's weights, settings or vocabulary have changed; {REMEDY}"
                )


def differences(line: Mapping[str, Any], label: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, value then, value now) of each setting in which a line differs from the current label."""
    then, now = (dict(_flat({name: of.get(name) for name in label})) for of in (line, label))
    for name in dict.fromkeys([*now, *then]):
        if then.get(name) != now.get(name) and name != f"settings.{MODEL}":
            yield name.removeprefix("settings."), then.get(name), now.get(name)


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{before}{name}.")
        else:
            yield f"{before}{name}", inner


@dataclass(frozen=True)
class Pairs:
    """lines: id of the prompt that each line answers, None = no prompt of the input, by the line's own id.

    todo: prompts without a line. moved: lines that get another id. strays: lines whose id is not in the input. wrong:
    lines that answer none of the prompts but have the id of one.
    """

    lines: dict[RowId | None, RowId | None]
    todo: list[PromptEntry]
    moved: list[tuple[Line, RowId]]
    strays: list[Line]
    wrong: list[Line]


def pair(entries: Sequence[PromptEntry], digests: Sequence[str], lines: Sequence[Line]) -> Pairs:
    """Match lines to prompts: first by unchanged id, then by digest, in the order of both."""
    by_id = {entry.id: digest for entry, digest in zip(entries, digests, strict=True)}
    same = {line.id for line in lines if line.id in by_id and by_id[line.id] == line.digest}
    waiting: dict[str, deque[PromptEntry]] = defaultdict(deque)
    for entry, digest in zip(entries, digests, strict=True):
        if entry.id not in same and digest:
            waiting[digest].append(entry)
    moved, strays, wrong = list[tuple[Line, RowId]](), list[Line](), list[Line]()
    for line in lines:
        if line.id in same:
            continue
        if waiting[line.digest]:
            moved.append((line, waiting[line.digest].popleft().id))
        else:
            (wrong if line.id in by_id else strays).append(line)
    answered = same | {name for _, name in moved}
    taken = {line.id: name for line, name in moved} | {line.id: None for line in wrong}
    return Pairs(taken, [entry for entry in entries if entry.id not in answered], moved, strays, wrong)


def settle(
    writer: JsonlWriter, entries: Sequence[PromptEntry], digest: Callable[[], Callable[[Any], str]], *, remake: bool
) -> list[PromptEntry]:
    """Return the prompts without a text. digest: makes a prompt's. remake: drop changed lines, else a ValueError."""
    lines: list[Line] = writer.existing
    if not lines:
        return list(entries)
    with doing("comparing prompts"):
        digest_of = digest()
        entries, digests = _counted(entries, [digest_of(entry.prompt) for entry in entries])
        found = pair(entries, digests, lines)
    if found.wrong and not remake:
        first, *rest = found.wrong
        more = f" ({len(rest)} more such lines: ids {_ids(rest)})" if rest else ""
        raise ValueError(
            f"{writer.path}, line {first.place} answers another prompt than the input's id {first.id!r}"
            f"{more}; restore the prompts, use another --output, or add --remake to drop such lines and regenerate them"
        )
    if found.lines:
        change = found.lines
        writer.rewrite(lambda line: _changed(line, change))
    _tell(writer.path, found)
    return found.todo


def numbered(digest: str, occurrence: int) -> str:
    """Return the digest of a prompt that occurred `occurrence` times before: equal prompts are sampled differently."""
    return f"{digest}-{occurrence}" if digest and occurrence else digest


def _counted(entries: Sequence[PromptEntry], digests: Sequence[str]) -> tuple[list[PromptEntry], list[str]]:
    """Return the entries and their digests, each with the number of equal prompts before it."""
    seen = Counter[str]()
    counted: list[tuple[PromptEntry, str]] = []
    for entry, digest in zip(entries, digests, strict=True):
        counted.append((replace(entry, occurrence=seen[digest]), numbered(digest, seen[digest])))
        seen[digest] += 1
    return [entry for entry, _ in counted], [digest for _, digest in counted]


def _changed(line: dict[str, Any], change: Mapping[RowId | None, RowId | None]) -> dict[str, Any] | None:
    if line.get("id") not in change:
        return line
    name = change[line.get("id")]
    return None if name is None else {**line, "id": name}


def _tell(path: Path, found: Pairs) -> None:
    if found.moved:
        shown = ", ".join(f"{line.id!r} to {name!r}" for line, name in found.moved[:SHOWN])
        more = ", ..." if len(found.moved) > SHOWN else ""
        complain(f"{len(found.moved)} texts of {path} get the new ids of their prompts: {shown}{more}")
    if found.wrong:
        complain(f"{len(found.wrong)} texts of {path} answer other prompts and were dropped: ids {_ids(found.wrong)}")
    if found.strays:
        complain(
            f"{len(found.strays)} texts of {path} answer prompts that are not in the input, and are kept: ids "
            f"{_ids(found.strays)}"
        )


def _ids(lines: Sequence[Line]) -> str:
    return ", ".join(repr(line.id) for line in lines[:SHOWN]) + (", ..." if len(lines) > SHOWN else "")
