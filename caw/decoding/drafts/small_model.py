"""Drafts by a smaller model of the same vocabulary, which decodes a few tokens ahead.

It climbs the ladder of the call's watermark, under the text's own key where it has one and times its strength factor,
so it expects marked tokens too. A policy's evaluator reads the small model's own distributions; if the policy looks
ahead, also those behind each original token (`ForeseeingFollower`). It knows nothing of sampling, targets and contexts
that are not marked again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from caw import ops
from caw.decoding.drafts.drafter import Guess
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.branching import forward_candidates
from caw.decoding.forward.fused_forwards import FusedForwards
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.model_lock import model_lock
from caw.decoding.reading import CHUNK, read
from caw.decoding.row_settings import RowSettings
from caw.evaluator import Evaluator
from caw.ladder import Ladder
from caw.models.eval_mode import EvalMode
from caw.models.facts import ModelFacts
from caw.policies import CapacityPolicy, Policy, Signals
from caw.policies.base import scaled
from caw.record import RECORD_SIZE, Record
from caw.watermarks import Position, Watermark
from caw.watermarks.base import MISSING

ROOM = 256  # places by which a cache grows
CARRIED = 4  # candidates that it looks behind at most
RIGHT = 0.6  # share of its guesses taken to be right to begin with: a choice, after a look at two texts of a 1.5B


class ModelDrafter:
    """Guesses what a model would write.

    model: a transformers causal LM on a CPU, of the vocabulary of the model that it drafts for, though not that one.
    watermark, policy: what marks the text; None = guess unmarked tokens. So it does in other systems' formats.
    cost: of a guessed token, as a share of a forward of the large model. expected, reads: see `Drafter`.
    """

    reads = True

    def __init__(self, model: Any, watermark: Watermark | None, policy: Policy | None, cost: float) -> None:
        facts = ModelFacts.of(model)
        if facts.device.type != "cpu" or facts.spread:
            raise ValueError(f"a drafting model must lie on the CPU, found {facts.device}; move it there")
        self.model, self.facts, self.cost, self.expected = model, facts, cost, {0: RIGHT}
        native = watermark is not None and watermark.native is not None
        marks = native and policy is not None
        self.watermark, self.policy = watermark if marks else None, policy if marks else None
        self.lock, self.mode, self.attention = model_lock(model), EvalMode(model), caw_attention(model)
        with self.lock, self.mode:
            self.linears = FusedForwards(model, enabled=True)

    def follow(self, prompt: Sequence[int]) -> ModelFollower:
        return self.follow_row(prompt, RowSettings())

    def follow_row(self, prompt: Sequence[int], row: RowSettings) -> ModelFollower:
        """For a new text with these settings of its own."""
        kind = ForeseeingFollower if self.policy is not None and self.policy.looks_ahead else ModelFollower
        return kind(self, prompt, row)

    def learn(self, tokens: Sequence[int]) -> None:
        return

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside the block the model may be called."""
        with torch.inference_mode(), self.lock, self.mode, self.attention, self.linears:
            yield


def share_of(small: Any, large: Any) -> float:
    """Return the cost of a small model's token, as a share of a forward of the large one, by the bytes of both."""
    sizes = [
        sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
        for model in (small, large)
    ]
    return sizes[0] / max(sizes[1], 1)


def record_of(logits: torch.Tensor) -> Record:
    """Make the record of logits float32 [1, V]."""
    return Record(*ops.topk_softmax(logits.contiguous(), RECORD_SIZE))


class ModelFollower:
    """One text and the model's cache of it.

    watermark: the drafter's, under the text's own key. factor: what its strengths are multiplied by.
    """

    def __init__(self, drafter: ModelDrafter, prompt: Sequence[int], row: RowSettings) -> None:
        self.drafter, self.tokens, self.prompt = drafter, list(prompt), len(prompt)
        mark = drafter.watermark
        self.watermark = mark if mark is None or row.key is None else mark.with_key(row.key)
        self.factor = row.strength_factor
        self._cached: list[int] = []  # tokens whose keys and values lie in the cache
        self._cache: SiblingCache | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def after(self, token: int, most: int) -> Guess:
        drafter, found, most = self.drafter, [token], self._room([token], most)
        records: list[Record] = []  # of the places that the evaluator reads, the newest first
        with drafter.at_work():
            for number in range(most):
                logits = self._read([*self.tokens, *found], 0 if number else self._previous)
                if self.watermark is not None:
                    new = [record_of(logits[:, back]) for back in range(logits.shape[1])]
                    records = [*new, *records][: 1 + self._previous]
                found.append(self._choose(logits[:, 0], records, [*self.tokens[self.prompt :], *found]))
        return Guess(found[1:])

    def _choose(self, logits: torch.Tensor, records: Sequence[Record], generated: Sequence[int]) -> int:
        """Return the token that would be next, from logits float32 [1, V] and the new tokens so far.

        records: of the logits, then of the places before.
        """
        policy = self.drafter.policy
        if self.watermark is None or policy is None:
            return int(logits.argmax())
        capacity = None
        if isinstance(policy, CapacityPolicy):
            network = policy.network
            capacity = network(network.spec.assemble(records[::-1], network.token_class))
        strength = policy.strength(Signals(records[0], logits, capacity)) * self.factor
        ladder = self._ladder(records[0], logits, generated)
        return int(ladder.candidates[0, int(ladder.select(strength))])

    @property
    def _previous(self) -> int:
        """N-, the earlier places that the policy's evaluator reads."""
        policy = self.drafter.policy
        return policy.network.spec.previous if isinstance(policy, CapacityPolicy) else 0

    def _ladder(self, record: Record, logits: torch.Tensor, generated: Sequence[int]) -> Ladder:
        """Build the next token's ladder from logits float32 [1, V], their record and the new tokens so far."""
        watermark, policy = self.watermark, self.drafter.policy
        assert watermark is not None and policy is not None
        context = torch.tensor([*[MISSING] * watermark.window, *generated][len(generated) :], dtype=torch.int64)
        position = Position(record, record.values, logits, context[None])
        return watermark.native_ladder(position, scaled(policy.greatest, self.factor))

    def _room(self, candidates: Sequence[int], most: int) -> int:
        """Count the tokens it can guess behind any of the candidates, at most `most`."""
        facts = self.drafter.facts
        if max([*self.tokens, *candidates]) >= facts.vocab_size:
            return 0
        return most if facts.positions is None else min(most, facts.positions - len(self.tokens) - 1)

    def _read(self, tokens: list[int], history: int = 0) -> torch.Tensor:
        """Logits float32 [1, history + 1, V] behind the tokens, the newest first; what the cache has of the others is
        not read again."""
        start = 0
        for ours, theirs in zip(self._cached, tokens[:-1], strict=False):
            if ours != theirs:
                break
            start += 1
        start = min(start, max(len(tokens) - 1 - history, 0))
        cache = self._with_room(len(tokens), start)
        self._cached = list(tokens)
        return read(self.drafter.model, cache, torch.tensor([0]), [tokens], history, start, CHUNK)

    def _with_room(self, length: int, kept: int) -> SiblingCache:
        """Return the cache, or a larger one with the first `kept` tokens."""
        old = self._cache
        if old is not None and old.capacity > length:  # one place more for what is looked at behind them
            return old
        drafter = self.drafter
        new = SiblingCache(drafter.facts.config.num_hidden_layers, 1, length + ROOM, CARRIED, drafter.facts.device)
        if old is not None and kept:
            new.copy_in(0, 0, old.copy_out(0, 0, kept))
        self._cache = new
        return new


class ForeseeingFollower(ModelFollower):
    """Goes through whole steps of a policy that looks ahead, with the model's own distributions.

    Both the original token and the expected one are guessed, as the step needs what follows the original.
    """

    def among(self, candidates: Sequence[int], most: int, choose: Callable[[float], int]) -> tuple[int, Guess]:
        """(which of the next place's candidates is expected, what may follow that one, at most `most` tokens).

        choose: see `Foreseer`.
        """
        drafter, most, root = self.drafter, self._room(candidates, most), 0
        if most < 1:
            return 0, Guess()
        previous = self._previous
        with drafter.at_work():
            logits = self._read([*self.tokens, candidates[0]], 1 + previous)
            records = [record_of(logits[:, back]) for back in range(2 + previous)]
            if len(candidates) > 1:
                root = choose(self._strength(records[::-1]))
                root = root if root < len(candidates) else 0
            if root:
                logits = self._read([*self.tokens, candidates[root]])
                records[0] = record_of(logits[:, 0])
            return root, self._walk(candidates[root], logits[:, 0], records[: 1 + previous], most)

    def after(self, token: int, most: int) -> Guess:
        return self.among([token], most, lambda strength: 0)[1]

    def _walk(self, token: int, logits: torch.Tensor, records: list[Record], most: int) -> Guess:
        """Behind the text and the token lie logits float32 [1, V]; records: of them, then of the places before."""
        found, originals, new = [token], [token], self.tokens[self.prompt :]
        while True:
            ladder = self._ladder(records[0], logits, [*new, *found])
            candidates = ladder.candidates[0, : int(ladder.counts)].tolist()[:CARRIED]
            originals.append(candidates[0])
            if len(found) == most:  # nothing follows it, so that both may come
                return Guess([*found[1:], candidates[-1]], originals=originals[1:])
            behind, choice = self._siblings(candidates), 0
            following = record_of(behind[:1])
            if len(candidates) > 1:
                strength = self._strength([*records[::-1], following]) * self.factor
                choice = min(int(ladder.select(torch.tensor([strength]))), CARRIED - 1)
            assert self._cache is not None
            self._cache.commit(torch.tensor([choice]), torch.tensor([True]))
            self._cached.append(candidates[choice])
            found.append(candidates[choice])
            logits = behind[choice : choice + 1]
            records = [record_of(logits) if choice else following, *records][: len(records)]

    def _siblings(self, candidates: list[int]) -> torch.Tensor:
        """Logits float32 [Q, V] behind each candidate of the next place."""
        cache = self._with_room(len(self._cached) + 1, len(self._cached))
        cache.lengths.fill_(len(self._cached))
        model, tokens = self.drafter.model, torch.tensor([candidates])
        return forward_candidates(model, cache, tokens, "tree", len(self._cached))[0].float()

    @property
    def _network(self) -> Evaluator:
        assert isinstance(self.drafter.policy, CapacityPolicy)
        return self.drafter.policy.network

    def _strength(self, records: Sequence[Record]) -> float:
        """Return the policy's own strength, from the records before the token, at it and behind the original one."""
        policy, network = self.drafter.policy, self._network
        assert policy is not None
        window = records if network.spec.next else records[:-1]
        capacity = network(network.spec.assemble(window, network.token_class))
        return float(policy.strength(Signals(records[-2], records[-2].values, capacity)))
