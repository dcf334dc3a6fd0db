"""Where a command's model runs and with which numbers: one set of options for every command that runs a model."""

from dataclasses import dataclass
from typing import Any

from caw.flags import RUNNING, flag
from caw.models.device import DTYPES, resolve_device
from caw.models.quantization import FILE_WEIGHTS, GPU_WEIGHTS, check_quantization, usual_device
from caw.models.sources import file_or_folder

FLAG, CHOICES = "--quantization", "|".join((*FILE_WEIGHTS, *GPU_WEIGHTS))


@dataclass(frozen=True)
class Place:
    """Options of a model that a command loads."""

    dtype: str = flag("auto", "Data type of the model.", RUNNING, metavar="auto|" + "|".join(DTYPES))
    quantization: str | None = flag(
        None, "Quantized model weights, 4 to 8 bits: file keeps a .gguf file's blocks, on a CPU (file-fast also rounds "
        "inputs); fp8 (GPU only), int8 and int4 quantize while loading [no quantization].", RUNNING, metavar=CHOICES,
    )  # fmt: skip
    device: str | None = flag(None, "Device: cpu, cuda, cuda:1, ... [cuda if available].", RUNNING)
    threads: int | None = flag(None, "CPU threads [all cores].", RUNNING, min=1)

    def prepare(self, model: str) -> str:
        """Set the threads; return the device, a CPU for a file's blocks by default. ValueError, ImportError early."""
        set_threads(self.threads)
        device = str(resolve_device(usual_device(self.quantization, self.device)))
        if self.quantization is not None:
            import torch

            check_quantization(self.quantization, file_or_folder(model), torch.device(device), self.dtype, FLAG)
        return device

    def load(self, model: str, device: str) -> tuple[Any, Any]:
        from caw.models.load import load_for_command

        return load_for_command(model, device=device, dtype=self.dtype, quantization=self.quantization)


def set_threads(threads: int | None) -> None:
    """Set the number of CPU threads; None leaves it unchanged."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
