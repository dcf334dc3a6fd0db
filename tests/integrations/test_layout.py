"""The white space of JSON is the model's own, whatever may be chosen beside its likeliest token."""

import re
from typing import Any

import pytest
import torch

from caw.integrations.layout import JsonLayout

STRING = re.compile(r'"(?:\\.|[^"\\])*(?:"|$)', re.DOTALL)


def white(text: str) -> str:
    return re.sub(r"\S", "", STRING.sub("", text))


@pytest.mark.parametrize("text", [
    '{\n  "name": "Ann \\"A\\" Lee",\n  "ages": [42, 7],\n  "b\\\\": true\n}', '{"a":"b c","d":[1,2,{"e":null}]}',
])  # fmt: skip
def test_only_the_white_space_of_the_likeliest_token_remains(demo: tuple[Any, Any], text: str) -> None:
    tokenizer, generator = demo[1], torch.Generator().manual_seed(3)
    layout, ids = JsonLayout(tokenizer, len(tokenizer) + 2), tokenizer(text).input_ids
    for n, own in enumerate(ids):
        logits = torch.randn(1, len(tokenizer) + 2, generator=generator)
        logits[0, own] = 9.0
        kept = layout.keep(logits, [ids[:n]])
        others = (kept[0, : len(tokenizer)] > -torch.inf).nonzero()[:, 0]
        assert kept[0, own] == 9.0 and ("\n" in tokenizer.decode([own]) or len(others) > 1000)
        for token in others[torch.randint(len(others), (40,), generator=generator)].tolist():
            piece, before = tokenizer.decode([token]), tokenizer.decode(ids[:n])
            if not re.search(r"[^\s{}\[\]:,]\W", piece):  # what a grammar lets through
                assert white(before + piece) == white(tokenizer.decode(ids[: n + 1])), (before, piece)
