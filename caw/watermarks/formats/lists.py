"""Green lists that others draw with torch's CPU generator: torch.randperm(V)[:size] after manual_seed(seed).

Only the low 32 bits of a seed matter. Drawing a list takes about `size` draws, so lists are cached as bit sets, up to
`LIMIT` bytes: a repeated context, in any text, costs one lookup.
"""

from __future__ import annotations

import torch

from caw import ops

LIMIT = 1 << 29  # bytes of cached lists; 80,000 lists of a 50k vocabulary
BLOCK = 1 << 26  # bytes of lists drawn at once
WORD = 32


class DrawnLists:
    """Membership in the lists of `PermutationLists`, drawn on the seeds' device at every call.

    Nothing is cached or read back, so a CUDA graph can capture the calls.
    """

    def __init__(self, vocab_size: int, size: int) -> None:
        self.vocab_size, self.size = vocab_size, size

    def contains(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """As `PermutationLists.contains`."""
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
    """Return whether lists are drawn on the seeds' own device, a GPU with the CUDA extension. Nothing is cached
    there.
    """
    return seeds.is_cuda and ops.has_kernel("permutation_contains", "cuda")


class PermutationLists:
    """Membership in the lists of one (vocab_size, size). Mutates only its own cache.

    Args:
        vocab_size: V. size: entries of a list. keep: whether to cache lists; not worth it if each is used once.
    """

    def __init__(self, vocab_size: int, size: int, keep: bool = True) -> None:
        self.vocab_size, self.size = vocab_size, size
        self.words = (vocab_size + WORD - 1) // WORD
        self.capacity = LIMIT // (4 * self.words) if keep else 0
        self.known = torch.empty(0, dtype=torch.int64)  # sorted seeds, and the row of each in `rows`
        self.places = torch.empty(0, dtype=torch.int64)
        self.rows = torch.empty(0, self.words, dtype=torch.int32)

    def contains(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return whether tokens (int64, any shape, >= 0) are in the lists of seeds (int64, same shape), as bool.

        Tokens >= V are in no list.
        """
        if draws_on_device(seeds):
            return DrawnLists(self.vocab_size, self.size).contains(seeds, tokens)
        device = seeds.device
        flat, ids = seeds.reshape(-1).cpu(), tokens.reshape(-1).cpu()
        if not self.capacity:  # to follow one token through the draws is a third of the work of drawing the list
            found = ops.permutation_contains(flat, ids, self.vocab_size, self.size)
            return found.reshape(seeds.shape).to(device)
        inside = ids < self.vocab_size
        ids = torch.where(inside, ids, 0)
        unique, inverse = torch.unique(flat, return_inverse=True)
        found = torch.empty(flat.shape[0], dtype=torch.bool)
        block = max(1, BLOCK // (4 * self.words))
        for start in range(0, unique.shape[0], block):
            here = ((inverse >= start) & (inverse < start + block)).nonzero()[:, 0]
            rows, place = self._lists(unique[start : start + block])
            word = rows[place[inverse[here] - start], ids[here] // WORD]
            found[here] = (word >> (ids[here] % WORD)) & 1 == 1
        return (found & inside).reshape(seeds.shape).to(device)

    def masks(self, seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the lists of seeds int64 [B] as bool [B, vocab_size]; false for ids >= V."""
        if draws_on_device(seeds):
            return DrawnLists(self.vocab_size, self.size).masks(seeds, vocab_size)
        unique, inverse = torch.unique(seeds.cpu(), return_inverse=True)
        rows, place = self._lists(unique)
        return unpacked(rows[place][inverse], self.vocab_size, vocab_size).to(seeds.device)

    def _lists(self, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (table of lists int32 [*, words], row of each seed in it) for sorted unique seeds [N]."""
        if not self.capacity:
            return self._draw(seeds), torch.arange(seeds.shape[0])
        at = torch.searchsorted(self.known, seeds).clamp(max=max(0, self.known.shape[0] - 1))
        fresh = self.known[at] != seeds if self.known.shape[0] else torch.ones_like(seeds, dtype=torch.bool)
        new = seeds[fresh]
        if self.known.shape[0] + new.shape[0] > self.capacity:
            self.known, self.places, self.rows = self.known[:0], self.places[:0], self.rows[:0]
            if seeds.shape[0] > self.capacity:
                return self._draw(seeds), torch.arange(seeds.shape[0])
            new = seeds
        if new.shape[0]:
            self._keep(new)
        return self.rows, self.places[torch.searchsorted(self.known, seeds)]

    def _keep(self, new: torch.Tensor) -> None:
        used = self.known.shape[0]
        if used + new.shape[0] > self.rows.shape[0]:
            room = min(self.capacity, max(used + new.shape[0], 2 * self.rows.shape[0]))
            grown = torch.empty(room, self.words, dtype=torch.int32)
            grown[:used] = self.rows[:used]
            self.rows = grown
        self.rows[used : used + new.shape[0]] = self._draw(new)
        known = torch.cat([self.known, new])
        self.known, order = known.sort()
        self.places = torch.cat([self.places, torch.arange(used, used + new.shape[0])])[order]

    def _draw(self, seeds: torch.Tensor) -> torch.Tensor:
        return ops.permutation_green(seeds, self.vocab_size, self.size)
