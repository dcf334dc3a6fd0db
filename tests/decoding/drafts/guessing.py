"""Drafters that know what a text will be, and are wrong where they are told to."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from caw.decoding.drafts.proposer import Guess

# what becomes of the tokens to come
MISTAKES: dict[str, Any] = {
    "right": lambda tokens, most: tokens,
    "last wrong": lambda tokens, most: [*tokens[:2], 7],
    "first wrong": lambda tokens, most: [5, *tokens[1:]],
    "empty": lambda tokens, most: [],
    "unknown ids": lambda tokens, most: [*tokens[:1], 10**9, -1],
    "too long": lambda tokens, most: [*tokens, *[9] * (most + 5)],
}


class Knowing:
    """Knows the new tokens of texts, (prompt, tokens), and guesses them with one mistake after the other."""

    def __init__(
        self, texts: Sequence[tuple[Sequence[int], Sequence[int]]], mistakes: Sequence[str] = ("right",)
    ) -> None:
        self.texts = [(list(prompt), list(new)) for prompt, new in texts]
        self.mistakes, self.asked = [MISTAKES[name] for name in mistakes], count()
        self.learned: list[list[int]] = []
        self.expected = {1: 0.95}  # so that drafts are long, and go on behind mistakes

    def follow(self, prompt: Sequence[int]) -> "Following":
        return Following(self, [new for own, new in self.texts if own == list(prompt)])

    def learn(self, tokens: Sequence[int]) -> None:
        self.learned.append(list(tokens))


class Following:
    def __init__(self, drafter: Knowing, possible: list[list[int]]) -> None:
        self.drafter, self.possible, self.tokens = drafter, possible, []  # type: ignore[var-annotated]

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)

    def after(self, token: int, most: int) -> Guess:
        so_far = [*self.tokens, token]
        text: list[int] = next((new for new in self.possible if new[: len(so_far)] == so_far), [])
        mistake = self.drafter.mistakes[next(self.drafter.asked) % len(self.drafter.mistakes)]
        return Guess(mistake(text[len(so_far) :], most), 1)
