"""The receipt chain: each entry stores the previous digest and its own signature.

An entry is JSON: {"chain", "sequence", "kind", "receipt", "previous", "key"}, where `previous` is the previous entry's
digest ("" for the first) and `key` the id of the signing key. Its digest is SHA-256 of that in canonical form (sorted
names, no spaces, ASCII); its signature is Ed25519 (RFC 8032) of the digest under its own domain.

    key      the public key that signs from the next entry on; signed by the previous key, or by itself if first
    begun    a text is about to be sent
    closed   the text is complete

Changing, dropping or reordering entries breaks the chain; truncation is detected with an earlier export. The database
without the master key is not enough to sign.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

DOMAIN = b"caw/receipt:"
KEY, BEGUN, CLOSED = "key", "begun", "closed"


@dataclass(frozen=True)
class Entry:
    """One link. content: the hashed canonical JSON. digest: its SHA-256, in hex. signature: base64."""

    content: str
    digest: str
    signature: str

    def as_dict(self) -> dict[str, Any]:
        return {**json.loads(self.content), "digest": self.digest, "signature": self.signature}


@dataclass(frozen=True)
class Signer:
    """A key pair that signs entries. id: the first 16 hex digits of the SHA-256 of its public key."""

    private: Ed25519PrivateKey

    @classmethod
    def new(cls) -> "Signer":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_secret(cls, secret: bytes) -> "Signer":
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    @property
    def secret(self) -> bytes:
        """32 bytes. Never print them."""
        return self.private.private_bytes_raw()

    @property
    def public(self) -> str:
        return self.private.public_key().public_bytes_raw().hex()

    @property
    def id(self) -> str:
        return signer_id(self.public)

    def entry(self, fields: Mapping[str, Any]) -> Entry:
        """Return the entry with these fields; the key's id is added."""
        content = canonical({**fields, "key": self.id})
        digest = digest_of(content)
        signature = self.private.sign(DOMAIN + bytes.fromhex(digest))
        return Entry(content, digest, base64.b64encode(signature).decode())


def signer_id(public: str) -> str:
    return hashlib.sha256(b"caw/signing-key" + bytes.fromhex(public)).hexdigest()[:16]


def canonical(value: Any) -> str:
    """Return canonical JSON. ValueError for values without one (nan)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(content: str) -> str:
    return hashlib.sha256(content.encode("ascii")).hexdigest()


def signed_by(public: str, digest: str, signature: str) -> bool:
    """Return whether the signature of this digest is by this public key."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(base64.b64decode(signature, validate=True), DOMAIN + bytes.fromhex(digest))
    except (InvalidSignature, ValueError):
        return False
    return True
