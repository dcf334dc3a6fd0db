"""`--quantization`: one option for every command that runs a model; `quantization` in a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from caw.cli.options import RUNNING, Device, DType, Threads, panel, prepare_device
from caw.models.quantization import FILE_WEIGHTS, GPU_WEIGHTS, check_quantization, usual_device
from caw.models.sources import file_or_folder

FLAG = "--quantization"
HELP = (
    "Quantized model weights, 4 to 8 bits: file keeps a .gguf file's blocks, on a CPU (file-fast also rounds "
    "inputs); fp8 (GPU only), int8 and int4 quantize while loading [no quantization]."
)


def quantization_option(title: str = RUNNING, *more: str, remark: str = "") -> Any:
    """Return the option in this help panel. more: other names of it."""
    return panel(title, HELP + remark, FLAG, *more, metavar="|".join((*FILE_WEIGHTS, *GPU_WEIGHTS)))


def second_option(model: str, flag: str, title: str = RUNNING) -> Any:
    """Return the option for a command's second model, which `model` names."""
    said = f"Weights of fewer bits, as of other commands' --quantization, for the model that {model} names."
    return panel(title, said, flag, metavar="|".join((*FILE_WEIGHTS, *GPU_WEIGHTS)))


Quantized = Annotated[str | None, quantization_option()]


def prepare_place(
    model: str, device: str | None, threads: int | None, dtype: str, quantization: str | None, flag: str = FLAG
) -> str:
    """Return the model's device, as `prepare_device` does; the CPU by default for a file's own blocks.

    Raises ValueError or ImportError, before anything is loaded, for weights that this model cannot have there.

    flag: the command's name for them.
    """
    place = prepare_device(usual_device(quantization, device), threads)
    if quantization is not None:
        import torch

        check_quantization(quantization, file_or_folder(model), torch.device(place), dtype, flag)
    return place


@dataclass(frozen=True)
class Place:
    """Where a command's model runs, and its numbers."""

    dtype: DType = "auto"
    quantization: Quantized = None
    device: Device = None
    threads: Threads = None

    def prepare(self, model: str) -> str:
        """Return the model's device, see `prepare_place`."""
        return prepare_place(model, self.device, self.threads, self.dtype, self.quantization)

    def load(self, model: str, device: str) -> tuple[Any, Any]:
        """Return model and tokenizer."""
        from caw.models import load_model

        return load_model(model, device=device, dtype=self.dtype, quantization=self.quantization)


def check_second(model: str | None, device: str, dtype: str, quantization: str | None, flag: str, names: str) -> None:
    """Raise as `prepare_place` does, for a second model on the first one's device. ValueError if there is no second
    model.

    names: the option that names it.
    """
    if quantization is None:
        return
    if model is None:
        raise ValueError(f"{flag} is for the model given by {names}, got none; leave it out")
    import torch

    check_quantization(quantization, file_or_folder(model), torch.device(device), dtype, flag)
