"""The master key, which encrypts the secrets in the database. It comes from the environment and is never stored.

AES-256-GCM with a random nonce (NIST SP 800-38D). A sealed secret names its key and is bound to its row: copied to
another row it cannot be opened. Several master keys may be given for rotation: the first encrypts, all decrypt. Or a
custodian derives the keys (`caw.registry.custodian`); it encrypts, and master keys beside it decrypt what is older.
"""

import base64
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from caw.registry import custodian
from caw.registry.custodian import BYTES, LABEL, Custodian, decoded

VARIABLE, FILE_VARIABLE = "CAW_MASTER_KEY", "CAW_MASTER_KEY_FILE"
NONCE = 12
FORM, OUTSIDE = "1", "2"  # of a sealed secret: 1.<master key's id>.<base64 of nonce and ciphertext>, 2.<label>.<...>
DAMAGED = "the row was damaged or moved; restore it from a backup"
HOW = "create one with `caw keys master-key`"


def new_master_key() -> str:
    """Return a random one in the form of CAW_MASTER_KEY: 32 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(BYTES)).decode()


@dataclass(frozen=True)
class MasterKeys:
    """The available master keys, the encrypting one first; never in a repr or message. custodian: encrypts instead."""

    keys: tuple[bytes, ...] = field(repr=False)
    custodian: Custodian | None = None

    def __post_init__(self) -> None:
        if (not self.keys and self.custodian is None) or any(len(key) != BYTES for key in self.keys):
            raise ValueError(f"a master key must have {BYTES} bytes, got another number; {HOW}")

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "MasterKeys":
        """Read CAW_MASTER_KEY, or the file that CAW_MASTER_KEY_FILE names: one key, or several separated by spaces. Not
        needed where CAW_MASTER_KEY_COMMAND names a custodian, which is not called yet.

        Raises ValueError in one sentence for none, for both, for an invalid key, and for a file that others may read.
        """
        given, path = environment.get(VARIABLE), environment.get(FILE_VARIABLE)
        line = environment.get(custodian.VARIABLE)
        outside = Custodian.read(line) if line else None
        if outside is not None and not given and not path:
            return cls((), outside)
        if bool(given) == bool(path):
            found = "both" if given else "none"
            raise ValueError(
                f"a master key is required in {VARIABLE} or in a file named by {FILE_VARIABLE}, got {found}; {HOW}"
            )
        if path:
            given, where = _read_private(Path(path)), path
        else:
            where = VARIABLE
        assert given is not None
        return cls(tuple(_decoded(part, where) for part in given.split()), outside)

    @property
    def ids(self) -> tuple[str, ...]:
        """Eight hex digits that identify each."""
        return tuple(_id(key) for key in self.keys)

    def derived(self, purpose: bytes) -> bytes:
        """Derive 32 secret bytes for one purpose, of the first master key or by the custodian: always the same."""
        if self.custodian is not None:
            return self.custodian.key(f"derived/{purpose.decode()}")
        return hmac.new(self.keys[0], b"caw/derived/" + purpose, hashlib.sha256).digest()

    def seal(self, secret: bytes, place: str, beside: str = "") -> str:
        """Encrypt a secret for the database. place: what it is, whose. beside: other data; both are authenticated."""
        if self.custodian is None:
            name, key = f"{FORM}.{self.ids[0]}", self.keys[0]
        else:
            label = f"{_kind(place)}/{self.custodian.day()}"
            name, key = f"{OUTSIDE}.{label}", self.custodian.key(label)
        nonce = secrets.token_bytes(NONCE)
        sealed = nonce + AESGCM(key).encrypt(nonce, secret, (place + beside).encode())
        return f"{name}.{base64.b64encode(sealed).decode()}"

    def open(self, sealed: str, place: str, beside: str = "") -> bytes:
        """Decrypt a secret. ValueError if its master key is missing or anything changed; OSError: no custodian."""
        form, _, rest = sealed.partition(".")
        name, _, content = rest.partition(".")
        if form == OUTSIDE:
            if self.custodian is None:
                raise ValueError(f"{place} is sealed by a custodian, found none; set {custodian.VARIABLE}")
            if not LABEL.fullmatch(name):  # who writes to the database is not to choose what is run
                raise ValueError(f"{place} cannot be decrypted: {DAMAGED}")
            key = self.custodian.key(name)
        elif form == FORM and name in self.ids:
            key = self.keys[self.ids.index(name)]
        else:
            raise ValueError(
                f"{place} is encrypted under master key {name[:8]}, got {', '.join(self.ids) or 'none'}; add that key "
                f"to {VARIABLE}"
            )
        raw = base64.b64decode(content)
        try:
            return AESGCM(key).decrypt(raw[:NONCE], raw[NONCE:], (place + beside).encode())
        except InvalidTag:
            other = f", or {custodian.VARIABLE} derives other keys than then" * (form == OUTSIDE)
            raise ValueError(f"{place} cannot be decrypted: {DAMAGED}{other}") from None

    def is_current(self, sealed: str) -> bool:
        """Return whether it is encrypted under the first master key, or the custodian's of today."""
        if self.custodian is None:
            return sealed.startswith(f"{FORM}.{self.ids[0]}.")
        return sealed.startswith(OUTSIDE) and sealed.split(".")[1].endswith(f"/{self.custodian.day()}")


def _kind(place: str) -> str:
    """Return which of KINDS the secret at a place is: `marking key ...`, `signing key ...`."""
    return "sketches" if place == "signing key sketches" else place.partition(" ")[0]


def _id(key: bytes) -> str:
    return hashlib.sha256(b"caw/master-id" + key).hexdigest()[:8]


def _decoded(text: str, where: str) -> bytes:
    if (key := decoded(text.encode(errors="replace"))) is None:
        raise ValueError(f"{where} must hold {BYTES} bytes in base64, got something else; {HOW}")
    return key


def _read_private(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        if os.name == "posix" and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise ValueError(f"{path} must be private but is readable by others; run `chmod 600 {path}`")
        try:
            return file.read(1 << 16)
        except UnicodeDecodeError:
            raise ValueError(f"{path} must hold {BYTES} bytes in base64, got other bytes; {HOW}") from None
