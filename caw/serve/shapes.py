"""OpenAI's JSON: whole responses, chunks of a stream, and log-probabilities."""

import math
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caw.io.token_texts import INCOMPLETE, token_bytes, token_texts
from caw.serve.job import Token
from caw.serve.orders import Order, Piece

CALLED = "tool_calls"  # why a text ended that is a call
LEAST = -9999.0  # what OpenAI says of a token of probability 0


class Shape(ABC):
    """Response format of an endpoint: object types, an id's prefix, the code for China's implicit labels or None."""

    whole: str
    part: str
    prefix: str

    def __init__(self, tokenizer: Any, producer: str | None = None) -> None:
        self.tokenizer, self.producer = tokenizer, producer

    def answer(self, order: Order, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the response of a request that is not streamed; pieces: one per text, in order."""
        choices = [{**self.choice(order, piece), "finish_reason": piece.finish} for piece in pieces]
        return {**self._head(order, self.whole), "choices": choices, "usage": usage(order), **self._said(pieces)}

    def chunk(self, order: Order, piece: Piece) -> dict[str, Any]:
        choice = {**self.delta(order, piece), "finish_reason": piece.finish or None}
        return {**self._head(order, self.part), "choices": [choice], **(self._said([piece]) if piece.finish else {})}

    def usage_chunk(self, order: Order) -> dict[str, Any]:
        return {**self._head(order, self.part), "choices": [], "usage": usage(order)}

    def opening(self, order: Order) -> Iterator[dict[str, Any]]:
        """Return events before the first piece."""
        return iter(())

    def _head(self, order: Order, kind: str) -> dict[str, Any]:
        return {"id": order.id, "object": kind, "created": order.created, "model": order.model}

    def _said(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return this server's additions to OpenAI's response: whether all texts are marked, the ids of their receipts,
        continuation tokens of truncated texts, C2PA manifests in Base64 (null: none), and China's implicit labels.
        """
        extension: dict[str, Any] = {
            "marked": all(piece.marked for piece in pieces), "receipts": [piece.receipt for piece in pieces],
        }  # fmt: skip
        if any(piece.continuation for piece in pieces):
            extension["continuations"] = [piece.continuation or None for piece in pieces]
        if any(piece.manifest for piece in pieces):
            extension["manifests"] = [b64encode(piece.manifest).decode() or None for piece in pieces]
        if self.producer:
            extension["AIGC"] = [
                {"Label": "1", "ContentProducer": self.producer, "ProduceID": piece.receipt, "ReservedCode1": "",
                 "ContentPropagator": "", "PropagateID": "", "ReservedCode2": ""} for piece in pieces
            ]  # fmt: skip
        return {"caw": extension}

    @abstractmethod
    def choice(self, order: Order, piece: Piece) -> dict[str, Any]:
        """Return a whole text."""

    @abstractmethod
    def delta(self, order: Order, piece: Piece) -> dict[str, Any]:
        """Return more of a text."""


class Completions(Shape):
    """`/v1/completions`."""

    whole = part = "text_completion"
    prefix = "cmpl-"

    def choice(self, order: Order, piece: Piece) -> dict[str, Any]:
        return {"index": piece.choice, "text": piece.text, "logprobs": self._log_probs(order, piece)}

    delta = choice

    def _log_probs(self, order: Order, piece: Piece) -> dict[str, Any] | None:
        if order.alternatives is None:
            return None
        text = order.texts[piece.choice]
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, likeliest in _named(self.tokenizer, piece.tokens, order.alternatives):
            columns["tokens"].append(token.name)
            columns["token_logprobs"].append(token.value)
            likelier = {each.name: each.value for each in reversed(likeliest)}  # of one text, the likelier
            columns["top_logprobs"].append(likelier)
            columns["text_offset"].append(text.letters)
            text.letters += token.letters
        return columns


class Chat(Shape):
    """`/v1/chat/completions`."""

    whole, part, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"

    def answer(self, order: Order, pieces: Sequence[Piece]) -> dict[str, Any]:
        return super().answer(order, [_read(order, piece) for piece in pieces])

    def chunk(self, order: Order, piece: Piece) -> dict[str, Any]:
        return super().chunk(order, _read(order, piece))

    def choice(self, order: Order, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls or _forced(order):
            message |= {"content": piece.text or None, "tool_calls": list(piece.calls)}
        return {"index": piece.choice, "message": message, "logprobs": self._log_probs(order, piece.tokens)}

    def delta(self, order: Order, piece: Piece) -> dict[str, Any]:
        changes: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.calls:
            changes["tool_calls"] = [{"index": place, **call} for place, call in enumerate(piece.calls)]
        return {"index": piece.choice, "delta": changes, "logprobs": self._log_probs(order, piece.tokens)}

    def opening(self, order: Order) -> Iterator[dict[str, Any]]:
        for number in range(len(order.texts)):
            delta = {"role": "assistant", "content": None if _forced(order) else ""}
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            yield {**self._head(order, self.part), "choices": [choice]}

    def _log_probs(self, order: Order, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if order.alternatives is None:
            return None
        content = [
            {**token.entry, "top_logprobs": [each.entry for each in likeliest]}
            for token, likeliest in _named(self.tokenizer, tokens, order.alternatives)
        ]
        return {"content": content, "refusal": None}


def _forced(order: Order) -> bool:
    return order.calls is not None and order.calls.forced


def _read(order: Order, piece: Piece) -> Piece:
    """Return a piece with its calls, which are then why it ended."""
    if order.calls is None or not piece.finish:
        return piece
    text, calls = order.calls.read(piece.text, piece.finish)
    finish = CALLED if calls and piece.finish == "stop" else piece.finish
    return replace(piece, text=text, calls=calls, finish=finish)


def usage(order: Order) -> dict[str, int]:
    generated = order.completion_tokens
    return {
        "prompt_tokens": order.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": order.prompt_tokens + generated,
    }


@dataclass(frozen=True)
class NamedToken:
    """A token's text, its bytes (None: unknown) and its log-probability."""

    text: str
    raw: bytes | None
    value: float

    @property
    def entry(self) -> dict[str, Any]:  # OpenAI's form in chats
        return {"token": self.text, "logprob": self.value, "bytes": None if self.raw is None else list(self.raw)}

    @property
    def name(self) -> str:  # OpenAI's form in completions: part of a character is its bytes
        if self.raw is None or INCOMPLETE not in self.text:
            return self.text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.raw)

    @property
    def letters(self) -> int:  # that begin in it
        return len(self.text) if self.raw is None else sum(byte & 0xC0 != 0x80 for byte in self.raw)


def _named(tokenizer: Any, tokens: Sequence[Token], alternatives: int) -> Iterator[tuple[NamedToken, list[NamedToken]]]:
    """Return each token and the top tokens at its place."""
    for token in tokens:
        log_probs = token.log_probs
        assert log_probs is not None
        pairs = [(token.id, log_probs.own), *log_probs.likeliest[:alternatives]]
        texts = token_texts(tokenizer, [each for each, _ in pairs])
        emitted, *likeliest = (
            NamedToken(text, token_bytes(tokenizer, each, text), value if math.isfinite(value) else LEAST)
            for text, (each, value) in zip(texts, pairs, strict=True)
        )
        yield emitted, likeliest
