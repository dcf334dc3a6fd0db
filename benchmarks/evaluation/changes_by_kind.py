"""Which kinds of tokens a watermark changed in the texts of a run: a pass of the model over them.

    python changes_by_kind.py --config qwen05.yaml --cell kgw.hard+caw.0 [--lost]

A token was changed if it is not the model's own first choice behind what was written before it. Texts are those of the
questions that the model answers rightly without a mark; with --lost only those that are wrong with it. Needs the run's
texts (the folder that `caw evaluate run` wrote), which are not published.
"""

from __future__ import annotations

import argparse
import copy
from collections import Counter
from itertools import takewhile
from typing import Any

import torch

import caw
from caw.evaluation.config import Config, read_config
from caw.evaluation.store import Generation, Store
from caw.models import end_token_ids
from caw.token_texts import token_texts


def texts_of(store: Store, name: str) -> dict[str, Generation]:
    return {text.id: text for text in store.cell(name).read()}


def own_choices(model: Any, prompts: list[list[int]], texts: list[list[int]]) -> list[list[int]]:
    """The model's first choice at every token of each text; what all prompts begin with is read once."""
    shared = [column[0] for column in takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))]
    shared = shared[: min(map(len, prompts)) - 1]
    with torch.inference_mode():
        cache = model(torch.tensor([shared]), use_cache=True, logits_to_keep=1).past_key_values
        choices = []
        for prompt, text in zip(prompts, texts, strict=True):
            rest = torch.tensor([[*prompt[len(shared) :], *text]])
            logits = model(rest, past_key_values=copy.deepcopy(cache), logits_to_keep=len(text) + 1).logits
            choices.append(logits[0, :-1].argmax(-1).tolist())
    return choices


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
