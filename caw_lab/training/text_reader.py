"""Read a text once, and then what a model says behind changed tokens of it.

`BranchReader` uses decoding's own forward: each change is a row with the text's keys and values up to its place, and
many changes, at any places, share one forward without padding. `TeacherReader` uses transformers' forward where that is
not compiled.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from caw import ops
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.branching import forward_drafted
from caw.decoding.forward.draft_tree import Chain, DraftTree
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.fused_layers import DTYPES
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.model_lock import model_lock
from caw.decoding.reading import CHUNK, chunk_logits
from caw.models.eval_mode import EvalMode
from caw.models.facts import ModelFacts
from caw.models.shared_prefix import MIN_SHARED, NO_PREFIX, SharedPrefix, common_length
from caw.models.teacher import check_lengths, forward, read_and_keep

BATCH_TOKENS = 512
FORWARD = 24  # tokens that cost as much as beginning another forward, which reads all weights
Change = tuple[int, int]  # place, the token that stands there instead
MOST_ROWS = 32  # changes of one forward; each keeps a copy of the text's keys and values
ROOM = 64  # places by which the cache grows


class TextReader(ABC):
    """Reads one text at a time, in inference mode."""

    def __init__(self, model: Any) -> None:
        self.model, self.ids = model, list[int]()

    @torch.inference_mode()
    def read(self, ids: Sequence[int], first: int, name: str = "one") -> torch.Tensor:
        """Return logits [len(ids) - first + 1, V] of the places from `first`, at least 1, to the one behind the text.

        Raises ValueError for a text longer than the model's positions and for logits that are not finite.
        """
        check_lengths(self.model, [ids], [name])
        self.ids = list(ids)
        logits = self._read(first)
        # a row with a NaN or +inf anywhere has such a logsumexp
        if not bool(ops.dispatched().topk_softmax(logits, 1)[3].isfinite().all()):
            raise ValueError(f"expected finite logits, the model gives others on {name}; use float32")
        return logits

    @torch.inference_mode()
    def changed(
        self, changes: Sequence[Change], horizon: int, batch_tokens: int = BATCH_TOKENS
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield (index, logits [n, V]) of each change of the text: the distributions of the n tokens that follow it.

        changes: by ascending place. horizon: the most following tokens. batch_tokens: of a forward, over all its rows
        (at least one row).
        """
        return self._changed(changes, horizon, batch_tokens)

    @abstractmethod
    def _read(self, first: int) -> torch.Tensor: ...

    @abstractmethod
    def _changed(
        self, changes: Sequence[Change], horizon: int, batch_tokens: int
    ) -> Iterator[tuple[int, torch.Tensor]]: ...


def reader_for(model: Any) -> TextReader:
    """Return the fastest reader that this model and this machine can have."""
    try:
        facts = ModelFacts.of(model)
    except NotImplementedError:
        return TeacherReader(model)
    whole = facts.device.type == "cpu" and not facts.spread and facts.mesh is None and facts.rope_limit is None
    compiled = not ops.missing_extension() and facts.dtype in DTYPES
    return BranchReader(model, facts) if whole and compiled else TeacherReader(model)


class TeacherReader(TextReader):
    prefix = NO_PREFIX

    def _read(self, first: int) -> torch.Tensor:
        logits, self.prefix = read_and_keep(self.model, self.ids)
        return logits[first - 1 :]

    def _changed(
        self, changes: Sequence[Change], horizon: int, batch_tokens: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        with torch.inference_mode():
            yield from replaced_logits(self.model, self.ids, changes, self.prefix, horizon, batch_tokens)


class BranchReader(TextReader):
    """cache: the text in row 0, and up to its place each change in a row behind it. held: tokens of the text that each
    of those rows has. whole: ids of row 0; what the next text shares with them, such as worked examples, is not read
    again."""

    def __init__(self, model: Any, facts: ModelFacts) -> None:
        super().__init__(model)
        self.facts, self.lock, self.mode = facts, model_lock(model), EvalMode(model)
        self.attention = caw_attention(model)
        with self.lock, self.mode:
            self.linears = FusedForwards(model, enabled=True)
        self.cache: SiblingCache | None = None
        self.held, self.whole = [0] * MOST_ROWS, list[int]()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with torch.inference_mode(), self.lock, self.mode, self.attention, self.linears:
            yield

    def _read(self, first: int) -> torch.Tensor:
        ids, row, parts = self.ids, torch.tensor([0]), []
        cache, self.held = self._with_room(len(ids)), [0] * MOST_ROWS
        same = min(common_length([self.whole, ids]), first - 1)
        start, self.whole = same if same >= MIN_SHARED else 0, []
        with self._at_work():
            for begin in range(start, len(ids), CHUNK):
                part = ids[begin : begin + CHUNK]
                kept = torch.arange(min(max(first - 1 - begin, 0), len(part) - 1), len(part))
                logits = chunk_logits(self.model, cache, row, torch.tensor([part]), begin, kept)[0]
                parts.append(logits if begin + len(part) >= first else logits[:0])
            cache.end_prefill(torch.tensor([len(ids)]))
        self.whole = ids
        return torch.cat(parts)

    def _changed(
        self, changes: Sequence[Change], horizon: int, batch_tokens: int
    ) -> Iterator[tuple[int, torch.Tensor]]:
        followed = [min(horizon, len(self.ids) - place - 1) for place, _ in changes]
        for index, number in enumerate(followed):
            if not number:
                yield index, torch.zeros(0, self.facts.vocab_size)
        some = [index for index, number in enumerate(followed) if number]
        while some:
            most = max(1, min(MOST_ROWS, batch_tokens // max(followed[index] for index in some)))
            now, some = some[:most], some[most:]
            with self._at_work():
                logits, tree = self._forward([(*changes[index], followed[index]) for index in now])
            for row, index in enumerate(now, 1):
                start = int(tree.first[row])
                yield index, logits[start : start + followed[index]]

    def _forward(self, changes: Sequence[tuple[int, int, int]]) -> tuple[torch.Tensor, DraftTree]:
        """Logits [N, V] behind each (place, token, number of following tokens), one row of the cache for each."""
        cache = self.cache
        assert cache is not None and cache.store is not None
        own: list[list[int]] = [[] for _ in range(cache.batch)]
        chains = [Chain()] * cache.batch
        for row, (place, token, followed) in enumerate(changes, 1):
            held = min(self.held[row - 1], place)
            cache.store[:, :, row, :, held:place] = cache.store[:, :, 0, :, held:place]
            cache.lengths[row], self.held[row - 1] = place, place
            own[row], chains[row] = [token], Chain(0, self.ids[place + 1 : place + followed])
        tree = DraftTree.of(own, chains, cache.lengths.tolist())
        return forward_drafted(self.model, cache, tree), tree

    def _with_room(self, length: int) -> SiblingCache:
        if self.cache is None or self.cache.capacity < length + 1:
            layers = self.facts.config.num_hidden_layers
            self.cache, self.whole = SiblingCache(layers, 1 + MOST_ROWS, length + ROOM, 1, self.facts.device), []
        return self.cache


def replaced_logits(
    model: Any,
    ids: Sequence[int],
    changes: Sequence[Change],
    read: SharedPrefix,
    horizon: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (index, logits [n, V]) of each change: the distributions of the n tokens that follow its position.

    Args:
        ids: the text. changes: by ascending place. read: what was read of the text (`teacher.read_and_keep`).
        horizon: the most following tokens to look at; None = all. A change of the last token has n = 0.
        batch_tokens: tokens of a forward, over all its rows (at least one row).

    Call it in inference mode. Deterministic for the same arguments; logits depend on the batch by rounding only.
    """
    for first, last, stop in _groups([place for place, _ in changes], len(ids), horizon, batch_tokens):
        begin = changes[first][0]
        rows = [[*ids[:place], token, *ids[place + 1 : stop]] for place, token in changes[first:last]]
        logits, start = forward(model, rows, begin, replace(read, length=begin))
        for row, (place, _) in enumerate(changes[first:last]):
            behind = len(ids) - place - 1 if horizon is None else min(horizon, len(ids) - place - 1)
            # row j of the forward's logits is of the token at start + j + 1
            yield first + row, logits[row, place - start : place - start + behind]


def _groups(
    places: Sequence[int], length: int, horizon: int | None, batch_tokens: int
) -> Iterator[tuple[int, int, int]]:
    """Yield runs [first, last) of changes whose rows fit a forward, and where those rows end."""
    behind = length if horizon is None else horizon
    first = 0
    while first < len(places):
        last, begin = first + 1, places[first]
        while last < len(places):
            now, more = (
                rows * (min(length, places[first + rows - 1] + 1 + behind) - begin)
                for rows in (last - first, last + 1 - first)
            )
            alone = min(length, places[last] + 1 + behind) - places[last]
            if more > batch_tokens or more > now + alone + FORWARD:  # what is read again would cost more than a forward
                break
            last += 1
        yield first, last, min(length, places[last - 1] + 1 + behind)
        first = last
