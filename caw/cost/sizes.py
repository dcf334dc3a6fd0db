"""How much `caw benchmark` measures where its options leave it open."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Modes, cases, tokens and repetitions, as in `BenchmarkSettings`."""

    modes: tuple[str, ...] = ("default",)
    batches: tuple[int, ...] = (1,)
    prompts: tuple[int, ...] = (128,)
    tokens: int = 64
    rounds: int = 10
    memory: bool = True
    max_seconds: float | None = None


SIZES = {
    # an answer within two minutes on two cores: each policy's cost, and what a foreign decode and watermark cost
    "quick": Size(
        ("kgw", "kgw+caw", "unigram+caw", "exp+caw", "transformers", "transformers-kgw"),
        tokens=32, rounds=5, memory=False, max_seconds=45.0,
    ),
    "standard": Size(),
    "full": Size(("all",), batches=(1, 8), prompts=(128, 1024), tokens=200),
}  # fmt: skip
