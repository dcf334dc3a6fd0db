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


Quantised = Annotated[str | None, quantised_option()]


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
