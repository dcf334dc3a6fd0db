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
class DraftCounts:
    """What drafts did for one text.

    passes: forwards that carried it. rows: its rows in them: candidates, drafts and the original tokens carried beside
    drafts that expect another. drafted: places that drafts had a token for; accepted: those where one was right.
    why_not: why it could have none; empty if it could.
    """

    passes: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    why_not: str = ""

    def add(self, rows: int, drafted: int) -> None:
        """One more forward, of so many rows, in which so many places were drafted."""
        self.passes += 1
        self.rows += rows
        self.drafted += drafted

    @property
    def rows_per_pass(self) -> float:
        """Rows of each forward that carried the text; 0 without any."""
        return self.rows / self.passes if self.passes else 0.0

    @property
    def acceptance(self) -> float:
        """Share of drafts that were right; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass
class SequenceTrace:
    """Per-token columns of one sequence, in order; iterating or indexing gives `TokenTrace`s.

    drafts: what they did; it depends on how the text was made, so it is no part of a comparison.
    """

    tokens: list[int] = field(default_factory=list)
    capacity: list[float] = field(default_factory=list)
    strength: list[float] = field(default_factory=list)
    candidates: list[tuple[int, ...]] = field(default_factory=list)
    choice: list[int] = field(default_factory=list)
    drafts: DraftCounts | None = field(default=None, compare=False)

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
    def tokens_per_pass(self) -> float:
        """Tokens for each forward that carried the text; 0 where that was not counted."""
        return len(self) / self.drafts.passes if self.drafts is not None and self.drafts.passes else 0.0

    @property
    def single_candidate_share(self) -> float:
        """Share of tokens where no reachable strength could change anything, so that nothing had to be looked at."""
        return sum(len(c) == 1 for c in self.candidates) / len(self) if len(self) else 0.0
