"""Continuation tokens: proof that a text is this server's own, so that a request may continue it.

A truncated answer (finish_reason "length") comes with a token that the server does not store: the text's token ids and
everything that determines its continuation, under a MAC. It is valid for one tenant, marking key, model and kind of
marking. With it, the text continues as if it had never been interrupted. Clients cannot have their own texts continued:
that would reveal what the mark prefers after contexts of their choice.
"""

import array
import base64
import binascii
import hashlib
import hmac
import json
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from caw.io.token_texts import INCOMPLETE
from caw.serve.errors import BAD, ApiError

LIFE = 24 * 3600  # seconds for which a token holds
MAC_BYTES, DOMAIN = 32, b"caw/continuation/3"
PARAMETER = "continuation"


@dataclass(frozen=True)
class TextSoFar:
    """The contents of a token.

    tokens: generated ones. open: positions of them at which the mark had a choice. spent: nats of the free beginning,
    of a text that was cut before its end; inf = it is over. subkey: what marked it, None = nothing did, or nobody
    knows. steered: whether a client's bias favoured any. prompt: digest of the prompt's ids, of which there are
    `length`. seed, occurrence: of the sampling. receipt: id of the last answer's receipt. expires: Unix time, s.
    """

    tokens: tuple[int, ...]
    open: int
    spent: float
    subkey: int | None
    steered: bool
    prompt: str
    length: int
    seed: int
    occurrence: int
    receipt: str
    expires: int


class Continuations:
    """Creates and reads tokens; thread-safe. secret: of the servers of a registry; in no repr or message."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret, self.clock = secret, clock

    def give(self, part: TextSoFar, about: Sequence[str]) -> str:
        """Return the token of a text. about: its tenant, key, model and kind of marking."""
        head = list(vars(part).values())[1:]
        packed = zlib.compress(json.dumps(head).encode() + b"\n" + _packed(part.tokens))
        return base64.urlsafe_b64encode(self._mac(packed, about) + packed).decode().rstrip("=")

    def read(self, token: str, about: Sequence[str]) -> TextSoFar:
        """Return the contents of a token. ApiError for an invalid or expired one."""
        try:
            raw = base64.b64decode(token.encode("ascii") + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        packed = raw[MAC_BYTES:]
        if not hmac.compare_digest(raw[:MAC_BYTES], self._mac(packed, about)):
            raise _refused(
                "must be a token that this server issued for this API key, model and marking, got another; send the "
                "text as a new prompt without it"
            )
        head, _, ids = zlib.decompress(packed).partition(b"\n")
        part = TextSoFar(_unpacked(ids), *json.loads(head))
        if self.clock() > part.expires:
            raise _refused(
                f"is valid for {LIFE // 3600} hours and has expired; send the text as a new prompt without it"
            )
        return part

    def _mac(self, packed: bytes, about: Sequence[str]) -> bytes:
        head = json.dumps(list(about)).encode()
        return hmac.new(self._secret, DOMAIN + len(head).to_bytes(8, "big") + head + packed, hashlib.sha256).digest()


def prompt_digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(_packed(ids)).hexdigest()[:32]


def check_prompt(part: TextSoFar, ids: Sequence[int]) -> None:
    """Raise ApiError for a prompt other than the text's."""
    if len(ids) != part.length or not hmac.compare_digest(prompt_digest(ids), part.prompt):
        raise _refused("belongs to another prompt; send prompt and text unchanged")


def same_text(given: str, text: str) -> bool:
    """Return whether a client means this text: characters split between two answers may be U+FFFD."""
    return given.replace(INCOMPLETE, "") == text.replace(INCOMPLETE, "")


def before_text(given: str, text: str) -> list[str]:
    """Return what precedes a text at a prompt's end: nothing, or one reading, or two where a character was split."""
    at, left = len(given), text.replace(INCOMPLETE, "")
    while left and at and given[at - 1] in (left[-1], INCOMPLETE):
        if given[at - 1] != INCOMPLETE:
            left = left[:-1]
        at -= 1
    if left:
        return []
    return list(dict.fromkeys([given[:at], given[:at].rstrip(INCOMPLETE)]))


def not_the_text() -> ApiError:
    return _refused("requires a prompt that ends with its text, got another ending; send the text unchanged")


def _refused(what: str) -> ApiError:
    return ApiError(BAD, f"{PARAMETER} {what}", code="bad_continuation", parameter=PARAMETER)


def _packed(ids: Sequence[int]) -> bytes:
    words = array.array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _unpacked(data: bytes) -> tuple[int, ...]:
    words = array.array("I", data)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)
