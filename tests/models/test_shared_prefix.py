"""What texts begin with is read once; test_teacher.py says that what is read of them is what it was."""

from typing import Any

import pytest
import torch
from decoding import architectures
from tiny import tiny_model

from caw.models.teacher import teacher_forced
from caw.testing import assert_close

BEGINNING = list(range(3, 63))


def lengths_read(model: Any, texts: list[tuple[list[int], int]], **options: Any) -> list[torch.Size]:
    shapes: list[torch.Size] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    found = dict(teacher_forced(model, texts, share=True, **options))
    hook.remove()
    for i, (ids, first) in enumerate(texts):
        with torch.inference_mode():
            assert_close(found[i], model(torch.tensor([ids])).logits[0, first - 1 :], "forward")
    return shapes


def test_texts_that_differ_in_their_last_token_share_all_but_what_is_kept() -> None:
    texts = [([*BEGINNING, 7, last], 61) for last in (5, 6)]
    shapes = lengths_read(tiny_model(97), texts)
    assert shapes[0] == (1, 60) and sum(shape.numel() for shape in shapes) < 70


def test_copies_of_the_prefix_are_bounded() -> None:
    shapes = lengths_read(tiny_model(97), [([*BEGINNING, i, 9], 61) for i in range(9)], batch_tokens=40)
    rows = max(1, 4 * 40 // shapes[0][1])
    assert 1 < rows < 9 and max(shape[0] for shape in shapes) == rows


@pytest.mark.parametrize("name", ["qwen2-window", "mistral", "gemma2", "longrope", "no cache"])
def test_models_whose_prefix_cannot_be_shared_read_every_text_whole(name: str, monkeypatch: Any) -> None:
    model = architectures.build("llama" if name in ("longrope", "no cache") else name)
    if name == "longrope":
        monkeypatch.setattr(model.config, "rope_parameters", {"rope_type": "longrope"})
    if name == "no cache":
        monkeypatch.setattr("caw.models.shared_prefix.DynamicCache", type(None))
    assert lengths_read(model, [([*BEGINNING[:47], last, 7], 47) for last in (5, 6)])[-1] == (2, 49)
