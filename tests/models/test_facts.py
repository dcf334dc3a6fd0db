"""What is asked about a model."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, RAGGED, build
from decoding.running import run

from caw.models.facts import main_device, rope_limit, single_device, vocabulary_size


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_vocabulary_is_the_width_of_the_logits(name: str) -> None:
    model = build(name)
    assert vocabulary_size(model) == model(torch.tensor([[5]])).logits.shape[-1]


def test_a_model_on_several_devices_is_refused() -> None:
    model = copy.deepcopy(build("llama"))
    model.model.layers[1].to("meta")
    with pytest.raises(ValueError, match="must hold its weights, found some on the meta device"):
        run(model, RAGGED)
    places = SimpleNamespace(parameters=lambda: [SimpleNamespace(device=name) for name in ("cuda:0", "cpu")])
    with pytest.raises(ValueError, match="must be on one device, found cpu, cuda:0; load it"):
        single_device(places)


@pytest.mark.parametrize(
    ("places", "expected"),
    [({"a": 0, "b": 1}, "cuda:0"), ({"a": "cpu", "b": 1}, "cuda:1"), ({"a": "disk", "b": "cpu"}, "cpu"),
     ({"a": torch.device("cuda:1"), "b": "cpu"}, "cuda:1"), ({"": 0}, None), ({}, None)],
)  # fmt: skip
def test_main_device(places: dict[str, Any], expected: str | None) -> None:
    class Placed:
        hf_device_map = places

    found = main_device(Placed())
    assert found == (None if expected is None else torch.device(expected))


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 40}


def model(**config: Any) -> Any:
    text = SimpleNamespace(**{"max_position_embeddings": 100, **config})
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda decoder: text))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"rope_parameters": None, "rope_scaling": None}, None),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 40}}, None),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 100),
        ({"rope_scaling": {"type": "dynamic"}}, 100),  # as older configs say it
        ({"rope_parameters": LONG}, 40),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 30}, 30),
        ({"rope_parameters": {"rope_type": "longrope"}, "max_position_embeddings": None}, 0),
        ({"rope_parameters": {"full_attention": LONG, "sliding_attention": {"rope_type": "default"}}}, 40),
    ],
)
def test_limit(config: dict[str, Any], expected: int | None) -> None:
    assert rope_limit(model(**config)) == expected
