"""Drafters that know what a text will be, and are wrong where they are told to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from caw.decoding.drafts.drafter import Guess
from caw.decoding.drafts.price import RowPrice

# what becomes of the tokens to come
MISTAKES: dict[str, Any] = {
    "right": lambda tokens, most: tokens,
    "last wrong": lambda tokens, most: [*tokens[:2], 7],
    "first wrong": lambda tokens, most: [5, *tokens[1:]],
    "empty": lambda tokens, most: [],
    "unknown ids": lambda tokens, most: [*tokens[:1], 10**9, -1],
    "too long": lambda tokens, most: [*tokens, *[9] * (most + 5)],
    "few originals": lambda tokens, most: tokens,
    "many originals": lambda tokens, most: tokens,
}
# what becomes of the originals, of which there should be one for each token
ORIGINALS: dict[str, Any] = {
    "few originals": lambda originals: originals[:1],
    "many originals": lambda originals: [*originals, 7, 10**9],
}


class Steady(RowPrice):
    """What is taken to cost how much as long as nothing is known, of steps of a second."""

    step = 1.0  # type: ignore[assignment]

    def saw(self, rows: int, seconds: float) -> None:
        return

    def decided(self, texts: int, seconds: float) -> None:
        return


def keep_price_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the number of drafts does not depend on how busy the machine is."""
    monkeypatch.setattr("caw.decoding.steps.price_for", lambda model: Steady())


class Knowing:
    """Knows the new tokens of texts and guesses them, with one mistake after the other; counts in `asked`.

    texts: (prompt, new tokens) of each. originals: the original token at each place of each; () = it names none.
    """

    def __init__(
        self,
        texts: Sequence[tuple[Sequence[int], Sequence[int]]],
        mistakes: Sequence[str] = ("right",),
        originals: Sequence[Sequence[int]] = (),
    ) -> None:
        self.texts = [(list(prompt), list(new)) for prompt, new in texts]
        self.originals = {tuple(new): list(own) for (_, new), own in zip(self.texts, originals, strict=False)}
        self.mistakes, self.asked = [MISTAKES[name] for name in mistakes], count()
        self.cuts = [ORIGINALS.get(name, list) for name in mistakes]
        self.learned: list[list[int]] = []

    def follow(self, prompt: Sequence[int]) -> Following:
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
        number = next(self.drafter.asked)
        mistake, cut = (own[number % len(own)] for own in (self.drafter.mistakes, self.drafter.cuts))
        tokens = mistake(text[len(so_far) :], most)
        own = self.drafter.originals.get(tuple(text), [])[len(so_far) :]
        originals = [*own, *tokens[len(own) :]][: len(tokens)] if own else []
        return Guess(tokens, 1, cut(originals))
