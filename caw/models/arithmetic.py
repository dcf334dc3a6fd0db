"""Numeric formats and rounding: what determines a text besides its prompt and settings."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.models.device import resolve_dtype
from caw.models.quantization import usual_weights
from caw.models.sources import file_or_folder

if TYPE_CHECKING:  # takes seconds to import
    import torch

INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Arithmetic:
    """Numeric formats and rounding of a model on a device.

    dtype: of its plain numbers. quantized: `weights` of `load_model`, None = plain numbers.
    arithmetic: the processor as far as texts depend on it. None in plain float32, where texts are the same on every
    machine but for near ties.
    """

    dtype: str
    quantization: str | None
    arithmetic: str | None

    @classmethod
    def of(
        cls, model: str | Path, device: torch.device, dtype: str | torch.dtype = "auto", weights: str | None = None
    ) -> Arithmetic:
        """Return the arithmetic of `load_model` with these arguments, without loading; raises as it does."""
        if weights is None:
            with warnings.catch_warnings():  # loading says it
                warnings.simplefilter("ignore")
                weights = usual_weights(file_or_folder(model), device, dtype)
        on_blocks = weights is not None and device.type == "cpu"
        name = "float32" if on_blocks else str(resolve_dtype(dtype, device)).removeprefix("torch.")
        plain = weights is None and name == "float32"
        return cls(name, weights, None if plain else processor_of(device))

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


def processor_of(device: torch.device) -> str:
    """Return what determines rounding: a GPU's name, or the CPU instructions that this library's products use."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device.type)
    from caw import ops

    if ops.missing_extension():
        return f"{platform.machine()} torch"
    try:
        flags = re.search(r"^flags\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    known = set(flags[1].split()) if flags else set()
    asked = os.environ.get("CAW_CPU_ISA")
    chosen = [f"CAW_CPU_ISA={asked}"] if asked else []
    return " ".join([platform.machine(), *(name for name in INSTRUCTIONS if name in known), *chosen])


def model_digest(model: Any, tokenizer: Any) -> str:
    """Return SHA-256, in hex, of a model's weights (a sample of each tensor), settings, end tokens and vocabulary."""
    from caw.models.fingerprint import fingerprint

    config = {name: value for name, value in model.config.to_dict().items() if name not in ("transformers_version",)}
    config = {name: value for name, value in config.items() if not name.startswith("_")}
    said = [
        fingerprint(model),
        config,
        model.generation_config.eos_token_id,
        tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))),
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
