"""Green lists that others draw with torch's CPU generator: torch.randperm(V)[:size] after manual_seed(seed).

Only the low 32 bits of a seed matter. Drawing a list takes about `size` draws, so lists are cached as bit sets, up to
`LIMIT` bytes: a repeated context, in any text, costs one lookup.
"""

from __future__ import annotations

import sys

import numpy as np

from caw import text_scores
from caw.arrays import ops, torch

LIMIT = 1 << 29  # bytes of cached lists; 80,000 lists of a 50k vocabulary
BLOCK = 1 << 26  # bytes of lists drawn at once
WORD = 32


class DrawnLists:
    """As `PermutationLists`, drawn on the seeds' device at every call, without cache: a CUDA graph can capture it."""

    def __init__(self, vocab_size: int, size: int) -> None:
        self.vocab_size, self.size = vocab_size, size

    def contains(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        flat, ids = seeds.reshape(-1).contiguous(), tokens.reshape(-1).contiguous()
        return ops.permutation_contains(flat, ids, self.vocab_size, self.size).reshape(seeds.shape)

    def masks(self, seeds: torch.Tensor, vocab_size: int, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """As `PermutationLists.masks`; all false where not wanted (bool [B]), which is nearly free."""
        sets = ops.permutation_green(seeds.contiguous(), self.vocab_size, self.size, wanted)
        return unpacked(sets, self.vocab_size, vocab_size)


def unpacked(sets: torch.Tensor, known: int, vocab_size: int) -> torch.Tensor:
    """Unpack sets of tokens below `known`, int32 [B, words], to bool [B, vocab_size]."""
    bits = (sets[:, :, None] >> torch.arange(WORD, dtype=torch.int32, device=sets.device)) & 1
    lists = bits.flatten(1)[:, :known].bool()
    return torch.nn.functional.pad(lists, (0, max(0, vocab_size - known)))[:, :vocab_size]


def draws_on_device(seeds: torch.Tensor) -> bool:
    """Return whether lists are drawn, and never cached, on the seeds' own device: a GPU with the CUDA extension."""
    return seeds.is_cuda and ops.has_kernel("permutation_contains", "cuda")


class PermutationLists:
    """Membership in the lists of one (V, size). keep: whether to cache them, which only repeated use pays for."""

    def __init__(self, vocab_size: int, size: int, keep: bool = True) -> None:
        self.vocab_size, self.size = vocab_size, size
        self.words = (vocab_size + WORD - 1) // WORD
        self.capacity = LIMIT // (4 * self.words) if keep else 0
        self.known: dict[int, np.ndarray] = {}

    def contains(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return bool: whether tokens int64 >= 0 are in the lists of seeds (same shape). Tokens >= V are in none."""
        if not isinstance(seeds, np.ndarray):
            drawn = DrawnLists(self.vocab_size, self.size)
            if draws_on_device(seeds):
                return drawn.contains(seeds, tokens)
            if not self.capacity:
                return drawn.contains(seeds.cpu(), tokens.cpu()).to(seeds.device)
            return torch.from_numpy(self.contains(seeds.cpu().numpy(), tokens.cpu().numpy())).to(seeds.device)
        flat, ids = seeds.reshape(-1), tokens.reshape(-1)
        if not self.capacity:  # to follow one token through the draws is a third of the work of drawing the list
            return text_scores.permutation_contains(flat, ids, self.vocab_size, self.size).reshape(seeds.shape)
        inside = ids < self.vocab_size
        ids = np.where(inside, ids, 0)
        unique, inverse = np.unique(flat, return_inverse=True)
        found = np.empty(len(flat), dtype=bool)
        block = max(1, BLOCK // (4 * self.words))
        for start in range(0, len(unique), block):
            here = np.flatnonzero((inverse >= start) & (inverse < start + block))
            word = self._lists(unique[start : start + block])[inverse[here] - start, ids[here] // WORD]
            found[here] = (word >> (ids[here] % WORD)) & 1 == 1
        return (found & inside).reshape(seeds.shape)

    def masks(self, seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the lists of seeds int64 [B] as bool [B, vocab_size]; false for ids >= V."""
        if draws_on_device(seeds):
            return DrawnLists(self.vocab_size, self.size).masks(seeds, vocab_size)
        unique, inverse = np.unique(seeds.cpu().numpy(), return_inverse=True)
        sets = torch.from_numpy(self._lists(unique)[inverse])
        return unpacked(sets, self.vocab_size, vocab_size).to(seeds.device)

    def _lists(self, seeds: np.ndarray) -> np.ndarray:
        """Return the lists of unique seeds [N], int32 [N, words]."""
        if seeds.shape[0] > self.capacity:
            return self._draw(seeds)
        wanted = seeds.tolist()
        new = [seed for seed in wanted if seed not in self.known]
        if len(self.known) + len(new) > self.capacity:
            self.known, new = {}, wanted
        if new:
            self.known.update(zip(new, self._draw(np.array(new)), strict=True))
        return np.stack([self.known[seed] for seed in wanted])

    def _draw(self, seeds: np.ndarray) -> np.ndarray:
        if "caw.ops" in sys.modules:  # on several threads, which marking wants
            return ops.permutation_green(torch.from_numpy(seeds), self.vocab_size, self.size).numpy()
        return text_scores.permutation_green(seeds, self.vocab_size, self.size)
