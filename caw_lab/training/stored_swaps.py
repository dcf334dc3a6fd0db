"""A model's own texts, their swaps and the surrounding records, stored in a folder: each is computed once.

Stored next to positions (`positions.py`): `made_from.json`, `texts.jsonl`, and `swaps.jsonl`, one line per text.
After an interruption, writing texts and measuring swaps continue.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from caw.io.files import write_text
from caw.io.jsonl import JsonlWriter
from caw.io.progress import Bar, doing, silent
from caw.models import load_model
from caw.models.ends import end_token_ids
from caw_lab.training.labels import EncodedText
from caw_lab.training.own_texts import OwnText, digest, own_texts
from caw_lab.training.positions import Positions
from caw_lab.training.recording import begin_store, first_kept, meta_of, store_rows
from caw_lab.training.settings import OwnTexts, Reading
from caw_lab.training.swaps import SwapSettings, measure_swaps
from caw_lab.training.text_reader import reader_for

MADE_FROM, TEXTS, SWAPS = "made_from.json", "texts.jsonl", "swaps.jsonl"
VERSION = 2
MADE_BY = "caw train-evaluator"
DIGITS = 5  # of the nats that are kept


@contextlib.contextmanager
def stored_swaps(
    reading: Reading, texts: OwnTexts, swaps: SwapSettings, *, progress: bool = True
) -> Iterator[tuple[Positions, np.ndarray]]:
    """Return a position for each swap, and the swaps' harm in nats, float64 [n]: from the reading's folder as far as
    available, otherwise from running the model.

    Without a folder they are gone when the block ends. Raises ValueError if the folder was made from another model,
    precision, texts or swaps, or if no text is long enough to have swaps.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(reading.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="caw-swaps-")))
        made_from = {
            "swaps_version": VERSION, "model": str(reading.model), "dtype": reading.dtype,
            "quantization": reading.quantization, "texts_sha256": digest(texts), "swaps": settings_of(swaps),
        }  # fmt: skip
        _check_folder(folder, made_from)
        if not (folder / "meta.json").is_file():
            _record(reading, texts, swaps, folder, made_from, progress)
        positions = Positions.open(folder)
        lines = sorted(_lines(folder / SWAPS), key=lambda line: line["id"])
        lengths = np.bincount(np.asarray(positions.arrays["document"]), minlength=len(lines))
        firsts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = [np.asarray(line["place"], np.int64) + firsts[line["id"]] for line in lines]
        harm = [np.asarray(line["falls"]).reshape(-1, swaps.horizon).sum(axis=1) for line in lines]
        token = np.concatenate(tokens)
        if not len(token):
            raise ValueError(
                f"expected texts of more than {swaps.horizon} tokens in which keys swap some, got none; let the model "
                "write more, or lower the horizon"
            )
        yield positions.only(token, np.zeros(len(token), bool)), np.concatenate(harm)


def settings_of(swaps: SwapSettings) -> dict[str, Any]:
    """Return the settings of the measurement, without the placeholder key."""
    mark = swaps.watermark
    return {
        "watermark": mark.name, "full_strength": mark.full, "strength": swaps.strength, "keys": swaps.keys,
        "places": swaps.places, "horizon": swaps.horizon, "seed": swaps.seed,
    }  # fmt: skip


def _check_folder(folder: Path, made_from: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MADE_FROM
    if not path.exists():
        if (folder / "meta.json").exists():
            raise ValueError(f"expected swaps or nothing in {folder}, found positions of labelled texts; name another")
        write_text(path, json.dumps(made_from, indent=1) + "\n")
    found = json.loads(path.read_text())
    for name, value in made_from.items():
        if found.get(name) != value:
            raise ValueError(
                f"swaps stored in {folder} were made with {name} {found.get(name)!r}, asked for is {value!r}; name "
                "another folder or remove this one"
            )


def _record(
    reading: Reading, texts: OwnTexts, swaps: SwapSettings, folder: Path, made_from: dict[str, Any], progress: bool
) -> None:
    with silent(not progress), doing(f"loading {reading.model}", announced=True):
        model, tokenizer = load_model(
            reading.model, device=reading.device, dtype=reading.dtype, quantization=reading.quantization
        )
    written, ends = _texts(model, tokenizer, texts, folder / TEXTS, progress), end_token_ids(model, tokenizer)
    coded, reader = [text.coded for text in written], reader_for(model)
    store = Positions.resumed(folder) or begin_store(coded, folder)
    with (
        JsonlWriter(folder / SWAPS, resume=True, keep=lambda line: line["id"], made_by=MADE_BY) as writer,
        Bar(
            len(written), "measuring swaps", "texts", enabled=progress, announced=True, done=len(set(writer.existing))
        ) as advance,
    ):
        done = set(writer.existing)
        for i, text in enumerate(written):
            start, first = int(store.bounds[i]), first_kept(text.coded)
            if i in done and store.arrays["logsumexp"][start]:
                continue
            logits = reader.read(text.coded.ids, first, text.coded.text.name)
            store_rows(store, logits, start, text.coded.text.name)
            if i not in done:  # a record is there before the line that says so
                own = logits[text.coded.first - first :]
                found = measure_swaps(reader, text.coded, own, swaps, text.temperature, ends)
                falls = found.falls.round(DIGITS).tolist()
                writer.write({"id": i, "place": found.place.tolist(), "token": found.token.tolist(), "falls": falls})
                advance()
    about = {name: value for name, value in made_from.items() if name != "dtype"}  # that which "auto" became
    about["written_tokens"] = sum(len(text.key) for text in coded)
    store.close(folder, meta_of(model, coded, store, about))


def _texts(model: Any, tokenizer: Any, texts: OwnTexts, path: Path, progress: bool) -> list[OwnText]:
    """Return the texts that are stored, once all are; those that are missing are written first."""
    with JsonlWriter(path, resume=True, keep=lambda line: line["id"], made_by=MADE_BY) as writer:
        for i, text in own_texts(model, tokenizer, texts, done=set(writer.existing), progress=progress):
            coded = text.coded
            line = {"name": coded.text.name, "ids": coded.ids, "first": coded.first, "temperature": text.temperature}
            writer.write({"id": i, **line})
    found = [
        OwnText(EncodedText.unlabelled(t["name"], t["ids"][: t["first"]], t["ids"][t["first"] :]), t["temperature"])
        for t in sorted(_lines(path), key=lambda line: line["id"])
    ]
    return [text for text in found if len(text.coded.ids) > text.coded.first]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
