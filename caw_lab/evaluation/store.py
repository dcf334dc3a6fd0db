"""The folder of a run: its texts, scores and results. It stays usable whenever a process is killed.

    OUTPUT/
      config.yaml                    the config of the last run or scoring
      configs/<id>.yaml              every config that lines or scores were made with
      runs/<id>.json                 how lines were made: versions, git commit, command, device
      cells/<cell>/cell.json         what every text of the cell shares (never the key)
      cells/<cell>/generations.<rank>.jsonl    a line per question, written whole as soon as it is finished
      scores.jsonl                   made from the texts, without them: a line per (cell, question, key, attack)
      results.json                   {"rows": [...]}

Progress is stored in the lines alone: a question is done if and only if a line has its id, so nothing is lost or done
twice. Each process writes its own files; reading merges them. scores.jsonl and results.json are replaced as a whole.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caw.io.files import locked
from caw.io.json_files import replace_file, write_json
from caw.io.jsonl import JsonlWriter, encode, line_id
from caw_lab.evaluation.packed_files import parse, read_json, read_lines, write_lists

MADE_BY = "caw evaluate run"
SCORES_FILE = "scores.jsonl"
Text = tuple[str, str]  # id, text
Identity = tuple[Any, ...]
GENERATIONS = re.compile(r"generations\.([0-9]+)\.jsonl")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
REMEDIES = {
    "key_id": "set CAW_KEY or `seed` as they were then",
    "policy_parameters": "say them in the config as they were then",
    "generation": "set `generation` as it was then and score again (caw evaluate run --scores-only)",
}


@dataclass(frozen=True)
class Generation:
    """A generated text and its grade.

    id: of the question, e.g. "gsm8k/test/17". tokens: new ids, the end token included. text: as generated.
    finish_reason: "eos", "length", "stop" or "error" (the prompt could not be continued, see `error`).
    answer: what was read from the text, None if nothing could be; extraction: how ("stated", "last"). correct: whether
    it is the right answer, None where a task knows no right one. truncated_text: the text up to the end of its answer,
    which is graded and tested for marks. marked, changed: share of tokens of strength above 0, and of tokens that are
    not the model's own choice. run: id of the record in runs/ that says how it was made. attempts: how often it was
    made (with detectable_at). found: whether the text as it left was found then; None = it was not tested.
    """

    id: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    answer: str | None
    correct: bool | None
    truncated_text: str
    marked: float
    changed: float
    extraction: str | None = None
    run: str = ""
    error: str = ""
    attempts: int = 1
    found: bool | None = None


@dataclass(frozen=True)
class TextGroup:
    """Texts of one origin that are tested for the same mark; the fields are those of `Score`."""

    cell: str
    watermark: str
    key: int
    label: int
    source: str
    attack: str = "none"

    def unscored(self, texts: Iterable[Text], known: Mapping[Identity, str]) -> list[Text]:
        """Return this group's texts without a score, or with one of another text. known: `Score.of` by identity."""
        return [(name, text) for name, text in texts if known.get(identity_of(self, name)) != text_digest(text)]


@dataclass(frozen=True)
class Score:
    """The detector's result for one text under one key.

    cell: where the text comes from. watermark, key: the watermark of the config and the key number it is tested for.
    attack: "none", or kind and strength, e.g. "word-d-0.1". label: 1 = the text carries this mark.
    source: "model" or "human". edit_rate: share of words that the attack really changed.
    p_weighted, z_weighted: with the weights per token of the model's `weights`; None without them.
    of: `text_digest` of the text before the attack; where the text has changed, the score is replaced.
    """

    cell: str
    id: str
    watermark: str
    key: int
    attack: str
    label: int
    source: str
    p_value: float
    z: float
    num_scored: int
    num_tokens: int
    edit_rate: float = 0.0
    p_weighted: float | None = None
    z_weighted: float | None = None
    of: str = ""

    @property
    def identity(self) -> Identity:
        """Unique key of a score; a new score replaces the old one with the same identity."""
        return identity_of(self, self.id)


def identity_of(group: TextGroup | Score, text_id: str) -> Identity:
    """See `Score.identity`. The id appears twice: 1 and 01 are equal as numbers."""
    return (group.cell, group.watermark, group.key, group.attack, group.source, natural(text_id), text_id)


def text_digest(text: str) -> str:
    """Return 16 hexadecimal digits that identify a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Cell:
    """The texts of one model, task, watermark, policy and key; `manifest` says which, {} before the first run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name

    @property
    def manifest(self) -> dict[str, Any]:
        return read_json(self.folder / "cell.json") or {}

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest if there is none. ValueError if there is a different one."""
        known = self.manifest
        if known:
            self.check(manifest, known.keys() | manifest.keys())
        if not known:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(self.folder / "cell.json", manifest)

    def check(self, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
        """Raise ValueError for the first of these names on which the stored manifest and this one differ."""
        old, new = comparable(self.manifest), comparable(manifest)
        for name in sorted(names):
            if old.get(name) != new.get(name):
                remedy = REMEDIES.get(name, "go back to that")
                raise ValueError(
                    f"cell {self.name} was made with {name} {old.get(name)!r}, this run has {new.get(name)!r}; "
                    f"{remedy}, or give another output folder"
                )

    def files(self) -> list[Path]:
        """The files of generations, of all ranks."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path for path in found if GENERATIONS.fullmatch(path.name))

    def done(self) -> set[str]:
        """Ids of the questions with an answer."""
        return {line["id"] for path in self.files() for line in read_lines(path)}

    def read(self) -> list[Generation]:
        """Return generations of all ranks, in id order. ValueError for an id on two lines."""
        found: dict[str, Generation] = {}
        for path in self.files():
            for line in read_lines(path):
                made = parse(Generation, {**line, "tokens": tuple(line["tokens"])}, path)
                if made.id in found:
                    raise ValueError(
                        f"cell {self.name} must hold each question once, found {made.id} twice; "
                        "runs that work at once need the same --world-size and different --rank"
                    )
                found[made.id] = made
        return [found[name] for name in sorted(found, key=natural)]

    @contextlib.contextmanager
    def writer(self, rank: int = 0) -> Iterator[JsonlWriter]:
        """Append lines to this rank's file; a truncated line is removed first.

        Raises ValueError if another process of the same rank is at work, and for a file that has an id twice.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        busy = f"rank {rank} of cell {self.name} is being written by another process; wait for it, or give another rank"
        path = self.folder / f"generations.{rank}.jsonl"
        with JsonlWriter(path, resume=True, made_by=MADE_BY, keep=line_id, busy=busy) as writer:
            yield writer


class Store:
    """An evaluation's folder; created if missing. Raises ValueError where the path is a file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"output must be a folder, {self.path} is a file; name another")

    def cell(self, name: str) -> Cell:
        if not NAME.fullmatch(name):
            raise ValueError(f"a cell's name must be letters, digits and . _ + -, got {name!r}; rename its parts")
        return Cell(self.path / "cells" / name)

    def cells(self) -> list[Cell]:
        """Cells with a manifest, in name order."""
        folder = self.path / "cells"
        found = [Cell(path) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
        return [cell for cell in found if cell.manifest]

    def keep_run(self, record: Mapping[str, Any]) -> str:
        """Store a record of how lines are generated; return its id, equal for equal records."""
        content = json.dumps(record, sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(content.encode()).hexdigest()[:12]
        (self.path / "runs").mkdir(parents=True, exist_ok=True)
        write_json(self.path / "runs" / f"{name}.json", record)
        return name

    def run(self, name: str) -> dict[str, Any]:
        """Return the record that `keep_run` stored; {} for an unknown id."""
        return read_json(self.path / "runs" / f"{name}.json") or {}

    def read_scores(self) -> list[Score]:
        """Return all scores, ordered by identity; [] if there are none yet."""
        path = self.path / SCORES_FILE
        return [parse(Score, line, path) for line in read_lines(path, missing_ok=True)]

    def update_scores(self, scores: Iterable[Score]) -> None:
        """Add scores, replacing those with the same identity. The file is replaced whole or not at all."""
        with locked(self.path / ".lock.scores", "scores.jsonl"):
            merged = {score.identity: score for score in [*self.read_scores(), *scores]}
            ordered = (merged[identity] for identity in sorted(merged))
            # "id" first, as in every file of lines of this library
            lines = (encode({"id": score.id, **asdict(score)}) for score in ordered)
            replace_file(self.path / "scores.jsonl", b"".join(lines))

    @property
    def results(self) -> dict[str, Any]:
        """Return the content of results.json; {"rows": []} if there is none yet."""
        return read_json(self.path / "results.json") or {"rows": []}

    def write_results(self, results: Mapping[str, Any], *, packed: bool = False) -> None:
        """packed: compressed, as published copies have it."""
        write_lists(self.path / "results.json", results, packed=packed)

    def results_lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold this while computing and writing results, so that a process with less data cannot write last."""
        return locked(self.path / ".lock.results", "results.json")

    def write_config(self, text: str) -> str:
        """Store the config as config.yaml and in configs/; return its id, equal for equal texts."""
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        for path in (self.path / "config.yaml", self.path / "configs" / f"{name}.yaml"):
            replace_file(path, text.encode())
        return name


def comparable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest without derived values and names: an evaluator counts by digest, not by file name."""
    kept = dict(manifest)
    for name, derived in (("policy_parameters", "evaluator"), ("watermark_parameters", "vocab_size")):
        if kept.get(name):
            kept[name] = {k: v for k, v in kept[name].items() if k != derived}
    return kept


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key that compares numbers inside names as numbers: gsm8k/test/9 comes before gsm8k/test/10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((0, int(part)) if place % 2 else (1, part) for place, part in enumerate(parts) if part)
