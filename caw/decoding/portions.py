"""Prompts that are read in portions between steps, so that a long one does not stall the texts beside it.

A portion is as long as the time of a few steps allows, by what reading and the longer steps took lately. By those, as
a step is short where most texts wait for their prompts: portions for short steps would keep them waiting. Where a
portion ends changes no bit: keys, values and logits of a token are the same in however many portions its prompt is
read (row-invariant arithmetic), which is why there are none where a library's own attention is used (`may_portion`)
or layers that are not this library's own (`plan_defaults.exact_rows`, which the caller asks). Texts of one prompt
share its reading.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.prefill import first_records
from caw.decoding.reading import CHUNK, read, set_lengths
from caw.decoding.request import Request
from caw.record import Record

STEPS = 2.0  # that a portion may take as long as
LEAST = 64  # tokens of a portion: fewer take nearly as long
WEIGHT = 0.2  # of the newest time in the mean
RECENT = 128  # steps whose times are known
LONGER = 0.9  # quantile of these that is a step's time: of those held up few count, and short ones do not


def may_portion(plan: Plan) -> bool:
    """Tell whether a prompt's bits do not depend on the portions that it is read in."""
    plain = plan.settings.prefill_attention == "sdpa" and plan.kernels.native and not plan.captured
    return plain and plan.facts.device.type == "cpu" and plan.limit is None and plan.prompt_cache is None


@dataclass(eq=False)
class OpenPrompt:
    """A prompt that is read in its first text's row: its ids, how many are cached; texts: (row, number, request)."""

    ids: list[int]
    texts: list[tuple[int, tuple[int, Request]]]
    read: int = 0

    @property
    def row(self) -> int:
        return self.texts[0][0]

    @property
    def left(self) -> int:
        return len(self.ids) - self.read


# a prompt that was read: row, number and request of its text, logits [1, V] of the first new position, records from
# there back
Read = tuple[int, tuple[int, Request], torch.Tensor, list[Record]]


class Portions:
    """The prompts that are being read: the one with the least left first, in every second portion the first that came.

    So a short one does not wait for all of a long one, and a long one goes on however many short ones come.
    """

    def __init__(self, plan: Plan) -> None:
        self.history, self.device = plan.history, plan.facts.device
        self.begun: deque[OpenPrompt] = deque()
        self.steps = deque[float](maxlen=RECENT)  # seconds
        self.token = 0.0  # seconds of reading one, 0 = unknown
        self.since = 0  # tokens read since the last step
        self.oldest = True  # whether the last portion began with the first that came

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def rows(self) -> set[int]:
        """Rows of the prompts that are being read."""
        return {row for one in list(self.begun) for row, _ in one.texts}  # metrics ask from other threads

    @property
    def numbers(self) -> list[int]:
        """Numbers of their requests."""
        return [number for one in list(self.begun) for _, (number, _) in one.texts]

    def add(self, row: int, pair: tuple[int, Request]) -> None:
        """Take a prompt for an empty row; one that is being read is not read again."""
        ids = list(pair[1].known)
        for one in self.begun:
            if one.ids == ids:
                one.texts.append((row, pair))
                return
        self.begun.append(OpenPrompt(ids, [(row, pair)]))

    def take(
        self, rows: Sequence[int], pairs: Sequence[tuple[int, Request]], *, busy: bool
    ) -> tuple[list[int], list[tuple[int, Request]]]:
        """Take what is to be read in portions into these empty rows; return the rows and pairs to read at once."""
        later = self.later([request.known for _, request in pairs], busy=busy)
        now = list[tuple[int, tuple[int, Request]]]()
        for row, pair, waits in zip(rows, pairs, later, strict=True):
            if waits:
                self.add(row, pair)
            else:
                now.append((row, pair))
        return [row for row, _ in now], [pair for _, pair in now]

    def later(self, prompts: Sequence[Sequence[int]], *, busy: bool) -> list[bool]:
        """Tell which of these to read in portions: those that are being read, and the longest, so that the others are
        no longer than one together; equal ones count once. If no text is being decoded, those longer than a chunk.
        """
        known = {tuple(one.ids) for one in self.begun}
        if not busy:
            return [len(ids) > CHUNK or tuple(ids) in known for ids in prompts]
        room = self.size()
        for ids in sorted(dict.fromkeys(map(tuple, prompts)), key=len):
            room -= 0 if ids in known else len(ids)
            if room < 0:
                known.add(ids)
        return [tuple(ids) in known for ids in prompts]

    def drop(self, gone: Callable[[int], bool], cache: SiblingCache) -> None:
        """Forget the texts that were abandoned, by the number of their request, and prompts that have none left."""
        for one in self.begun:
            row = one.row
            one.texts = [text for text in one.texts if not gone(text[1][0])]
            if one.read and one.texts and one.row != row:
                cache.copy_in(one.row, 0, cache.copy_out(row, 0, one.read))
        self.begun = deque(one for one in self.begun if one.texts)

    @contextlib.contextmanager
    def timing_step(self) -> Iterator[None]:
        """Record what the step inside the block takes."""
        before = time.perf_counter()
        yield
        self.stepped(time.perf_counter() - before)

    def stepped(self, seconds: float) -> None:
        self.since = 0
        self.steps.append(seconds)

    @contextlib.contextmanager
    def timing_prefill(self, prompts: Sequence[Sequence[int]]) -> Iterator[None]:
        """Record what reading whole prompts inside the block takes; equal ones are read once."""
        before = time.perf_counter()
        yield
        self.took(sum(map(len, set(map(tuple, prompts)))), time.perf_counter() - before)

    def took(self, tokens: int, seconds: float) -> None:
        self.since += tokens
        if tokens >= LEAST:
            self.token += (WEIGHT if self.token else 1.0) * (seconds / tokens - self.token)

    def size(self) -> int:
        """Tokens of the next portion, less those that were read since the last step."""
        if not self.steps or not self.token:
            return LEAST
        step = sorted(self.steps)[int(LONGER * (len(self.steps) - 1))]
        return max(LEAST, min(CHUNK, int(STEPS * step / self.token)) - self.since)

    def read(self, model: Any, cache: SiblingCache, *, busy: bool) -> list[Read]:
        """Read a portion, and record what it takes; return the prompts that end.

        busy: whether a text is being decoded. If none is, the portion is a chunk of one prompt, after which requests
        that came meanwhile are seen. The last positions of a prompt are read together, as their distributions are
        wanted.
        """
        before = time.perf_counter()
        count, done, most = 0, list[Read](), self.size() if busy else CHUNK
        self.oldest = not self.oldest
        while self.begun and count < most:
            one = self.begun[0] if self.oldest else min(self.begun, key=lambda one: one.left)
            length = len(one.ids)
            end = min(one.read + most - count, length)
            end = end if end + self.history < length else length
            row = torch.tensor([one.row], device=self.device)
            last = end == length
            logits = read(model, cache, row, [one.ids[:end]], self.history if last else 0, one.read, CHUNK)
            count, one.read = count + end - one.read, end
            if last:
                self.begun.remove(one)
                self._share(cache, one)
                distributions = first_records(cache, logits, [length])
                done += [(row, pair, *distributions) for row, pair in one.texts]
            else:
                cache.lengths[row] = 0  # a row without a text reads no prefix
            if not busy:
                break
        self.took(count, time.perf_counter() - before)
        return done

    def _share(self, cache: SiblingCache, one: OpenPrompt) -> None:
        """Copy the keys and values of a prompt to the rows of its other texts."""
        length, others = len(one.ids), [row for row, _ in one.texts[1:]]
        if others:
            keys_values = cache.copy_out(one.row, 0, length)
            for row in others:
                cache.copy_in(row, 0, keys_values)
            set_lengths(cache, others, [length] * len(others))
