"""The master key: what secrets in the database are sealed under. It comes from the environment and never goes there.

AES-256-GCM with a random nonce (NIST SP 800-38D). A sealed secret names the master key it was sealed under and is bound
to its place: a row's secret copied to another row does not open. Several master keys may be given, so that they can
rotate: the first seals, all open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE, FILE_VARIABLE = "CAW_MASTER_KEY", "CAW_MASTER_KEY_FILE"
BYTES, NONCE = 32, 12
FORM = "1"  # of a sealed secret: 1.<master key's id>.<base64 of nonce and ciphertext>
HOW = "make one with `caw keys master-key`"


def new_master_key() -> str:
    """A random one, as CAW_MASTER_KEY holds it: 32 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(BYTES)).decode()


@dataclass(frozen=True)
class MasterKeys:
    """The master keys at hand, the one that seals first; in no repr and no message."""

    keys: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.keys or any(len(key) != BYTES for key in self.keys):
            raise ValueError(f"a master key must have {BYTES} bytes, got another number; {HOW}")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> MasterKeys:
        """Those of CAW_MASTER_KEY, or of the file that CAW_MASTER_KEY_FILE names: one, or several apart by spaces.

        Raises ValueError in one sentence for none, for both, for what is no key, and for a file that others may read.
        """
        given, path = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
        if bool(given) == bool(path):
            found = "both" if given else "none"
            raise ValueError(f"expected a master key in {VARIABLE} or a file in {FILE_VARIABLE}, got {found}; {HOW}")
        if path:
            given, where = _read_private(Path(path)), path
        else:
            where = VARIABLE
        assert given is not None
        return cls(tuple(_decoded(part, where) for part in given.split()))

    @property
    def ids(self) -> tuple[str, ...]:
        """Eight hex digits that name each."""
        return tuple(_id(key) for key in self.keys)

    def seal(self, secret: bytes, place: str, beside: str = "") -> str:
        """The secret for the database.

        place: what it is and whose. beside: what stands unsealed beside it. Both have to be said again to open it.
        """
        nonce = secrets.token_bytes(NONCE)
        sealed = nonce + AESGCM(self.keys[0]).encrypt(nonce, secret, (place + beside).encode())
        return f"{FORM}.{self.ids[0]}.{base64.b64encode(sealed).decode()}"

    def open(self, sealed: str, place: str, beside: str = "") -> bytes:
        """The secret again.

        Raises ValueError where its master key is missing, and where it or what stands beside it is not as it was.
        """
        form, _, rest = sealed.partition(".")
        name, _, content = rest.partition(".")
        if form != FORM or name not in self.ids:
            raise ValueError(
                f"{place} is sealed under master key {name[:8]}, got {', '.join(self.ids)}; add that one to {VARIABLE}"
            )
        raw = base64.b64decode(content)
        try:
            return AESGCM(self.keys[self.ids.index(name)]).decrypt(raw[:NONCE], raw[NONCE:], (place + beside).encode())
        except InvalidTag:
            raise ValueError(
                f"{place} does not open: the row was damaged or moved; restore it from a copy of the database"
            ) from None

    def is_current(self, sealed: str) -> bool:
        """Whether it is sealed under the first master key."""
        return sealed.startswith(f"{FORM}.{self.ids[0]}.")


def _id(key: bytes) -> str:
    return hashlib.sha256(b"caw/master-id" + key).hexdigest()[:8]


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        key = b""
    if len(key) != BYTES:
        raise ValueError(f"{where} must hold {BYTES} bytes in base64, got something else; {HOW}")
    return key


def _read_private(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ValueError(f"{path} must be private, others may read it; run `chmod 600 {path}`")
        try:
            return file.read(1 << 16)
        except UnicodeDecodeError:
            raise ValueError(f"{path} must hold {BYTES} bytes in base64, got other bytes; {HOW}") from None
