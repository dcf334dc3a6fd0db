"""A payload of 1 to 32 bits in a watermark: which of r lists counts depends on a symbol of the message.

Position allocation (Yoo, Ahn and Kwak 2024, "Advancing Beyond Identification: Multi-bit Watermark", arXiv 2308.00221):
the keyed function says, from a token's context, which symbol of the code word the token carries. KGW splits the
vocabulary into r = 1 / gamma lists, and the symbol picks the green one. EXP races with one of r keys. A reader scores
every token under all r symbols and looks for the message that the whole text supports best.

A Reed-Solomon code over bytes (package reedsolo) protects the message. Up to 16 bits are one block; more are a block of
what exceeds 16 and one of 16. A block is its message in ceil(bits / 8) bytes and 2 bytes of parity, each byte cut into
symbols of log2(r) bits, high ones first. Blocks are that small so that a reader can try every message.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from caw.checks import require_int
from caw.requirements import require
from caw.triton_kernels import prf_ref as prf
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

    @cached_property
    def all_symbols(self) -> np.ndarray:
        """Code words of all messages, int64 [2^bits, positions]; 8 MB at most.

        The code is linear: the word of a message is the exclusive or of the words of its bits.
        """
        words = np.zeros((1, self.data_bytes + PARITY_BYTES), dtype=np.uint8)
        for bit in range(self.bits):
            words = np.concatenate([words, words ^ self._word(1 << bit)])
        return self._split(words)

    def symbols(self, message: int) -> np.ndarray:
        """Code word of a message in [0, 2^bits): int64 [positions]."""
        return self._split(self._word(message))

    def _word(self, message: int) -> np.ndarray:
        return np.frombuffer(bytes(_codec().encode(message.to_bytes(self.data_bytes, "big"))), dtype=np.uint8)

    def _split(self, word: np.ndarray) -> np.ndarray:
        """Bytes uint8 [..., data + parity] as symbols int64 [..., positions]."""
        shifts = np.arange(8 - self.symbol_bits, -1, -self.symbol_bits)
        symbols = (word[..., None].astype(np.int64) >> shifts) & (self.r - 1)
        return symbols.reshape(*word.shape[:-1], -1)


@dataclass(frozen=True)
class PayloadCode:
    """The code of payloads of `bits` bits in symbols of r values."""

    bits: int
    r: int

    def __post_init__(self) -> None:
        require_int("payload_bits", self.bits, 1, MAX_BITS)
        if self.r not in (2, 4, 16):
            raise ValueError(f"a payload needs gamma of 1/2, 1/4 or 1/16, got 1/{self.r:g}; use gamma=0.25")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, that of the high bits first."""
        if self.bits <= BLOCK_BITS:
            return (Block(self.bits, self.r),)
        return Block(self.bits - BLOCK_BITS, self.r), Block(BLOCK_BITS, self.r)

    @property
    def positions(self) -> int:
        """P: symbols of all code words."""
        return sum(block.positions for block in self.blocks)

    def symbols(self, message: int) -> np.ndarray:
        """Code words of a message in [0, 2^bits), one after the other: int64 [P]."""
        if len(self.blocks) == 1:
            return self.blocks[0].symbols(message)
        high, low = self.blocks
        return np.concatenate([high.symbols(message >> BLOCK_BITS), low.symbols(message & ((1 << BLOCK_BITS) - 1))])


def _codec() -> Any:
    from reedsolo import RSCodec

    return RSCodec(PARITY_BYTES)


@dataclass(frozen=True)
class PayloadScores:
    """What each token says: values float64 [n, r] under each symbol, of position int64 [n], evidence int64 [n, E]."""

    values: torch.Tensor
    positions: torch.Tensor
    evidence: torch.Tensor


class Payload:
    """What the texts of a native scheme carry: each context has a symbol, which picks one of r lists or race keys.

    code: of what is carried. This class carries nothing: its one symbol is 0.
    """

    code: PayloadCode | None = None
    r = 1

    def derive(self, secret: int) -> tuple[int, ...]:
        """The keys that it uses of a user's key itself: at most one, the last of its scheme's keys."""
        return ()

    def race_keys(self, secret: int) -> tuple[int, ...]:
        """A key to race with for each of the r symbols."""
        return (secret,)

    def positions(self, context: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
        """Which symbol of the code word the token after contexts int64 [B, W] carries, int64 [B]."""
        return context.new_zeros(context.shape[0])

    def symbols(self, context: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
        """The symbols in [0, r) themselves, int64 [B]; ValueError where only the number of bits is known."""
        return context.new_zeros(context.shape[0])

    def placed(self, device: torch.device) -> Payload:
        """This payload with what contexts are looked up in on the device."""
        return self

    def check_writable(self) -> None:
        """Raise ValueError where a text is to be marked without knowing with what."""
        return


class Bits(Payload):
    """A message in a code; a message of None is for readers, who know the code alone."""

    code: PayloadCode

    def __init__(self, code: PayloadCode, message: int | None) -> None:
        self.code, self.r, self.message = code, code.r, message

    def derive(self, secret: int) -> tuple[int, ...]:
        return (keys.derive_key(secret, DOMAIN),)

    def race_keys(self, secret: int) -> tuple[int, ...]:
        return tuple(keys.derive_key(secret, DOMAIN + b"/" + bytes([symbol])) for symbol in range(self.r))

    def positions(self, context: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
        word = prf.context_words(keys[-1], context, torch.zeros_like(context[:, :1]))[:, 0]
        return (word * self.code.positions) >> 32

    def symbols(self, context: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
        self.check_writable()
        return self._word.to(context.device)[self.positions(context, keys)]

    def placed(self, device: torch.device) -> Bits:
        other = copy.copy(self)
        other._word = self._word.to(device)
        return other

    def check_writable(self) -> None:
        if self.message is None:
            raise ValueError(f"marking with payload_bits={self.code.bits} needs a payload, got none; pass payload=...")

    @cached_property
    def _word(self) -> torch.Tensor:
        assert self.message is not None
        return torch.from_numpy(self.code.symbols(self.message))


def make_payload(message: int | None, bits: int, r: int, format_name: str) -> Payload:
    """The payload of a watermark's parameters; a message of None is for readers.

    Raises TypeError or ValueError where they do not go together.
    """
    require_int("payload_bits", bits, 0, MAX_BITS)
    if bits:
        require("reedsolo", "payloads")
    if message is not None:
        if not bits:
            raise ValueError(f"a payload needs payload_bits, got payload={message!r} without; say how many bits it has")
        require_int("payload", message, 0, (1 << bits) - 1)
    if bits and format_name != "native":
        raise ValueError(f"payloads need format 'native', got {format_name!r}; leave the payload out")
    return Bits(PayloadCode(bits, r), message) if bits else Payload()
