"""Files of evaluators: whatever is not what an evaluator of these features has is refused by its name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import CLASSES
from caw.io.vocabulary import Vocabulary

SPEC = FeatureSpec(k=7, classes=len(CLASSES))
VOCABULARY = Vocabulary(3, "0" * 64)


def network(*, universal: bool = False) -> Evaluator:
    classes = torch.arange(9, dtype=torch.uint8)
    return Evaluator(SPEC, 5, {"model": "tiny"}, classes, VOCABULARY, universal)


def changed(folder: Path, change: Any) -> Path:
    """A good file whose tensors, a dict by name, went through `change`."""
    path = folder / "e.safetensors"
    network().save(path)
    with safe_open(str(path), "pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, str(path), metadata)
    return path


def test_what_it_serves_is_kept(tmp_path: Path) -> None:
    for universal in (False, True):
        network(universal=universal).save(tmp_path / "e.safetensors")
        found = Evaluator.load(tmp_path / "e.safetensors")
        assert (found.vocabulary, found.universal) == (VOCABULARY, universal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_floats_of_half_and_single_precision_are_read(tmp_path: Path, dtype: torch.dtype) -> None:
    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors["layer1.weight"] = tensors["layer1.weight"].to(dtype)

    found = Evaluator.load(changed(tmp_path, narrow))
    assert all(tensor.dtype == torch.float32 for tensor in found.weights())


# what was done to a tensor, and what is said of it; an int8 layer ran, with a capacity of .757 everywhere
BAD = {
    "int8": ("layer2.weight", lambda t: t.to(torch.int8), "layer2.weight of dtype I8, where float32 or float16 or bf"),
    "float64": ("layer1.bias", lambda t: t.double(), "layer1.bias of dtype F64, where float32"),
    "int64 classes": ("token_class", lambda t: t.long(), "token_class of dtype I64, where uint8 is known"),
    "float8": ("mean", lambda t: t.to(torch.float8_e4m3fn), "mean of dtype F8_E4M3"),
    "too many inputs": ("layer1.weight", lambda t: torch.cat([t, t], 1), r"layer1.weight of shape \[5, 108\]"),
    "transposed": ("layer1.weight", lambda t: t.T.contiguous(), r"layer1.weight of shape \[54, 5\]"),
    "narrow middle": ("layer2.weight", lambda t: t[:, :4].contiguous(), r"layer2.weight of shape \[5, 4\], .*\[5, 5\]"),
    "two outputs": ("layer3.bias", lambda t: torch.cat([t, t]), r"layer3.bias of shape \[2\], .*\[1\]"),
    "scale of one": ("scale", lambda t: t[:1].clone(), r"scale of shape \[1\], .*\[54\]"),
    "flat": ("layer3.weight", lambda t: t[0].clone(), r"layer3.weight of shape \[5\], .*\[1, 5\]"),
    "no classes": ("token_class", lambda t: t[:0], r"token_class of shape \[0\], .*\[V\]"),
    "classes 2-D": ("token_class", lambda t: t[None], r"token_class of shape \[1, 9\], .*\[V\]"),
    "class 11": ("token_class", lambda t: t + 3, "tensor token_class with class 11, where 11 are known"),
    "infinite half": ("scale", lambda t: (t * torch.inf).half(), r"must be finite, scale of"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_tensors_of_another_kind_are_refused_by_name(tmp_path: Path, what: str) -> None:
    name, change, message = BAD[what]

    def apply(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = change(tensors[name])

    with pytest.raises(ValueError, match=message) as caught:
        Evaluator.load(changed(tmp_path, apply))
    assert "\n" not in str(caught.value) and "train again" in str(caught.value)


@pytest.mark.parametrize("name", ["mean", "layer1.weight", "layer3.bias", "token_class"])
def test_a_tensor_that_is_missing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"e.safetensors, found: no tensor {name}; train again"):
        Evaluator.load(changed(tmp_path, lambda tensors: tensors.pop(name)))


def test_a_tensor_too_many(tmp_path: Path) -> None:
    extra = {"layer4.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match=r"found: a tensor layer4.weight, which no evaluator of these features has"):
        Evaluator.load(changed(tmp_path, lambda tensors: tensors.update(extra)))
