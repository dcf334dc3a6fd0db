"""Green lists in the formats of other systems; their seeds are in `rules`."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from caw.arrays import clamped, float64, ops, space_of, torch
from caw.checks import require_int
from caw.watermarks.base import MISSING, Position, TokenScores, contexts_of
from caw.watermarks.formats import sbw
from caw.watermarks.formats.foreign import ForeignScheme, require_two_lists
from caw.watermarks.formats.lists import DrawnLists, PermutationLists
from caw.watermarks.formats.rules import NGRAMS_ONCE, SeedRule
from caw.watermarks.green_list import GreenScheme, first_green

MAX_WIDTH = 64
LISTS: WeakValueDictionary[tuple[int, int, bool], PermutationLists] = WeakValueDictionary()  # as long as one is in use
TESTED_AT_ONCE = 8  # a list costs some 0.1 ms, and one test in 1 / gamma finds a green token


class ForeignLists(ForeignScheme, GreenScheme):
    """The lists of one seed rule, key, gamma and vocabulary; see `KGW` for the parameters.

    needed: number of tokens before a position that this system's detector requires.
    """

    _table: Any = None  # where a placed scheme keeps it

    def __init__(
        self, format_name: str, rule: SeedRule, secret: int, gamma: float, width: int | None, size: int | None
    ) -> None:
        self.rule, self.gamma, self.width = rule, gamma, rule.width if width is None else width
        require_int("context_width", self.width, 1, MAX_WIDTH)
        require_two_lists(gamma, size)
        if size is not None and rule.modulo and secret % size == 0:
            raise ValueError(
                f"format {format_name!r} takes keys modulo vocab_size, got a multiple of {size}, with which all "
                "contexts have the same list; use another key"
            )
        self.needed = self.width - rule.salted
        super().__init__(format_name, secret, self.width, size)

    @property
    def table(self) -> np.ndarray | torch.Tensor:
        """The table that the rule looks seeds up in, int64; empty for rules without one.

        Not cached: a detector may try thousands of keys, and some systems draw a megabyte for each.
        """
        if self._table is not None:
            return self._table
        rule = self.rule.table
        return np.empty(0, dtype=np.int64) if rule is None else rule(self.keys[0], self.vocab_size)

    @cached_property
    def lists(self) -> PermutationLists | DrawnLists:
        """One object for all keys: a key changes seeds, and a seed has one list."""
        shape = self.vocab_size, int(self.vocab_size * self.gamma), not self.rule.salted
        return LISTS.get(shape) or LISTS.setdefault(shape, PermutationLists(*shape))

    def placed(self, device: torch.device) -> ForeignLists | None:
        if not (self.rule.philox or device.type != "cuda" or ops.has_kernel("permutation_contains", "cuda")):
            return None
        other = copy.copy(self)
        other._table = torch.as_tensor(self.table).to(device)
        if not self.rule.philox:
            other.lists = DrawnLists(self.lists.vocab_size, self.lists.size)
        return other

    @property
    def fraction(self) -> float:
        """Share of the vocabulary in a list."""
        return sbw.green_fraction(self.gamma) if self.rule.philox else self.lists.size / self.vocab_size

    def seeds(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return seeds int64 [B, N] of tokens [B, N] after contexts [B, W]; meaningless for missing tokens (0)."""
        used = clamped(context[:, context.shape[1] - self.needed :])
        found = self.rule.seeds(self.keys[0], self.vocab_size, used, clamped(tokens), self.table)
        return space_of(tokens).broadcast_to(found, tokens.shape)

    def marks(self, context: torch.Tensor) -> torch.Tensor:
        """Return whether the system marks after contexts [B, W] (it requires `width` tokens before), bool [B]."""
        if self.rule.pads:
            return context[:, 0] == context[:, 0]
        return (context[:, context.shape[1] - self.width :] != MISSING).all(1)

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        inside = (tokens >= 0) & (tokens < self.vocab_size)
        seeds = self.seeds(context, tokens)
        return self._member(seeds, clamped(tokens)) & inside & self.marks(context)[:, None]

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """Return the lists after contexts [B, W], bool [B, vocab_size]; false where the system marks nothing."""
        if self.rule.salted or self.rule.philox:
            tokens = torch.arange(vocab_size, device=context.device).expand(context.shape[0], -1)
            return self.green_tokens(context, tokens)
        masks = self.lists.masks(self.seeds(context, context[:, -1:])[:, 0], vocab_size)
        return masks & self.marks(context)[:, None]

    def green_wanted(self, context: torch.Tensor, vocab_size: int, wanted: torch.Tensor) -> torch.Tensor:
        if not isinstance(self.lists, DrawnLists):
            return self.green_vocabulary(context, vocab_size)
        masks = self.lists.masks(self.seeds(context, context[:, -1:])[:, 0], vocab_size, wanted)
        return masks & self.marks(context)[:, None]

    def score_ref(self, ids: torch.Tensor) -> TokenScores:
        contexts, tokens = contexts_of(ids, self.window), ids[:, None]
        known = (contexts[:, contexts.shape[1] - self.needed :] != MISSING).all(1) & (ids != MISSING)
        seeds, space = 0 * ids, space_of(ids)
        values = float64(seeds)
        seeds[known] = self.seeds(contexts[known], tokens[known])[:, 0]
        values[known] = float64(self._member(seeds[known], ids[known]))
        ngrams = space.concatenate([contexts[:, contexts.shape[1] - self.needed :], tokens], 1)
        return TokenScores(
            values=values,
            evidence=space.stack([seeds, ids], 1),
            scored=known,
            keyless=None if self.rule.keyless is None else seeds == self.rule.keyless,
            compat_evidence=ngrams if self.format_name in NGRAMS_ONCE else None,
        )

    def _member(self, seeds: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        if self.rule.philox:
            return sbw.green(seeds, tokens, self.gamma)
        return self.lists.contains(seeds, tokens)


class TestedLists(ForeignLists):
    """Lists that test only the likeliest tokens before sampling noise; ties go to the smaller id, unlike in a sort."""

    def likeliest_green(
        self, position: Position, delta: float, max_strength: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ids, values, could_win = self._within_reach(position, delta, max_strength)
        if position.fixed:
            return first_green(ids, values, self.green_tokens(position.context, ids) & could_win)
        token = torch.full_like(ids[:, 0], -1)
        logit = torch.full_like(values[:, 0], -torch.inf)
        for start in range(0, ids.shape[1], TESTED_AT_ONCE):
            part = slice(start, start + TESTED_AT_ONCE)
            rows = ((token < 0) & could_win[:, part].any(dim=1)).nonzero()[:, 0]
            if not rows.numel():
                break
            green = self.green_tokens(position.context[rows], ids[rows, part]) & could_win[rows, part]
            token[rows], logit[rows] = first_green(ids[rows, part], values[rows, part], green)
        return token, logit

    def _within_reach(
        self, position: Position, delta: float, max_strength: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return `_tested`, and whether each token would win if it were green, bool [B, N]."""
        ids, values = self._tested(position)
        limit = torch.full_like(values[:, :1], max_strength)
        return ids, values, (values > -torch.inf) & (values + limit * delta >= position.record.values[:, :1])

    def _tested(self, position: Position) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens tested, int64 [B, N], and their logits with the noise, the greatest first."""
        record, count = position.record, min(self.rule.tested, position.scores.shape[1])
        if position.warped is None or position.warped is position.scores:
            return record.ids[:, :count], record.values[:, :count]
        ids = ops.topk_softmax(position.warped.contiguous(), count)[1]
        # the best perturbed logit first, ties to the smaller id
        ids = ids.sort(dim=1).values
        values, order = position.scores.gather(1, ids).float().sort(dim=1, descending=True, stable=True)
        return ids.gather(1, order), values
