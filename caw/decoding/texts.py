"""State of B texts between two tokens, without model and cache: tokens, settings, draws, evidence.

Every tensor is updated in place: a captured step reads and writes the same addresses again and again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.evidence import Evidence
from caw.decoding.penalties import Penalties
from caw.decoding.request import Request
from caw.decoding.row_marks import within
from caw.decoding.sampling import noise_key
from caw.defaults import FREE_TOKENS
from caw.record import Rows
from caw.settings import Drawn
from caw.watermarks import Watermark
from caw.watermarks.base import MISSING

NO_TOKEN = -1


@dataclass
class Texts(Rows):
    """B rows, each with a text or empty.

    padded_tokens: int64 [B, W + N]; W leading -1 (or the prompt's last tokens, for watermarks that read them), then the
        generated tokens, -1 beyond.
    counts: int64 [B], tokens generated. budgets: int64 [B], maximum of them. active: bool [B].
    streams: int64 [B, 2], of the sampling noise, see `sampling`.
    spent: float64 [B], surprisal in nats of the tokens of a free beginning, see `in_beginning`. free_counts: int64 [B],
        how many these are. open_counts: int64 [B], positions of the new tokens at which the mark had a choice.
    refused: float32 [B], the first strength of the text that its policy must not give (NaN, below 0, beyond its
        maximum); 0 where there was none.

    Settings of each text, as a step reads them:

    sampled: bool [B]. races: bool [B], rows whose watermark races at full strength where its policy lets it.
    noise_keys: int64 [B], of the sampling noise.
    temperatures: float32 [B]. top_ks: int64 [B], 0 = all tokens. tails: float32 [B], 1 - top_p; -1 = nothing is cut.
    floors: float32 [B], of min-p, 0 = nothing is cut. minima: int64 [B], new tokens before an end token may come.
    ends: int64 [B, M], tokens that end the text; a row with fewer repeats its first one, a row with none has -1.
    row_factors: float32 [B], factors of strengths. margins: float64 [B], added to the z that a target needs.
    keys: int64 [B], the 64 bits of the native key; 0 where the format has none.
    beginnings: float64 [B], nats after which the key begins to draw; 0 = at the first token.
    marks: B watermarks, on the host: a row's key where only PyTorch code serves the format; None without a text.

    window: W. evidence: what the texts have shown so far; None without a target.
    penalties: bias and penalties of each text; None where none may have any.
    """

    padded_tokens: torch.Tensor
    counts: torch.Tensor
    budgets: torch.Tensor
    active: torch.Tensor
    streams: torch.Tensor
    spent: torch.Tensor
    free_counts: torch.Tensor
    open_counts: torch.Tensor
    refused: torch.Tensor
    sampled: torch.Tensor
    races: torch.Tensor
    noise_keys: torch.Tensor
    temperatures: torch.Tensor
    top_ks: torch.Tensor
    tails: torch.Tensor
    floors: torch.Tensor
    minima: torch.Tensor
    ends: torch.Tensor
    row_factors: torch.Tensor
    margins: torch.Tensor
    keys: torch.Tensor
    beginnings: torch.Tensor
    marks: list[Watermark | None]
    window: int
    evidence: Evidence | None = None
    penalties: Penalties | None = None

    @classmethod
    def empty(
        cls, batch: int, window: int, room: int, device: torch.device, ends: int = 0, evidence: Evidence | None = None,
        penalties: Penalties | None = None,
    ) -> "Texts":  # fmt: skip
        """Make B = batch rows without a text; room: N, maximum tokens of one. ends: maximum end tokens of one."""
        shapes = {"ends": (batch, ends), "streams": (batch, 2)}
        tensors = {
            name: torch.full(shapes.get(name, (batch,)), value, dtype=dtype, device=device)
            for name, (dtype, value) in EMPTY.items()
        }
        padded = torch.full((batch, window + room), MISSING, dtype=torch.int64, device=device)
        marks: list[Watermark | None] = [None] * batch
        return cls(padded, **tensors, marks=marks, window=window, evidence=evidence, penalties=penalties)

    @property
    def batch(self) -> int:
        return self.counts.shape[0]

    @property
    def room(self) -> int:
        """N."""
        return self.padded_tokens.shape[1] - self.window

    @property
    def made(self) -> torch.Tensor:
        """The generated tokens, int64 [B, N], -1 beyond."""
        return self.padded_tokens[:, self.window :]

    @property
    def factors(self) -> torch.Tensor:
        """Factors of the next tokens' strengths, float32 [B]."""
        return self.row_factors if self.evidence is None else self.evidence.factors

    def in_beginning(self) -> torch.Tensor:
        """Tell which texts are in their free beginning, whose tokens the key does not draw, bool [B]."""
        return self.active & (self.spent < self.beginnings) & (self.free_counts < FREE_TOKENS)

    def counts_of(self, row: int) -> tuple[int, int, float]:
        """(open positions, tokens of the free beginning, its nats so far; inf = it is over, or there was none)."""
        spent, free = float(self.spent[row]), int(self.free_counts[row])
        begins = spent < self.beginnings[row] and free < FREE_TOKENS
        return int(self.open_counts[row]), free, spent if begins else math.inf

    def contexts(self) -> torch.Tensor:
        """The last W tokens of each text, int64 [B, W], -1 where there are none."""
        offsets = torch.arange(self.window, device=self.counts.device)
        return self.padded_tokens.gather(1, self.counts[:, None] + offsets[None])

    def repeats(self, mark: Watermark, context: torch.Tensor) -> torch.Tensor | None:
        """Contexts [B, W] that a watermark does not mark again, bool [B]; None where it marks all."""
        return self.context_repeats(within(mark, context), mark.missing) if mark.deduplicates else None

    def context_repeats(self, context: torch.Tensor, missing: int = MISSING) -> torch.Tensor:
        """Tell where the context [B, W] already preceded an earlier token of the same text, bool [B].

        context: W may be less than that of the texts. missing: the token id that a missing token is equal to.
        """
        tokens = self.padded_tokens
        if missing != MISSING:
            tokens, context = tokens.clamp_min(missing), context.clamp_min(missing)
        width = context.shape[1]
        windows = tokens[:, self.window - width :].unfold(1, width, 1)[:, :-1]  # [B, N, W]
        earlier = torch.arange(windows.shape[1], device=context.device)[None] < self.counts[:, None]
        return ((windows == context[:, None]).all(dim=-1) & earlier).any(dim=1)

    def start(
        self,
        rows: torch.Tensor,
        requests: Sequence[Request],
        ends: Sequence[Sequence[int]],
        marks: Sequence[Watermark | None],
    ) -> None:
        """Begin new texts in `rows` (int64 [R]); ends: the token ids that end each. marks: their watermarks."""
        self.padded_tokens[rows] = MISSING
        for row, mark in zip(rows.tolist(), marks, strict=True):
            self.marks[row] = mark
        numbers = [_numbers(*one, self.ends.shape[1]) for one in zip(requests, ends, marks, strict=True)]
        for name, (dtype, empty) in EMPTY.items():
            tensor: torch.Tensor = getattr(self, name)
            tensor[rows] = torch.tensor([row.get(name, empty) for row in numbers], dtype=dtype, device=tensor.device)
        prompts = [request.ids for request in requests]
        if self.evidence is not None:
            self.evidence.start(rows)
        if self.penalties is not None:
            self.penalties.start(rows, prompts, [request.row for request in requests])
        if any(mark is not None and mark.reads_prompt for mark in marks):
            tails = [([MISSING] * self.window + list(prompt))[len(prompt) :] for prompt in prompts]
            self.padded_tokens[rows, : self.window] = torch.tensor(tails, device=rows.device)

    def refuse(self, strength: torch.Tensor, most: float, sound: torch.Tensor) -> None:
        """Note the first strength (float32 [B]) of each text outside [0, most], where sound (bool [B])."""
        outside = strength.clamp(0.0, most) != strength  # true of NaN
        torch.where(outside & sound & (self.refused == 0), strength, self.refused, out=self.refused)

    def emit(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Append tokens int64 [B] where emitted (bool [B])."""
        place = (self.counts + self.window).clamp(max=self.padded_tokens.shape[1] - 1)[:, None]
        before = self.padded_tokens.gather(1, place)
        self.padded_tokens.scatter_(1, place, torch.where(emitted[:, None], tokens[:, None], before))
        self.counts += emitted

    def put(self, row: int, tokens: Sequence[int]) -> None:
        """Append known tokens to one text; they are not counted as evidence."""
        start = self.window + int(self.counts[row])
        self.padded_tokens[row, start : start + len(tokens)] = torch.tensor(list(tokens), device=self.counts.device)
        self.counts[row] += len(tokens)

    def ended(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tell which of tokens int64 [B, N] end their row's text, bool [B, N]."""
        return (tokens[:, :, None] == self.ends[:, None]).any(dim=2)

    def without_ends(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return logits [B, V] with -inf for the end tokens of `rows` (bool [B])."""
        places = self.ends.clamp_min(0)
        masked = rows[:, None] & (self.ends >= 0)
        # equal places of a row get equal values, so their order does not matter
        return logits.scatter(1, places, torch.where(masked, -torch.inf, logits.gather(1, places)))

    def widen(self, ends: int) -> None:
        """Make room for M = `ends` end tokens of each row, in new memory; never shrinks."""
        missing = ends - self.ends.shape[1]
        if missing > 0:
            first = self.ends[:, :1] if self.ends.shape[1] else self.ends.new_full((self.ends.shape[0], 1), NO_TOKEN)
            self.ends = torch.cat([self.ends, first.expand(-1, missing)], dim=1)

    def finish(self, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """End texts whose token just emitted (int64 [B]) is an end token or the last of the budget."""
        ended = self.ended(tokens[:, None])[:, 0]
        self.active &= ~(emitted & (ended | (self.counts >= self.budgets)))

    def fork(self, row: int, to: int) -> None:
        super().fork(row, to)
        self.marks[to] = self.marks[row]

    def grow(self, room: int) -> None:
        """Make room for N = `room` tokens of each text, in new memory."""
        more = room - self.room
        self.padded_tokens = torch.nn.functional.pad(self.padded_tokens, (0, more), value=MISSING)
        if self.evidence is not None:
            self.evidence.seen = torch.nn.functional.pad(self.evidence.seen, (0, 0, 0, more))


# of a row without a text, and of one that does not sample: what changes nothing
EMPTY: dict[str, tuple[torch.dtype, Any]] = {
    "counts": (torch.int64, 0), "budgets": (torch.int64, 0), "active": (torch.bool, False),
    "streams": (torch.int64, 0), "spent": (torch.float64, 0.0), "free_counts": (torch.int64, 0),
    "open_counts": (torch.int64, 0), "refused": (torch.float32, 0.0),
    "sampled": (torch.bool, False), "races": (torch.bool, False), "noise_keys": (torch.int64, 0),
    "temperatures": (torch.float32, 1.0), "top_ks": (torch.int64, 0), "tails": (torch.float32, -1.0),
    "floors": (torch.float32, 0.0), "minima": (torch.int64, 0), "ends": (torch.int64, NO_TOKEN),
    "row_factors": (torch.float32, 1.0), "margins": (torch.float64, 0.0), "keys": (torch.int64, 0),
    "beginnings": (torch.float64, 0.0),
}  # fmt: skip


def _numbers(request: Request, ends: Sequence[int], mark: Watermark | None, width: int) -> dict[str, Any]:
    """Return the numbers of a text, without those of EMPTY. width: M."""
    row, native = request.row, None if mark is None else mark.native
    numbers = {
        "active": True,
        "budgets": request.budget,
        "streams": request.stream,
        "spent": request.spent if request.begun else 0.0,
        "open_counts": request.open,
        "races": mark is not None and mark.races_whole,
        "minima": row.min_new_tokens,
        "ends": [*ends, *[ends[0] if ends else NO_TOKEN] * (width - len(ends))],
        "row_factors": row.strength_factor,
        "margins": row.margin,
        "keys": 0 if native is None else native.signed_key,
    }
    if row.do_sample:
        numbers |= zip(("temperatures", "top_ks", "tails", "floors"), Drawn.of(row).cuts, strict=True)
        beginning = mark.beginning if mark and row.begins else 0.0
        numbers |= {"sampled": True, "noise_keys": noise_key(row.known_seed), "beginnings": beginning}
    return numbers
