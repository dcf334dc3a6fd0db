"""A payload of 1 to 32 bits in a watermark: which of r lists counts depends on a symbol of the message.

Position allocation (Yoo, Ahn and Kwak 2024, "Advancing Beyond Identification: Multi-bit Watermark", arXiv 2308.00221):
the context of a token says, by the keyed function, which symbol of the code word the token carries. The vocabulary of
KGW is split into r = 1 / gamma lists of which the symbol picks the green one; EXP races with one of r keys. A reader
scores all r symbols of every position at once and looks for the message that the whole text supports best.

The message is protected by a Reed-Solomon code over bytes (package reedsolo): k = ceil(bits / 8) bytes of message, 2
bytes of parity up to 16 bits and 4 beyond, each byte cut into symbols of log2(r) bits, high ones first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from caw.watermarks import prf
from caw.watermarks.base import require_int

DOMAIN = b"caw/payload"
MAX_BITS = 32
ENUMERATED_BITS = 16  # up to here the best of all messages is found by trying each


@dataclass(frozen=True)
class PayloadCode:
    """The code of payloads of `bits` bits in symbols of r values: 2, 4 or 16, which cut a byte into whole parts."""

    bits: int
    r: int

    def __post_init__(self) -> None:
        require_int("payload_bits", self.bits, 1, MAX_BITS)
        if self.r not in (2, 4, 16):
            raise ValueError(f"a payload needs gamma of 1/2, 1/4 or 1/16, got 1/{self.r:g}; use gamma=0.25")

    @property
    def data_bytes(self) -> int:
        return (self.bits + 7) // 8

    @property
    def parity_bytes(self) -> int:
        return 2 if self.bits <= 16 else 4

    @property
    def symbol_bits(self) -> int:
        return self.r.bit_length() - 1

    @property
    def positions(self) -> int:
        """P: symbols of a code word."""
        return (self.data_bytes + self.parity_bytes) * 8 // self.symbol_bits

    @cached_property
    def codec(self) -> Any:
        try:
            from reedsolo import RSCodec
        except ModuleNotFoundError as error:
            raise ImportError(
                "expected reedsolo for payloads, found none; install it with `pip install reedsolo`"
            ) from error
        return RSCodec(self.parity_bytes)

    def symbols(self, message: int) -> np.ndarray:
        """Code word of a message in [0, 2^bits): int64 [P]."""
        word = bytes(self.codec.encode(message.to_bytes(self.data_bytes, "big")))
        return self.split(np.frombuffer(word, dtype=np.uint8))

    def split(self, word: np.ndarray) -> np.ndarray:
        """Bytes [..., k + parity] as symbols int64 [..., P]."""
        shifts = np.arange(8 - self.symbol_bits, -1, -self.symbol_bits)
        symbols = (word[..., None].astype(np.int64) >> shifts) & (self.r - 1)
        return symbols.reshape(*word.shape[:-1], -1)

    def all_symbols(self) -> np.ndarray:
        """Code words of all messages, int64 [2^bits, P]; for at most ENUMERATED_BITS bits.

        The code is linear: the word of a message is the exclusive or of the words of its bits.
        """
        basis = [
            np.frombuffer(bytes(self.codec.encode((1 << b).to_bytes(self.data_bytes, "big"))), dtype=np.uint8)
            for b in range(self.bits)
        ]
        words = np.zeros((1, self.data_bytes + self.parity_bytes), dtype=np.uint8)
        for row in basis:
            words = np.concatenate([words, words ^ row])
        return self.split(words)

    def decode_bytes(self, word: bytes, erased: list[int]) -> int | None:
        """The message of a (damaged) word whose bytes `erased` are unknown; None where it cannot be mended."""
        from reedsolo import ReedSolomonError

        try:
            data = self.codec.decode(word, erase_pos=erased)[0]
        except ReedSolomonError:
            return None
        message = int.from_bytes(bytes(data), "big")
        return message if message < 1 << self.bits else None


@dataclass(frozen=True)
class PayloadScores:
    """What each token says: values float64 [n, r] under each symbol, of position int64 [n], evidence int64 [n, E]."""

    values: torch.Tensor
    positions: torch.Tensor
    evidence: torch.Tensor


def positions_of(key: int, context: torch.Tensor, count: int) -> torch.Tensor:
    """Which of `count` symbols the token after contexts int64 [B, W] carries, int64 [B]."""
    token = torch.zeros_like(context[:, :1])
    word = prf.context_words(prf.derive_key(key, DOMAIN), context, token)[:, 0]
    return (word * count) >> 32


def symbol_keys(key: int, r: int) -> list[int]:
    """A race key for each symbol."""
    return [prf.derive_key(key, DOMAIN + b"/" + bytes([symbol])) for symbol in range(r)]


def check_payload(payload: int | None, bits: int) -> None:
    """Raise unless the payload fits; None is for readers."""
    require_int("payload_bits", bits, 0, MAX_BITS)
    if payload is None:
        return
    if not bits:
        raise ValueError(f"a payload needs payload_bits, got payload={payload!r} without; say how many bits it has")
    require_int("payload", payload, 0, (1 << bits) - 1)


def require_payload(payload: int | None, bits: int) -> None:
    """Raise where a text is to be marked without knowing with what."""
    if bits and payload is None:
        raise ValueError(f"marking with payload_bits={bits} needs a payload, got none; pass payload=...")
