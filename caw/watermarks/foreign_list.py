"""Green lists in the formats of other systems: what KGW needs beyond its native format."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from caw import ops
from caw.checks import require_int
from caw.triton_kernels.ladder_ref import Ladder, reweight_ladder
from caw.watermarks.base import Position, VocabularyBound, require_foreign_key
from caw.watermarks.formats import ForeignLists, SeedRule, find_rule
from caw.watermarks.green_list import GreenList

MAX_VOCABULARY = (1 << 31) - 1
FOREIGN_WIDTH = 64
TESTED_AT_ONCE = 8  # a list costs some 0.1 ms, and one test in 1 / gamma finds a green token


@dataclass(frozen=True)
class ForeignGreenList(VocabularyBound, GreenList):
    """A green-list watermark that other systems know too; for the fields see `KGW`."""

    seeding: str = "lefthash"
    context_width: int | None = None
    format: str = "native"
    vocab_size: int | None = None
    payload: int | None = None
    payload_bits: int = 0

    @property
    def foreign(self) -> bool:
        return self.format != "native"

    @property
    def reads_prompt(self) -> bool:
        return self.foreign

    def validate_foreign(self, rule: SeedRule) -> None:
        """Raise ValueError for parameters that the format cannot have; fills in its context width."""
        if self.context_width is None:
            object.__setattr__(self, "context_width", rule.width)
        require_int("context_width", self.context_width, 1, FOREIGN_WIDTH)
        if self.vocab_size is not None:
            require_int("vocab_size", self.vocab_size, 2, MAX_VOCABULARY)
            if not 0 < int(self.vocab_size * self.gamma) < self.vocab_size:
                raise ValueError(
                    f"gamma must leave both lists of {self.vocab_size} tokens non-empty, got {self.gamma!r}; use 0.25"
                )
            if rule.modulo and self.secret % self.vocab_size == 0:
                raise ValueError(
                    f"format {self.format!r} takes keys modulo vocab_size, got a multiple of {self.vocab_size}, with "
                    "which all contexts share one list that no key changes; use another key"
                )
        require_foreign_key(self.format, self.secret)

    @cached_property
    def lists(self) -> ForeignLists:
        """The lists of this format; ValueError without vocab_size."""
        self.check_readable()
        assert self.vocab_size is not None and self.context_width is not None
        rule = find_rule(self.format, self.seeding)
        return ForeignLists(rule, self.secret, self.gamma, self.vocab_size, self.context_width)

    @property
    def green_fraction(self) -> float:
        """Probability that a token is green under the null hypothesis."""
        return self.lists.green_fraction if self.foreign else super().green_fraction

    def tested_ladder(self, position: Position, max_strength: float) -> Ladder:
        """The ladder of formats that test only the likeliest tokens of the row before sampling noise.

        Ties among them go to the smaller id; transformers' sort leaves their order open.
        """
        record, lists = position.record, self.lists
        count = min(lists.rule.tested, position.scores.shape[1])
        if position.warped is None or position.warped is position.scores:
            ids, values = record.ids[:, :count], record.values[:, :count]
        else:
            ids = ops.topk_softmax(position.warped.contiguous(), count)[1]
            # the best perturbed logit first, ties to the smaller id
            ids = ids.sort(dim=1).values
            values, order = position.scores.gather(1, ids).float().sort(dim=1, descending=True, stable=True)
            ids = ids.gather(1, order)
        limit = torch.tensor(max_strength, dtype=torch.float32, device=values.device)
        could_win = (values > -torch.inf) & (values + limit * self.full >= record.values[:, :1])
        token = torch.full_like(ids[:, 0], -1)
        logit = torch.full_like(values[:, 0], -torch.inf)
        for start in range(0, count, TESTED_AT_ONCE):
            part = slice(start, start + TESTED_AT_ONCE)
            rows = ((token < 0) & could_win[:, part].any(dim=1)).nonzero()[:, 0]
            if not rows.numel():
                break
            green = lists.green(position.context[rows], ids[rows, part]) & could_win[rows, part]
            first = green.int().argmax(dim=1, keepdim=True)
            found = green.any(dim=1)
            token[rows] = torch.where(found, ids[rows, part].gather(1, first)[:, 0], -1)
            logit[rows] = torch.where(found, values[rows, part].gather(1, first)[:, 0], -torch.inf)
        return reweight_ladder(record.ids[:, 0], record.values[:, 0], token, logit, self.full, max_strength)
