"""How an evaluation's texts are generated: the `generation` part of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caw.watermarks.base import require_int


@dataclass(frozen=True)
class GenerationSpec:
    """As in `caw.generate`."""

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    batch_size: int = 8
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    chat: bool = False
    mark_eos: bool | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size"):
            require_int(f"generation.{name}", getattr(self, name), 1, 1 << 20)
        if not isinstance(self.mark_eos, bool | None):
            raise ValueError(f"generation.mark_eos must be true or false, got {self.mark_eos!r}; leave it out")

    @property
    def of_text(self) -> dict[str, Any]:
        """The settings that all texts depend on, marked or not."""
        sampling = ("temperature", "top_k", "top_p", "seed") if self.do_sample else ()
        names = ("max_new_tokens", "min_new_tokens", "do_sample", "chat", *sampling)
        return {name: getattr(self, name) for name in names}
