"""Strengths and distributions of a policy along a finished text, from the teacher-forced pass.

The pass gives p_{i+1} given the text's own token, while decoding looks ahead along its original one; otherwise the
evaluator's features are those of decoding.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from caw import ops
from caw.detection.expected_signal import Reading
from caw.evaluator import Evaluator
from caw.evaluator.features import MAX_PREVIOUS
from caw.models.shared_prefix import NO_PREFIX, SharedPrefix
from caw.models.teacher import check_lengths, forward
from caw.policies import CapacityPolicy, Policy, Signals
from caw.policies.base import checked_strengths, refusal
from caw.policies.entropy import entropy
from caw.record import Record
from caw.settings import Drawn

ROWS = 16  # logit rows per op call: they stay in the CPU's cache
SLICE = 256  # positions whose features are assembled at once


def shares_of(drawn: Drawn, logits: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
    """Return the probabilities float64 [n] of drawn tokens int64 [n] under logits [n, V]; 0 = not among those kept."""
    parts = []
    for at in range(0, len(tokens), ROWS):
        rows = logits[at : at + ROWS].float()
        if not bool(rows.logsumexp(dim=1).isfinite().all()):
            raise ValueError("the model's logits must be finite, they are not on this text; use float32")
        every = rows.new_ones(len(rows))
        columns = [(every.long() if isinstance(cut, int) else every) * cut for cut in drawn.cuts]
        warped = ops.warp_logits(rows, every.bool(), *columns)
        own = torch.from_numpy(tokens[at : at + ROWS]).to(rows.device)[:, None]
        parts.append((warped.gather(1, own)[:, 0] - warped.logsumexp(dim=1)).double().exp())
    return torch.cat(parts).cpu().numpy()


class TextReader:
    """Reads texts after one prompt, each independently of the others.

    Args:
        model: a causal LM. policy: provides the strengths, without its target.
        prompt: token ids, at least one. Its keys and values are cached from the first text on.
    """

    def __init__(self, model: Any, policy: Policy, prompt: Sequence[int]) -> None:
        self.model, self.policy, self.prompt = model, policy, list(prompt)
        self._prefix: SharedPrefix | None = None

    @torch.inference_mode()
    def __call__(self, tokens: np.ndarray) -> Reading:
        """Return the reading of a text int64 [n], n > 0. ValueError if prompt and text exceed the positions."""
        return reading(self._logits(tokens), len(self.prompt) - first_row(self.prompt), tokens, self.policy)

    @torch.inference_mode()
    def shares(self, tokens: np.ndarray, drawn: Drawn) -> np.ndarray:
        """Return the probabilities float64 [n] with which the tokens int64 [n] of a text were drawn, n > 0."""
        return shares_of(drawn, self._logits(tokens)[len(self.prompt) - first_row(self.prompt) : -1], tokens)

    def _logits(self, tokens: np.ndarray) -> torch.Tensor:
        """Return logits [before + n + 1, V], where `before` rows are before the text's first token."""
        whole = [*self.prompt, *tokens.tolist()]
        check_lengths(self.model, [whole])
        if self._prefix is None:
            head = self.prompt[: first_row(self.prompt) - 1]
            self._prefix = SharedPrefix.read(self.model, [head, head]) if head else NO_PREFIX
        first = first_row(self.prompt)
        logits, start = forward(self.model, [whole], first - 1, self._prefix)
        return logits[0, first - 1 - start :]


def first_row(prompt: Sequence[int]) -> int:
    """Return the first position that a policy may use: those before the text's first token, as far as available."""
    return max(1, len(prompt) - MAX_PREVIOUS)


def reading(logits: torch.Tensor, before: int, tokens: np.ndarray, policy: Policy) -> Reading:
    """Return the reading of a text from logits [before + n + 1, V], the last row of which is after the text."""
    parts = [Record.from_logits(logits[at : at + ROWS]) for at in range(0, len(logits), ROWS)]
    records = Record(*(torch.cat(tensors) for tensors in zip(*(part.tensors for part in parts), strict=True)))
    if not bool(records.logsumexp.isfinite().all()):
        raise ValueError("the model's logits must be finite, they are not on this text; use float32")
    n = len(tokens)
    capacity = capacities(policy.network, records, before, n) if isinstance(policy, CapacityPolicy) else None
    strengths, entropies = [], []
    for at in range(0, n, ROWS):
        here = torch.arange(at, min(at + ROWS, n), device=logits.device)
        rows = logits[here + before].float()
        known = None if capacity is None else capacity[here]
        strengths.append(_strengths(policy, Signals(records.take(here + before), rows, known)))
        entropies.append(entropy(rows))
    own = records.take(torch.arange(before, before + n, device=logits.device))
    return Reading(
        tokens=tokens,
        logits=own.values.cpu().numpy(),
        ids=own.ids.cpu().numpy(),
        logsumexp=own.logsumexp.cpu().numpy(),
        entropy=torch.cat(entropies).cpu().numpy(),
        strength=torch.cat(strengths).cpu().numpy(),
        greatest=policy.max_strength,
        capacity=(torch.full((n,), torch.nan) if capacity is None else capacity).cpu().numpy(),
    )


def _strengths(policy: Policy, signals: Signals) -> torch.Tensor:
    """Return the policy's strengths. ValueError for invalid ones."""
    found = checked_strengths(policy, policy.strength(signals), signals.current.logsumexp)
    outside = found[found.clamp(0.0, policy.max_strength) != found]
    if outside.numel():
        raise ValueError(refusal(policy, float(outside[0])))
    return found


def capacities(evaluator: Evaluator, records: Record, before: int, count: int) -> torch.Tensor:
    """Return the capacity float32 [count] of the tokens whose own records begin at row `before`."""
    device, spec = records.values.device, evaluator.spec
    network = evaluator if evaluator.mean.device == device else copy.deepcopy(evaluator).to(device)
    rows, found = len(records.logsumexp), []
    for at in range(0, count, SLICE):
        here = torch.arange(at, min(at + SLICE, count), device=device) + before
        window = []
        for offset in range(-spec.previous, spec.next + 1):
            there = here + offset
            inside = (there >= 0) & (there < rows)
            none = Record.empty(len(here), device)
            window.append(none.where(inside, records.take(there.clamp(0, rows - 1))))
        found.append(network(spec.assemble(window, network.token_class)))
    return torch.cat(found)
