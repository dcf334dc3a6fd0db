"""The evaluators that ship, by name, and which model each is for; without torch."""

import re
from pathlib import Path

from caw.defaults import BETA, BETA_BY_MODEL

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
UNIVERSAL = "universal-window00"  # for models without one of their own: it looks at no next position, so it is free


def plain_name(name: str | Path) -> str:
    """Return the last part of a hub id or path, lower case, without .gguf, quantization mark and "-instruct"."""
    last = str(name).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    return re.sub(r"[-._](i?q\d\w*|f16|f32|bf16|fp16)$", "", last).removesuffix("-instruct")


def shipped_for(model_name: str | Path) -> str | None:
    """Return the name of the shipped evaluator of a model given by hub id, folder or .gguf file; None without one."""
    plain = plain_name(model_name)
    return plain if plain in shipped() else None


def beta_for(model_name: str | Path) -> float:
    """Return the beta that suits evaluators of a model, given by any of its names."""
    return BETA_BY_MODEL.get(plain_name(model_name), BETA)


def shipped() -> list[str]:
    return sorted(p.stem for p in WEIGHTS_FOLDER.glob("*.safetensors"))
