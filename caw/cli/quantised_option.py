"""`--quantised`: weights of fewer bits, one option for every command that runs a model; `quantised` in a config."""

from __future__ import annotations

from typing import Annotated, Any

from caw.cli.options import RUNNING, panel, prepare_device
from caw.models.quantised_choice import FILE_WEIGHTS, GPU_WEIGHTS, check_quantised, usual_device
from caw.models.sources import file_or_folder

FLAG = "--quantised"
HELP = (
    "Weights of 4 to 8 bits: a .gguf file's own blocks on a CPU (file; file-fast rounds inputs as well), others "
    "rounded while they load (fp8 on a GPU alone) [as --dtype says]."
)


def quantised_option(title: str = RUNNING, *more: str, remark: str = "") -> Any:
    """The option in the panel of this title. more: other names of it."""
    return panel(title, HELP + remark, FLAG, *more, metavar="|".join((*FILE_WEIGHTS, *GPU_WEIGHTS)))


def second_option(model: str, flag: str, title: str = RUNNING) -> Any:
    """The option for a second model of a command, which `model` names."""
    said = f"Weights of fewer bits, as of other commands' --quantised, for the model that {model} names."
    return panel(title, said, flag, metavar="|".join((*FILE_WEIGHTS, *GPU_WEIGHTS)))


Quantised = Annotated[str | None, quantised_option()]
DRAFTER_FLAG = "--drafter-quantised"
DrafterQuantised = Annotated[str | None, second_option("--speculate", DRAFTER_FLAG)]


def prepare_place(
    model: str, device: str | None, threads: int | None, dtype: str, quantised: str | None, flag: str = FLAG
) -> str:
    """The device that a model runs on, as `prepare_device` says; a CPU for blocks of a file if none is named.

    Raises ValueError or ImportError, before anything is loaded, for weights that this model cannot have there.
    flag: what the command calls them.
    """
    place = prepare_device(usual_device(quantised, device), threads)
    if quantised is not None:
        import torch

        check_quantised(quantised, file_or_folder(model), torch.device(place), dtype, flag)
    return place


def check_second(model: str | None, device: str, dtype: str, quantised: str | None, flag: str, names: str) -> None:
    """Raise as `prepare_place` does for a second model on the first one's device; ValueError if there is none.

    names: the option that names it.
    """
    if quantised is None:
        return
    if model is None:
        raise ValueError(f"{flag} is for a model that {names} names, found none; leave it out")
    import torch

    check_quantised(quantised, file_or_folder(model), torch.device(device), dtype, flag)
