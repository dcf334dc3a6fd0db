"""`caw generate --resume`: which prompts have a text, by id, and that the lines answer these prompts, by digest."""

from __future__ import annotations

from collections import Counter
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


def settle(
    writer: JsonlWriter, entries: Sequence[PromptEntry], digest: Callable[[], Callable[[Any], str]]
) -> list[PromptEntry]:
    """Return the prompts without a text. digest: makes a prompt's. ValueError where an id's prompt has changed."""
    lines: list[Line] = writer.existing
    if not lines:
        return list(entries)
    with doing("comparing prompts"):
        digest_of = digest()
        entries, digests = _counted(entries, [digest_of(entry.prompt) for entry in entries])
    of_id: dict[RowId | None, str] = dict(zip([entry.id for entry in entries], digests, strict=True))
    strays = [line for line in lines if line.id not in of_id]
    wrong = [line for line in lines if of_id.get(line.id, line.digest) != line.digest]
    if wrong:
        more = f" ({len(wrong) - 1} more such lines)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{writer.path}, line {wrong[0].place} answers another prompt than the input's id {wrong[0].id!r}{more}; "
            "restore the prompts, or use another --output"
        )
    if strays:
        ids = ", ".join(repr(line.id) for line in strays[:SHOWN]) + ", ..." * (len(strays) > SHOWN)
        complain(f"{len(strays)} texts of {writer.path} answer prompts that are not in the input, and are kept: {ids}")
    answered = {line.id for line in lines}
    return [entry for entry in entries if entry.id not in answered]


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
