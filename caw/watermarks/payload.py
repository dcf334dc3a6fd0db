"""A payload of 1 to 32 bits in a watermark: a symbol of the message selects which of r lists counts.

Position allocation (Yoo, Ahn and Kwak 2024, "Advancing Beyond Identification: Multi-bit Watermark", arXiv 2308.00221):
the keyed function maps a token's context to the symbol of the code word that the token carries. KGW splits the
vocabulary into r = 1 / gamma lists, and the symbol picks the green one. EXP races with one of r keys. A reader scores
every token under all r symbols and searches for the message that the whole text supports best.

A Reed-Solomon code over bytes (package reedsolo) protects the message. Up to 16 bits are one block; longer messages are
a block of the bits above 16 and one of 16. A block is its message in ceil(bits / 8) bytes and 2 bytes of parity, each
byte split into symbols of log2(r) bits, high ones first. Blocks are that small so that a reader can try every message.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from caw import prf
from caw.arrays import torch
from caw.checks import require_int
from caw.requirements import require
from caw.watermarks import keys

DOMAIN = b"caw/payload"
MAX_BITS, BLOCK_BITS, PARITY_BYTES = 32, 16, 2


@dataclass(frozen=True)
class Block:
    """A code of messages of at most 16 bits in symbols of r values; r is 2, 4 or 16, so that bytes split evenly."""

    bits: int
    r: int

    @property
    def data_bytes(self) -> int:
        return (self.bits + 7) // 8

    @property
    def symbol_bits(self) -> int:
        return self.r.bit_length() - 1

    @property
    def positions(self) -> int:
        """Symbols of a code word."""
        return (self.data_bytes + PARITY_BYTES) * 8 // self.symbol_bits

    @property
    def all_symbols(self) -> np.ndarray:
        """Code words of all messages, int64 [2^bits, positions]; 16 MB at most."""
        return _all_symbols(self)

    def symbols(self, message: int) -> np.ndarray:
        """Return the code word of a message in [0, 2^bits): int64 [positions]."""
        return self._split(self._word(message))

    def _word(self, message: int) -> np.ndarray:
        return np.frombuffer(bytes(_codec().encode(message.to_bytes(self.data_bytes, "big"))), dtype=np.uint8)

    def _split(self, word: np.ndarray) -> np.ndarray:
        """Split bytes uint8 [..., data + parity] into symbols int64 [..., positions]."""
        shifts = np.arange(8 - self.symbol_bits, -1, -self.symbol_bits)
        symbols = (word[..., None].astype(np.int64) >> shifts) & (self.r - 1)
        return symbols.reshape(*word.shape[:-1], -1)


@lru_cache(maxsize=8)
def _all_symbols(block: Block) -> np.ndarray:
    """Return all code words. The code is linear: the word of a message is the exclusive or of the words of its bits."""
    words = np.zeros((1, block.data_bytes + PARITY_BYTES), dtype=np.uint8)
    for bit in range(block.bits):
        words = np.concatenate([words, words ^ block._word(1 << bit)])
    return block._split(words)


@dataclass(frozen=True)
class PayloadCode:
    """The code of payloads of `bits` bits in symbols of r values."""

    bits: int
    r: int

    def __post_init__(self) -> None:
        require_int("payload_bits", self.bits, 1, MAX_BITS)
        if self.r not in (2, 4, 16):
            raise ValueError(f"a payload requires gamma 1/2, 1/4 or 1/16, got 1/{self.r:g}; use gamma=0.25")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        if self.bits <= BLOCK_BITS:
            return (Block(self.bits, self.r),)
        return Block(self.bits - BLOCK_BITS, self.r), Block(BLOCK_BITS, self.r)

    @property
    def positions(self) -> int:
        """P: symbols of all code words."""
        return sum(block.positions for block in self.blocks)

    def symbols(self, message: int) -> np.ndarray:
        """Return the code words of a message in [0, 2^bits), one after the other: int64 [P]."""
        if len(self.blocks) == 1:
            return self.blocks[0].symbols(message)
        high, low = self.blocks
        return np.concatenate([high.symbols(message >> BLOCK_BITS), low.symbols(message & ((1 << BLOCK_BITS) - 1))])


def _codec() -> Any:
    from reedsolo import RSCodec

    return RSCodec(PARITY_BYTES)


@dataclass(frozen=True)
class PayloadScores:
    """Evidence of each token: values float64 [n, r] under each symbol, of position int64 [n], evidence int64 [n, E]."""

    values: torch.Tensor
    positions: torch.Tensor
    evidence: torch.Tensor


class Bits:
    """A message in a code, under a user's key; a message of None is for readers, who know only the code."""

    def __init__(self, code: PayloadCode, message: int | None, secret: int) -> None:
        self.code, self.r, self.message = code, code.r, message
        self._key = keys.derive_key(secret, DOMAIN)
        self.race_keys = tuple(keys.derive_key(secret, DOMAIN + b"/" + bytes([symbol])) for symbol in range(self.r))

    def positions(self, context: torch.Tensor) -> torch.Tensor:
        """Return the index of the symbol that the token after contexts int64 [B, W] carries, int64 [B]."""
        word = prf.context_words(self._key, context, 0 * context[:, :1])[:, 0]
        return (word * self.code.positions) >> 32

    def symbols(self, context: torch.Tensor) -> torch.Tensor:
        """Return the symbols in [0, r), int64 [B]. ValueError if only the number of bits is known."""
        self.check_writable()
        return self._word.to(context.device)[self.positions(context)]

    def placed(self, device: torch.device) -> Bits:
        """Return this payload with its code word on the device."""
        other = copy.copy(self)
        other._word = self._word.to(device)
        return other

    def check_writable(self) -> None:
        """Raise ValueError if text is to be marked without a message."""
        if self.message is None:
            raise ValueError(
                f"marking with payload_bits={self.code.bits} requires a payload, got none; pass payload=..."
            )

    @cached_property
    def _word(self) -> torch.Tensor:
        assert self.message is not None
        return torch.from_numpy(self.code.symbols(self.message))


def make_payload(message: int | None, bits: int, r: int, format_name: str, secret: int) -> Bits | None:
    """Build the payload, None for 0 bits; message None is for readers. TypeError or ValueError for misfits."""
    require_int("payload_bits", bits, 0, MAX_BITS)
    if bits:
        require("reedsolo", "payloads")
    if message is not None:
        if not bits:
            raise ValueError(
                f"a payload requires payload_bits, got payload={message!r} without it; pass payload_bits=..."
            )
        require_int("payload", message, 0, (1 << bits) - 1)
    if bits and format_name != "native":
        raise ValueError(f"payloads require format 'native', got {format_name!r}; leave the payload out")
    return Bits(PayloadCode(bits, r), message, secret) if bits else None
