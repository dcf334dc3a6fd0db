"""Which kinds of tokens a watermark changed in the texts of a run: a pass of the model over them.

    python lab/changes_by_kind.py --config benchmarks/evaluation/qwen05.yaml --cell kgw.hard+caw.0 [--lost]

A token was changed if it is not the model's own first choice behind what was written before it. Texts are those of the
questions that the model answers rightly without a mark; with --lost only those that are wrong with it. Needs the run's
texts (the folder that `caw evaluate run` wrote), which are not published.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import caw
from caw.io.token_texts import token_texts
from caw.models.ends import end_token_ids
from caw_lab.evaluation.config import Config
from caw_lab.evaluation.config_file import read_config
from caw_lab.evaluation.store import Generation, Store
from caw_lab.training.labels import EncodedText
from caw_lab.training.recording import record_encoded


def texts_of(store: Store, name: str) -> dict[str, Generation]:
    return {text.id: text for text in store.cell(name).read()}


def own_choices(model: Any, prompts: list[list[int]], texts: list[list[int]]) -> list[list[int]]:
    """The model's first choice at every token of each text."""
    coded = [EncodedText.unlabelled(str(i), *both) for i, both in enumerate(zip(prompts, texts, strict=True))]
    with tempfile.TemporaryDirectory(prefix="caw-changes-") as folder:
        positions = record_encoded(model, coded, Path(folder), batch_tokens=1)
        first = positions.arrays["ids"][:, 0][positions.arrays["row"]]
        owner = positions.arrays["document"]
        return [first[owner == i].tolist() for i in range(len(texts))]


def kind_of(text: str) -> str:
    if "\n" in text:
        return "line end"
    if any(c.isdigit() for c in text):
        return "digits"
    if not text.strip():
        return "space"
    return "word" if any(c.isalpha() for c in text) else "punctuation"


def count(config: Config, model_name: str, task_name: str, cell: str, lost: bool) -> tuple[Counter[str], Counter[str]]:
    """(tokens that the model would have written, those of them that were changed) by kind."""
    store, task = Store(config.output), config.tasks[task_name]
    plain = texts_of(store, f"{model_name}.{task_name}.none")
    marked = texts_of(store, f"{model_name}.{task_name}.{cell}")
    ids = [i for i in marked if i in plain and plain[i].correct and not (lost and marked[i].correct)]
    spec = config.models[model_name]
    model, tokenizer = caw.load_model(spec.source, dtype=spec.dtype)
    prompts = {q.id: q.prompt for q in task.questions(None)}
    texts = [list(marked[i].tokens) for i in ids]
    choices = own_choices(model, [tokenizer(prompts[i])["input_ids"] for i in ids], texts)
    ends, said = end_token_ids(model, tokenizer), sorted({c for of_text in choices for c in of_text})
    kinds = {
        i: "end of text" if i in ends else kind_of(text)
        for i, text in zip(said, token_texts(tokenizer, said), strict=True)
    }
    wanted, changed = Counter[str](), Counter[str]()
    for text, own in zip(texts, choices, strict=True):
        wanted.update(kinds[c] for c in own)
        changed.update(kinds[c] for token, c in zip(text, own, strict=True) if token != c)
    print(f"{len(ids)} texts of {cell}")
    return wanted, changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--cell", required=True, help="watermark.policy.key, kgw.hard+caw.0 say")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--lost", action="store_true")
    given = parser.parse_args()
    config = read_config(given.config)
    wanted, changed = count(config, next(iter(config.models)), given.task, given.cell, given.lost)
    for kind, n in wanted.most_common():
        print(f"{kind:12} {changed[kind]:5} of {n:5} changed ({changed[kind] / n:.1%})")


if __name__ == "__main__":
    main()
