"""Traces of decoding: of one step in tensors, of one token, of one text."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from caw.record import Record


@dataclass(frozen=True)
class TokenTrace:
    """Trace of one token.

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
    """The unmarked model's log-probabilities in nats: of the token, and of the likeliest ones (id, value) in order."""

    own: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass
class DraftCounts:
    """Counts of one text's drafts.

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
        """Count one more forward, with its rows and drafted positions."""
        self.passes += 1
        self.rows += rows
        self.drafted += drafted

    @property
    def rows_per_pass(self) -> float:
        """Rows per forward that carried the text; 0 without any."""
        return self.rows / self.passes if self.passes else 0.0

    @property
    def acceptance(self) -> float:
        """Share of drafts that were accepted; 0 without any."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass
class SequenceTrace:
    """Per-token columns of a sequence, in order; its items are `TokenTrace`s. drafts: no part of a comparison."""

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
        """Tokens per forward that carried the text; 0 if not counted."""
        return len(self) / self.drafts.passes if self.drafts is not None and self.drafts.passes else 0.0

    @property
    def single_candidate_share(self) -> float:
        """Share of tokens with a single candidate, where no look-ahead was needed."""
        return sum(len(c) == 1 for c in self.candidates) / len(self) if len(self) else 0.0


ALTERNATIVES = 20  # likeliest tokens of which log-probabilities are kept; the most that OpenAI's interface gives


@dataclass
class LogProbs:
    """The unmarked model's log-probabilities of a step's tokens, at temperature 1.

    ids: int64 [B, N], the likeliest tokens, ties to the smaller id; -1 where there are fewer.
    values: float32 [B, 1 + N], nats: of the token emitted, then of those.
    """

    ids: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, record: Record, tokens: torch.Tensor) -> "LogProbs":
        """Compute those of tokens int64 [B], chosen from logits [B, V] with this record; N = ALTERNATIVES."""
        chosen = logits.gather(1, tokens[:, None])
        values = torch.cat([chosen, record.values[:, :ALTERNATIVES]], dim=1) - record.logsumexp[:, None]
        return cls(record.ids[:, :ALTERNATIVES].clone(), values)

    def of_row(self, row: int) -> TokenLogProbs:
        """Return those of a row; reads them from the device."""
        chosen, *others = self.values[row].tolist()
        ids = self.ids[row].tolist()
        return TokenLogProbs(
            chosen, tuple((token, value) for token, value in zip(ids, others, strict=True) if token >= 0)
        )


@dataclass
class StepResult:
    """Result of one step; B sequences, int64/float32/bool [B] on the model's device.

    emitted: which sequences got a token. tokens: the token. choice: its index in candidates [B, M] (counts valid), also
    where the step before chose it.
    strength, capacity: float32; capacity is NaN where it was not evaluated.
    broken: bool [B], whether the logits the choice was made from were NaN or infinite, or the policy's strength outside
        its range (`Texts.refused`), so that its token means nothing.
    forwarded: candidates the forward carried per sequence; packed, the most that one could have. Of tokens decided
        behind drafts those of the forward that carried the drafts.
    log_probs: None where no text may ask for them.
    """

    emitted: torch.Tensor
    tokens: torch.Tensor
    choice: torch.Tensor
    candidates: torch.Tensor
    counts: torch.Tensor
    strength: torch.Tensor
    capacity: torch.Tensor
    broken: torch.Tensor
    forwarded: int
    log_probs: LogProbs | None = None

    def token_trace(self) -> Callable[[int], TokenTrace]:
        """Return a function that gives a row's trace; reads everything from the device at once."""
        tokens, capacity, strength = self.tokens.tolist(), self.capacity.tolist(), self.strength.tolist()
        counts, choice, candidates = self.counts.tolist(), self.choice.tolist(), self.candidates.tolist()

        def of_row(row: int) -> TokenTrace:
            reachable = tuple(candidates[row][: counts[row]])
            return TokenTrace(tokens[row], capacity[row], strength[row], reachable, choice[row])

        return of_row
