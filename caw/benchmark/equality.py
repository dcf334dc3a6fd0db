"""Check, before anything is timed, that modes which must give the same tokens do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from caw.benchmark.modes import OTHERS, same_tokens
from caw.benchmark.timing import Made
from caw.defaults import DELTA
from caw.testing import margin


class DifferentTokensError(RuntimeError):
    """Sides that must generate the same tokens do not, so comparing their times would mean nothing."""


@dataclass(frozen=True)
class Check:
    """Two modes' tokens. equal, of: sequences; near_ties: those that first differ where two tokens are all but tied.

    first: "sequence r, token i" of the first difference that is none, "" where there is none.
    """

    expected: str
    got: str
    equal: int
    of: int
    near_ties: int = 0
    first: str = ""

    @property
    def holds(self) -> bool:
        return not self.first


def check_counts(made: Mapping[str, Made], batch: int, tokens: int) -> None:
    """Raise DifferentTokensError unless every mode made as many sequences and tokens as asked for."""
    for name, result in made.items():
        counts = [len(sequence) for sequence in result.tokens]
        if counts != [tokens] * batch:
            raise DifferentTokensError(
                f"mode {name} must make {tokens} tokens in each of {batch} sequences, got {counts}"
            )


def check_tokens(model: Any, prompts: Sequence[Sequence[int]], made: Mapping[str, Made]) -> list[Check]:
    """Every pair of modes that must give the same tokens."""
    return [
        compare_tokens(model, prompts, (first, made[first]), (other, made[other]))
        for first, *rest in same_tokens(list(made))
        for other in rest
    ]


def compare_tokens(
    model: Any, prompts: Sequence[Sequence[int]], expected: tuple[str, Made], got: tuple[str, Made]
) -> Check:
    """One pair. Against transformers a difference is forgiven where the two tokens' scores are closer than float32
    tells apart (`caw.testing`, row margin/decision); branchings of this library decide by strengths, none is."""
    equal = near = 0
    first = ""
    for row, (e, g) in enumerate(zip(expected[1].tokens, got[1].tokens, strict=True)):
        if e == g:
            equal += 1
            continue
        place = next(i for i, (a, b) in enumerate(zip(e, g, strict=True)) if a != b)
        if got[0] in OTHERS and _tied(model, [*prompts[row], *e[:place]], e[place], g[place]):
            near += 1
        elif not first:
            first = f"sequence {row}, token {place}"
    return Check(expected[0], got[0], equal, len(expected[1].tokens), near, first)


@torch.inference_mode()
def _tied(model: Any, ids: Sequence[int], a: int, b: int) -> bool:
    """Return whether the scores of a and b differ by no more than rounding, with or without a green list's bonus."""
    logits = model(torch.tensor([list(ids)], device=model.device)).logits[0, -1].double()
    gap = float((logits[a] - logits[b]).abs())
    allowed = margin("margin/decision", float(logits.square().mean().sqrt()))
    return min(gap, abs(gap - DELTA)) <= allowed
