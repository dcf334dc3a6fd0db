"""What decoding did at each token of one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenTrace:
    """One token.

    token: its id. capacity: the evaluator's importance in (0, 1), NaN if the policy did not ask. strength: >= 0.
    candidates: the distinct tokens that reachable strengths would choose, the original first. choice: index of `token`
    among them; 0 = the original, so the watermark changed nothing.
    """

    token: int
    capacity: float
    strength: float
    candidates: tuple[int, ...]
    choice: int


@dataclass(frozen=True)
class TokenLogProbs:
    """What the unmarked model says of one token, in nats: of itself, and of the likeliest ones (id, value) in order."""

    own: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass
class SequenceTrace:
    """Per-token columns of one sequence, in order; iterating or indexing gives `TokenTrace`s."""

    tokens: list[int] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    strength: list[float] = field(default_factory=list)
    candidates: list[tuple[int, ...]] = field(default_factory=list)
    choice: list[int] = field(default_factory=list)

    def append(self, token: TokenTrace) -> None:
        self.tokens.append(token.token)
        self.capacity.append(token.capacity)
        self.strength.append(token.strength)
        self.candidates.append(token.candidates)
        self.choice.append(token.choice)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> TokenTrace:
        return TokenTrace(
            self.tokens[index], self.capacity[index], self.strength[index], self.candidates[index], self.choice[index]
        )

    def __iter__(self) -> Iterator[TokenTrace]:
        return (self[i] for i in range(len(self)))

    @property
    def single_candidate_share(self) -> float:
        """Share of tokens where no reachable strength could change anything, so that nothing had to be looked at."""
        return sum(len(c) == 1 for c in self.candidates) / len(self) if len(self) else 0.0
