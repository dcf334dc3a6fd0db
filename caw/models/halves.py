"""Checkpoints of 16 bits whose matrices stay as they are beside float32: `dtype="float32-sums"`, half the bytes.

Widening bfloat16 or float16 is exact and products sum in the order of float32 ones, so texts are those of the float32
model, token by token.
"""

from pathlib import Path
from typing import Any

import torch

from caw.models.huge_pages import HugePages, forget
from caw.models.quantized import HalfEmbedding, HalfLinear, replace_matrices

# whose layers run as one operator, which takes such matrices beside norms of float32
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "granite", "phi3", "gemma", "gemma2", "gemma3_text")
STORED = {"BF16": torch.bfloat16, "F16": torch.float16}  # by safetensors' names


def can_keep(model: Any) -> bool:
    """Tell whether the matrices of a model, loaded in 16 bits, may stay beside float32."""
    # what is worked out, not stored, must not have been so in less precision; embeddings get their scale anew
    worked_out = [b for name, b in model.named_buffers() if b.is_floating_point() and not name.endswith("embed_scale")]
    return model.config.model_type in KNOWN and all(b.dtype == torch.float32 for b in worked_out)


def stored_half(source: str) -> torch.dtype | None:
    """Return the 16-bit dtype of all tensors of a folder or a hub's local copy; else, and by an adapter, None."""
    from huggingface_hub import snapshot_download
    from safetensors import safe_open

    folder = Path(source) if Path(source).is_dir() else Path(snapshot_download(source, local_files_only=True))
    if (folder / "adapter_config.json").exists():
        return None  # an adapter asks the layers that it changes for their weights
    found = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {STORED.get(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118
    return found.pop() if len(found) == 1 else None


def keep_halves(model: Any) -> Any:
    """Put the matrices of linear layers and embeddings into huge pages, in place; everything else becomes float32."""
    pages = HugePages()

    def copied(weight: torch.Tensor, table: bool) -> torch.Tensor:
        own = pages.copy(weight)
        forget(weight)
        return own

    model.stands_for_float32 = True
    return replace_matrices(
        model, HalfLinear, HalfEmbedding, lambda part: isinstance(part, (torch.nn.Linear, torch.nn.Embedding)), copied
    )
