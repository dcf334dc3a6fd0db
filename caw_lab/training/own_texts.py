"""Texts written by the model itself, to train an evaluator without labels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from caw.decoding.prompts import encode_prompts
from caw.entrance import iter_generate
from caw.io.inputs import open_input
from caw.io.jsonl import Row, read_rows, text_field
from caw.io.progress import Bar
from caw.models.facts import ModelFacts
from caw_lab.training.labels import EncodedText
from caw_lab.training.settings import OwnTexts

T = TypeVar("T")
BATCH = 32  # texts written at once: more read the weights less often, and gain little beyond
EVERYDAY = Path(__file__).parent / "everyday_prompts.jsonl"


@dataclass(frozen=True)
class OwnText:
    """coded: a prompt and the model's continuation; texts of one prompt have one name. temperature: of sampling; None =
    greedy.
    """

    coded: EncodedText
    temperature: float | None = None


def own_texts(
    model: Any, tokenizer: Any, settings: OwnTexts, *, done: Collection[int] = (), progress: bool = True
) -> Iterator[tuple[int, OwnText]]:
    """Yield the model's continuations of the prompts, greedy and sampled, and existing texts, each with its number, as
    they are finished. A text without new tokens is yielded too.

    done: numbers of texts that are not needed.

    Deterministic for the settings. Raises FileNotFoundError, or ValueError naming file and line, for invalid prompts or
    texts.
    """
    facts, number = ModelFacts.of(model, tokenizer), 0
    existing = settings.written and _each(settings.written, lambda line: _written(line, tokenizer, facts))
    if settings.continues:
        prompts = _each(settings.prompts or EVERYDAY, lambda line: text_field(line, "prompt"))[: settings.count]
        chat = bool(getattr(tokenizer, "chat_template", None)) if settings.chat is None else settings.chat
        ids = encode_prompts(tokenizer, prompts, facts, chat=chat)
        for temperature in dict.fromkeys((None, settings.temperature)):
            missing = [i for i in range(len(prompts)) if number + i not in done]
            how = "greedy texts" if temperature is None else f"texts at temperature {temperature:g}"
            if missing:
                with Bar(
                    len(prompts), f"writing {how}", "texts", enabled=progress, announced=True,
                    done=len(prompts) - len(missing),
                ) as bar:  # fmt: skip
                    for out in iter_generate(
                        model, tokenizer, [ids[i] for i in missing], max_new_tokens=settings.max_new_tokens,
                        do_sample=temperature is not None, temperature=temperature or 1.0, seed=settings.seed,
                        return_trace=False, batch_size=BATCH,
                    ):  # fmt: skip
                        i = missing[out.index]
                        coded = EncodedText.unlabelled(_name(prompts[i]), ids[i], out.tokens)
                        yield number + i, OwnText(coded, temperature)
                        bar(len(out.tokens))
            number += len(prompts)
    yield from ((number + i, text) for i, text in enumerate(existing or []) if number + i not in done)


def sources(settings: OwnTexts) -> list[Path]:
    """Return the files that texts are made from."""
    continued = [settings.prompts or EVERYDAY] if settings.continues else []
    return [Path(path) for path in (*continued, settings.written) if path is not None]


def licences(settings: OwnTexts) -> list[str]:
    """Return the licences of the sources; the model's texts are not stored."""
    owned = "Apache-2.0, of this library; what the model wrote is not stored"
    return [f"{path.name}: {owned if path == EVERYDAY else 'not known to this library'}" for path in sources(settings)]


def digest(settings: OwnTexts) -> str:
    """Return sha256 of the sources of the texts, without the model."""
    contents = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sources(settings)]
    kept = asdict(replace(settings, prompts=None, written=None)) if settings.continues else None
    return hashlib.sha256(json.dumps([settings.written is not None, contents, kept]).encode()).hexdigest()


def _name(prompt: str) -> str:
    """Return the name that assigns a prompt's texts to a part of the split."""
    return f"prompt/{hashlib.sha256(prompt.encode()).hexdigest()[:16]}"


def _each(path: str | Path, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """Yield what is read of each line; there is at least one."""
    found = []
    with open_input(path) as lines:
        for row in read_rows(lines):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                found.append(read(row.value))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {row.number}: {error}") from error
    if not found:
        raise ValueError(f"{path} must have at least one line, found none; add some")
    return found


def _written(line: dict[str, Any], tokenizer: Any, facts: ModelFacts) -> OwnText:
    """Return the text in a line of `caw generate --with-prompt`."""
    prompt, said = text_field(line, "prompt"), line.get("settings") or {}
    sampling, tokens = said.get("sampling") or {}, line.get("tokens")
    if sampling.get("top_k", 0) or sampling.get("top_p", 1.0) != 1.0:
        raise ValueError("texts must be greedy or sampled by temperature alone, top_k or top_p is set; leave it out")
    (given,) = encode_prompts(tokenizer, [prompt], facts, chat=bool(said.get("chat")))
    if tokens is None:
        tokens = tokenizer(text_field(line, "text"), add_special_tokens=False)["input_ids"]
    written = encode_prompts(tokenizer, [tokens], facts)[0] if tokens else []
    return OwnText(EncodedText.unlabelled(_name(prompt), given, written), sampling.get("temperature"))
