"""What transformers' and MarkLLM's own classes do a token; `MarkLLMPath` does the steps where it is missing."""

import importlib
import importlib.metadata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from transformers import WatermarkDetector
from transformers.generation import WatermarkLogitsProcessor

KEY, GAMMA, DELTA = 15_485_863, 0.25, 2.0

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (ids [1, T], scores [1, V]) -> scores
Read = Callable[[torch.Tensor], Any]  # ids [T] -> their score


def transformers_step(vocab_size: int, seeding: str) -> Step:
    """The logits processor of `generate(watermarking_config=...)`."""
    width = 4 if seeding == "selfhash" else 1
    return WatermarkLogitsProcessor(vocab_size, "cpu", GAMMA, DELTA, KEY, seeding, width)


def transformers_read(vocab_size: int, seeding: str) -> Read:
    """The detector of transformers; ids [T] -> z score."""
    config: Any = SimpleNamespace(vocab_size=vocab_size, bos_token_id=-1, is_encoder_decoder=False)
    width = 4 if seeding == "selfhash" else 1
    settings = {"greenlist_ratio": GAMMA, "bias": DELTA, "hashing_key": KEY, "seeding_scheme": seeding}
    settings["context_width"] = width
    detector = WatermarkDetector(config, "cpu", settings)
    return lambda ids: detector(ids[None], return_dict=True).z_score


class MarkLLMPath:
    """The per-token steps of MarkLLM 0.1.5's KGW (window left, scheme time): reseed, permute, mask, add."""

    def __init__(self, config: Any) -> None:
        self.config, self.rng = config, torch.Generator().manual_seed(config.hash_key)
        self.prf = torch.randperm(config.vocab_size, generator=self.rng)

    def green(self, ids: torch.Tensor) -> torch.Tensor:
        size = self.config.vocab_size
        self.rng.manual_seed(self.config.hash_key * int(self.prf[int(ids[-1]) % size]) % size)
        return torch.randperm(size, generator=self.rng)[: int(size * self.config.gamma)]

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(scores)
        for row, sequence in enumerate(ids):
            mask[row][self.green(sequence)] = 1
        where = mask.bool()
        scores[where] = scores[where] + self.config.delta
        return scores

    def score_sequence(self, ids: torch.Tensor) -> tuple[float, list[int]]:
        flags = [int(bool(ids[i] in self.green(ids[:i]))) for i in range(1, len(ids))]
        expected, scored = self.config.gamma, len(flags)
        return (sum(flags) - expected * scored) / (scored * expected * (1 - expected)) ** 0.5, flags


def markllm(vocab_size: int) -> tuple[str, Step, Read]:
    """(name of the row, step, reader) of MarkLLM's KGW, or of the same path written here."""
    config = SimpleNamespace(
        gamma=GAMMA, delta=DELTA, hash_key=KEY, z_threshold=4.0, prefix_length=1, f_scheme="time",
        window_scheme="left", vocab_size=vocab_size, device="cpu",
    )  # fmt: skip
    try:
        module = importlib.import_module("markllm.watermark.kgw.kgw")
    except ImportError:
        path = MarkLLMPath(config)
        return "MarkLLM's path (not installed)", path, path.score_sequence
    utils = module.KGWUtils(config)
    name = f"MarkLLM {importlib.metadata.version('markllm')}"
    return name, module.KGWLogitsProcessor(config, utils), utils.score_sequence
