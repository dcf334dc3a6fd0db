"""Key-segment labels: the characters of a reference answer that carry its quality, and their tokens.

A label file is JSONL, one document a line, offsets only:

    {"dataset": "gsm8k", "split": "train", "index": 725, "spans": [[0, 3], [8, 24]]}

The texts come from `<data_dir>/<dataset>/<split>.jsonl` ({"question", "answer"} a line, counted from 0). Spans are
character offsets [start, end) in the answer with its `<<...>>` calculator notes removed and nothing else: the final
`#### N` line belongs to it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from caw.io.inputs import open_input
from caw.io.jsonl import BadLine, read_rows

NOTE = re.compile(r"<<.*?>>")
FINAL_LINE = re.compile(r"(?:^|(?<=\n))#### *([^\s#].*?)\s*$")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
TEMPLATE = "Question: {question}\nAnswer:"


@dataclass(frozen=True)
class LabelledText:
    """One reference answer and its key segments: sorted, disjoint, non-empty [start, end) offsets into `solution`."""

    dataset: str
    split: str
    index: int
    question: str
    solution: str
    spans: tuple[tuple[int, int], ...]

    @property
    def name(self) -> str:
        return f"{self.dataset}/{self.split}/{self.index}"


@dataclass(frozen=True)
class EncodedText:
    """A prompt and its reference as the model reads them.

    ids: every token. first: index of the reference's first token. key: per reference token, whether it is key.
    """

    text: LabelledText
    ids: tuple[int, ...]
    first: int
    key: tuple[bool, ...]

    @classmethod
    def unlabelled(cls, name: str, prompt: Sequence[int], written: Sequence[int]) -> EncodedText:
        """Return a model's text after a prompt, as token ids; nothing is key."""
        text = LabelledText(name, "", 0, "", "", ())
        return cls(text, (*prompt, *written), len(prompt), (False,) * len(written))


def strip_notes(answer: str) -> str:
    """Return the answer without its `<<...>>` calculator notes."""
    return NOTE.sub("", answer)


def read_labels(labels_path: str | Path, data_dir: str | Path) -> list[LabelledText]:
    """Read a label file and join it with its texts, in the file's order.

    Raises FileNotFoundError, or ValueError naming file and line: no JSON, missing or mistyped field, unknown index,
    no spans, a span outside the text, overlapping or unsorted spans, a document labelled twice, an empty file.
    """
    path = Path(labels_path)
    corpora: dict[tuple[str, str], list[tuple[str, str]]] = {}
    seen: dict[tuple[str, str, int], int] = {}
    texts: list[LabelledText] = []
    for number, row in _rows(path, "label file", "dataset"):
        where = f"{path}, line {number}"
        dataset, split, index = _identity(row, where)
        if (dataset, split) not in corpora:
            corpora[dataset, split] = read_corpus(Path(data_dir) / dataset / f"{split}.jsonl")
        corpus = corpora[dataset, split]
        if not 0 <= index < len(corpus):
            raise ValueError(
                f"{where}: index must be in [0, {len(corpus)}) of {dataset}/{split}, got {index}; use the data file "
                "that was labelled"
            )
        if (dataset, split, index) in seen:
            raise ValueError(
                f"{where}: every document must be labelled once, {dataset}/{split}/{index} already was in line "
                f"{seen[dataset, split, index]}; remove one"
            )
        seen[dataset, split, index] = number
        question, solution = corpus[index]
        spans = _spans(row.get("spans"), len(solution), f"{where} ({dataset}/{split}/{index})")
        texts.append(LabelledText(dataset, split, index, question, solution, spans))
    if not texts:
        raise ValueError(f"a label file must have at least one document, {path} has none; label some first")
    return texts


def restate(text: LabelledText, statement: str) -> LabelledText:
    """Return the reference with its `#### N` line in the task's form; all of that line is key.

    An evaluator knows only what it was trained on: trained on `####`, it takes "The answer is" for filler and
    misjudges answers that state their number that way.

    statement: holds "{answer}", say "The answer is {answer}."; the answer is copied as it stands. Raises ValueError
    for one that does not, and for a reference without such a line.
    """
    if "{answer}" not in statement:
        raise ValueError(f"statement must contain '{{answer}}', got {statement!r}; use 'The answer is {{answer}}.'")
    found = FINAL_LINE.search(text.solution)
    if not found:
        raise ValueError(
            f"expected a reference that ends in a line `#### answer` to restate, {text.name} ends in "
            f"{text.solution[-30:]!r}; leave this document out"
        )
    start, said = found.start(), statement.replace("{answer}", found[1])
    kept = tuple((a, min(b, start)) for a, b in text.spans if a < start)
    return replace(text, solution=text.solution[:start] + said, spans=(*kept, (start, start + len(said))))


def digest(content: str | Sequence[LabelledText]) -> str:
    """Return sha256 of a text, or of labelled texts and their spans: the source of stored positions and weights."""
    if not isinstance(content, str):
        content = json.dumps([[t.name, t.question, t.solution, t.spans] for t in content])
    return hashlib.sha256(content.encode()).hexdigest()


def _rows(path: Path, what: str, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of every line that is not blank. field: one that a line must hold."""
    if not path.is_file():
        raise FileNotFoundError(f"expected a {what} at {path}, found nothing; check the path")
    with open_input(path) as file:
        for row in read_rows(file, unique=False, field=field):
            if isinstance(row, BadLine):
                raise ValueError(f"{path}, line {row.number}: {row.message}")
            yield row.number, row.value


def _identity(row: dict[str, Any], where: str) -> tuple[str, str, int]:
    dataset, split, index = row.get("dataset"), row.get("split"), row.get("index")
    for field, value in (("dataset", dataset), ("split", split)):
        # the names become part of a path
        if not isinstance(value, str) or not NAME.fullmatch(value):
            raise ValueError(f"{where}: {field} must be a plain name like 'gsm8k', got {value!r}; fix the line")
    if isinstance(index, bool) or not isinstance(index, int):
        raise ValueError(f"{where}: index must be an integer, got {index!r}; fix the line")
    assert isinstance(dataset, str) and isinstance(split, str)
    return dataset, split, index


def read_corpus(path: Path) -> list[tuple[str, str]]:
    """Return (question, solution without notes) of every document of a data file."""
    documents = []
    for number, row in _rows(path, "data file", "question"):
        question, answer = row.get("question"), row.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            raise ValueError(f"{path}, line {number}: expected texts 'question' and 'answer', got keys {sorted(row)}")
        documents.append((question, strip_notes(answer)))
    return documents


def _spans(spans: Any, length: int, where: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(spans, list) or not spans:
        raise ValueError(f"{where}: spans must be a list of at least one [start, end], got {spans!r}; label it again")
    previous = 0
    for span in spans:
        pair = isinstance(span, list) and len(span) == 2 and all(type(x) is int for x in span)
        if not pair:
            raise ValueError(f"{where}: a span must be two integers [start, end], got {span!r}; fix the line")
        start, end = span
        if not 0 <= start < end <= length:
            raise ValueError(
                f"{where}: a span must lie inside the {length} characters of the answer without its notes and not be "
                f"empty, got {span}; use the text that was labelled"
            )
        if start < previous:
            raise ValueError(f"{where}: spans must be sorted and disjoint, got {span} after an end at {previous}")
        previous = end
    return tuple((start, end) for start, end in spans)


def key_tokens(text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return whether each token, given by its offsets [start, end) in `text`, overlaps a span.

    Leading white space does not count, so that " and" is not key because the word before it is. A token of nothing
    but white space counts as it is: tokenizers that split digits put a token " " before every number, and inside a
    key segment it decides that a number comes. Part of a multi-byte character counts as the whole character.
    """
    marks = []
    for start, end in offsets:
        piece = text[start:end]
        bare = piece.lstrip()
        begin = end - len(bare) if bare else start
        marks.append(any(begin < span_end and span_start < end for span_start, span_end in spans))
    return marks


def encode(tokenizer: Any, text: LabelledText, template: str = TEMPLATE, prefix: str = "") -> EncodedText:
    """Tokenise prefix + prompt + reference as one text, as the model would have written it, and mark key tokens.

    template: holds "{question}". prefix: few-shot examples, put before it. A space separates prompt and reference
    unless the prompt ends in white space. Raises ValueError for a tokenizer that knows no offsets.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"labels require a tokenizer with character offsets (is_fast), got {type(tokenizer).__name__}; load it "
            "with use_fast=True"
        )
    if "{question}" not in template:
        raise ValueError(f"template must contain '{{question}}', got {template!r}; use {TEMPLATE!r}")
    prompt = prefix + template.replace("{question}", text.question)
    start = len(prompt) if prompt[-1].isspace() else len(prompt) + 1
    full = prompt.ljust(start) + text.solution
    coded = tokenizer(full, return_offsets_mapping=True, return_special_tokens_mask=True)
    ids, offsets = list(coded["input_ids"]), list(coded["offset_mapping"])
    while coded["special_tokens_mask"][len(ids) - 1]:  # an end-of-text token that the tokenizer adds is no reference
        ids.pop(), offsets.pop()
    first = next(i for i, (_, end) in enumerate(offsets) if end > len(prompt))
    spans = [(a + start, b + start) for a, b in text.spans]
    key = key_tokens(full, offsets[first:], spans)
    return EncodedText(text, tuple(ids), first, tuple(key))
