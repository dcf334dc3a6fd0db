"""Unigram: one green list for every position (Zhao et al. 2023, arXiv 2306.17439).

Native format: green iff (PRF(key derived for domain `caw/unigram`, empty context, token) >> 8) < floor(gamma 2^24).
Each distinct token of a text is evidence once.

Format "markllm": MarkLLM's mask, int(gamma V) times True shuffled by NumPy's PCG64; see `formats.numpy_mask`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from caw import prf
from caw.arrays import torch
from caw.watermarks.formats.numpy_mask import MaskList
from caw.watermarks.green_list import FormattedList, GreenScheme
from caw.watermarks.kgw import LeftHash

DOMAIN = b"caw/unigram"


class OneList(LeftHash):
    """The same green list after every context."""

    def words(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return prf.token_word(self.keys[0], prf.absorb_context(self.keys[0], []), tokens)

    def vocabulary_words(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        return self.words(context, torch.arange(vocab_size, device=context.device)).expand(context.shape[0], -1)


@dataclass(frozen=True)
class Unigram(FormattedList):
    """One fixed green list: the most robust to edits, and the easiest to learn from outputs.

    Args:
        key: int below 2^64, text or bytes.
        gamma: share of the vocabulary that is green, in (0, 1).
        delta: number that strength 1 adds to the logits of green tokens.
        format: "native" or "markllm".
        vocab_size: size of the model's logits, over which MarkLLM shuffles a mask. `generate` fills it in.
        subkeys: V, in [1, 1024]: sub-keys that a detector tries, corrected for their number. Texts are marked with
            sub-key 0, the key itself, so a detector with more sub-keys reads them too. Native format.
        subkey: the sub-key in [0, subkeys) that marks; with subkeys=1 any up to 1023, which a detector reads alone.

    Raises TypeError or ValueError naming the argument.
    """

    format: str = "native"
    vocab_size: int | None = None
    subkeys: int = 1
    subkey: int = 0

    name: ClassVar[str] = "unigram"

    def validate(self) -> None:
        super().validate()
        self.require_format("markllm")
        self.check_subkeys()
        _ = self.scheme  # refuses what does not go together

    @cached_property
    def scheme(self) -> GreenScheme:
        if self.format == "native":
            return OneList(self.secret, DOMAIN, self.gamma, width=0, subkey=self.subkey)
        return MaskList(self.format, self.secret, self.gamma, self.vocab_size)
