"""Drafts by a smaller model of the same vocabulary, which decodes a few tokens ahead.

Under a policy that looks ahead it guesses its own likeliest tokens, as the original token is what carries a draft on.
Under the others it climbs the same ladder under the same key, so it expects marked tokens too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from caw import ops
from caw.decoding.drafts.drafter import Guess
from caw.decoding.forward.attention import caw_attention
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.forward.small_linears import SmallLinears
from caw.decoding.model_lock import model_lock
from caw.decoding.reading import CHUNK, read
from caw.models.eval_mode import EvalMode
from caw.models.facts import ModelFacts
from caw.policies import Policy, Signals
from caw.record import RECORD_SIZE, Record
from caw.triton_kernels.op_indices import RULES
from caw.watermarks import Position, Watermark
from caw.watermarks.base import MISSING

ROOM = 256  # places by which a cache grows


class ModelDrafter:
    """Guesses what a model would write.

    model: a transformers causal LM on a CPU, of the vocabulary of the model that it drafts for, though not that one.
    watermark, policy: what marks the text; None = guess unmarked tokens.
    cost: of a guessed token, as a share of a forward of the large model.
    """

    def __init__(self, model: Any, watermark: Watermark | None, policy: Policy | None, cost: float) -> None:
        facts = ModelFacts.of(model)
        if facts.device.type != "cpu" or facts.spread:
            raise ValueError(f"a drafting model must lie on the CPU, found {facts.device}; move it there")
        self.model, self.facts, self.cost = model, facts, cost
        native = watermark is not None and watermark.native is not None
        marks = native and policy is not None
        self.watermark, self.policy = watermark if marks else None, policy if marks else None
        self.lock, self.mode, self.attention = model_lock(model), EvalMode(model), caw_attention(model)
        with self.lock, self.mode:
            self.linears = SmallLinears(model, enabled=True)

    def follow(self, prompt: Sequence[int]) -> ModelFollower:
        return ModelFollower(self, prompt)

    def learn(self, tokens: Sequence[int]) -> None:
        return

    def choose(self, logits: torch.Tensor, generated: Sequence[int]) -> int:
        """The token that would be next, from logits float32 [1, V] and the new tokens so far."""
        if self.watermark is None or self.policy is None:
            return int(logits.argmax())
        record = Record(*ops.topk_softmax(logits, RECORD_SIZE))
        window = self.watermark.window
        context = torch.tensor([*[MISSING] * window, *generated][len(generated) :], dtype=torch.int64)
        position = Position(record, record.values, logits, context.view(1, window))
        ladder = self.watermark.native_ladder(position, self.policy.greatest)
        strength = self.policy.strength(Signals(record, logits))
        rule = RULES.index(ladder.rule)
        choice = ops.select_candidate(ladder.candidates, ladder.needs, ladder.counts, strength, rule, ladder.full)
        return int(ladder.candidates[0, int(choice)])


class ModelFollower:
    """One text and the model's cache of it."""

    def __init__(self, drafter: ModelDrafter, prompt: Sequence[int]) -> None:
        self.drafter, self.tokens, self.prompt = drafter, list(prompt), len(prompt)
        self._cached: list[int] = []  # tokens whose keys and values lie in the cache
        self._cache: SiblingCache | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def after(self, token: int, most: int) -> Guess:
        drafter, found = self.drafter, [token]
        limit = drafter.facts.positions
        if limit is not None:
            most = min(most, limit - len(self.tokens) - 1)
        if max([*self.tokens, token]) >= drafter.facts.vocab_size:
            return Guess()
        with torch.inference_mode(), drafter.lock, drafter.mode, drafter.attention, drafter.linears:
            for _ in range(most):
                logits = self._read([*self.tokens, *found])
                found.append(drafter.choose(logits, [*self.tokens[self.prompt :], *found]))
        return Guess(found[1:])

    def _read(self, tokens: list[int]) -> torch.Tensor:
        """Logits float32 [1, V] behind the tokens; what the cache has of them is not read again."""
        start = 0
        for ours, theirs in zip(self._cached, tokens[:-1], strict=False):
            if ours != theirs:
                break
            start += 1
        cache = self._with_room(len(tokens), start)
        self._cached = list(tokens)
        return read(self.drafter.model, cache, torch.tensor([0]), [tokens], 0, start, CHUNK)[:, 0]

    def _with_room(self, length: int, kept: int) -> SiblingCache:
        """The cache, or a larger one with the first `kept` tokens."""
        old = self._cache
        if old is not None and old.capacity >= length:
            return old
        drafter = self.drafter
        new = SiblingCache(drafter.facts.config.num_hidden_layers, 1, length + ROOM, 1, drafter.facts.device)
        if old is not None and kept:
            new.copy_in(0, 0, old.copy_out(0, 0, kept))
        self._cache = new
        return new
