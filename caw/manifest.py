"""C2PA manifests: a signed record of a text, beside it, or inside it in characters that nobody sees.

C2PA 2.4: annex A.8, "Embedding Manifests into Unstructured Text" (A.7 in 2.3), and 9.2.4 for the hash of a text, which
is that of its NFC. A manifest inside names its own place, the bytes that this hash leaves out. Nothing is fetched.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import caw
from caw.io.show import shown, visible
from caw.io.unicode import normalized
from caw.requirements import PACKAGES, missing, there

# anything that claims to be one, also damaged: a mark, "C2PATXT" and a zero, the rest of the run
MAGIC = "\U000e0133\U000e0122\U000e0140\U000e0131\U000e0144\U000e0148\U000e0144\ufe00"
WRAPPER = re.compile(f"\ufeff?{MAGIC}[\ufe00-\ufe0f\U000e0100-\U000e01ef]*")
LABEL, BINDING = "caw.receipt", "c2pa.hash.data"
SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
KIND, PLAIN = "application/c2pa", "text/plain"
HASHES = ("sha256", "sha384", "sha512")
MOST_TRIES = 400  # about one in ten gives a wrapper as long as its manifest says
FIRST_LENGTH = 14_000  # bytes of a wrapper, before one is known; its CBOR is as long as that of any likely number
TRUSTED, UNKNOWN, OTHER, CHANGED, UNREAD = "trusted", "unknown signer", "other text", "changed", "unread"
SENTENCES = {
    TRUSTED: "A C2PA manifest, signed by {signer} (certificate trusted), fits this text{receipt}.",
    UNKNOWN: "A C2PA manifest, signed by {signer} (certificate not trusted here), fits this text{receipt}.",
    OTHER: "A C2PA manifest, signed by {signer}, does not fit this text, which was changed or is another{receipt}.",
    CHANGED: "A C2PA manifest is damaged, was changed, or has no valid certificate, so it proves nothing ({why}).",
    UNREAD: "A C2PA manifest was not read: {why}.",
}


@dataclass(frozen=True)
class Record:
    """What the manifest of a text says.

    state: TRUSTED or UNKNOWN, it fits the text; OTHER, the text is another; CHANGED, it is not what was signed; UNREAD,
    a package is missing. signer: organisation and name of the certificate. about: this library's part of it, {} without
    one; only where the signature holds. why: of the last two states.
    """

    state: str
    signer: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def receipt(self) -> str:
        """The receipt's id, "" for none."""
        return visible(str(self.about.get("receipt", "")))[:64]

    @property
    def message(self) -> str:
        """One sentence."""
        receipt = f"; it names receipt {self.receipt}" if self.receipt else ""
        return SENTENCES[self.state].format(signer=self.signer, receipt=receipt, why=self.why)

    def as_dict(self) -> dict[str, Any]:
        """Return what is written as JSON."""
        return {"state": self.state, "signer": self.signer, "about": dict(self.about), "message": self.message}


class Signer:
    """Writes manifests.

    Args:
        certificate: PEM, the signer's first, then those of its issuers. key: PEM, PKCS#8.

    What a manifest says is JSON; "marked" in it adds that a watermark was put in.

    Raises ImportError without the packages and ValueError for a certificate or key that does not fit, in one sentence.
    """

    def __init__(self, certificate: str, key: str) -> None:
        if lacks := lacking():
            raise ImportError(missing(lacks, "C2PA manifests"))
        import c2pa

        self.certificate = certificate
        self._info = {"sign_cert": certificate.encode(), "private_key": key.encode(), "ta_url": None}
        self._alg = _algorithm(key)
        try:
            self._signed("x", {}, None, verify=True)
        except c2pa.C2paError as error:
            raise ValueError(
                "a C2PA certificate must be valid today, for signing, with its issuers behind it and its own key, got "
                f"one of which c2pa says {shown(str(error))}; have one issued for C2PA claim signing"
            ) from None

    def beside(self, text: str, says: Mapping[str, Any]) -> bytes:
        """Return the manifest of a text."""
        return self._signed(text, says, None)

    def inside(self, text: str, says: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return (the manifest, the characters to append to the text).

        Each signature has bytes of its own, of which some take a character of 3 bytes and most one of 4, and a manifest
        names how many it takes in all: it is signed until that is right, some ten times.
        """
        import c2pa_text

        lengths = [FIRST_LENGTH]
        for _ in range(MOST_TRIES):
            length = round(sum(lengths) / len(lengths))
            manifest = self._signed(text, says, length)
            wrapper = str(c2pa_text.encode_wrapper(manifest))
            lengths = [*lengths[lengths == [FIRST_LENGTH] :], len(wrapper.encode())]
            if lengths[-1] == length:
                return manifest, wrapper
        raise RuntimeError(f"no manifest of {MOST_TRIES} is as long as it says")

    def _signed(self, text: str, says: Mapping[str, Any], length: int | None, *, verify: bool = False) -> bytes:
        """Return a signed manifest. length: in bytes, of what will stand behind the text; None = nothing."""
        import c2pa

        raw = text.encode()
        digest = hashlib.sha256(normalized("NFC", text).encode()).digest()
        binding: dict[str, Any] = {"name": "text", "alg": "sha256", "hash": list(digest), "pad": []}
        if length is not None:
            binding["exclusions"] = [{"start": len(raw), "length": length}]
        actions: list[dict[str, str]] = [{"action": "c2pa.created", "digitalSourceType": SOURCE}]
        if says.get("marked"):
            actions.append({"action": "c2pa.watermarked.unbound"})
        parts = {"c2pa.actions.v2": {"actions": actions}, LABEL: dict(says), BINDING: binding}
        manifest = {
            "claim_generator_info": [{"name": "caw", "version": caw.__version__}], "format": PLAIN,
            "assertions": [{"label": label, "created": True, "data": data} for label, data in parts.items()],
        }  # fmt: skip
        info = c2pa.C2paSignerInfo(alg=self._alg, **self._info)
        context = c2pa.Context.from_dict({"verify": {"verify_after_sign": verify}})
        with context, c2pa.Signer.from_info(info) as signer, c2pa.Builder(manifest, context=context) as builder:
            builder.set_no_embed()
            return bytes(builder.sign(signer, PLAIN, io.BytesIO(raw), io.BytesIO()))


def lacking() -> str:
    """Return the package that manifests need and that is not installed, "" if none is."""
    return next((name for name in ("c2pa-python", "c2pa-text", "cryptography") if not there(PACKAGES[name][0])), "")


def _algorithm(key: str) -> Any:
    """Return the C2PA algorithm of a private key. ValueError for another file, or another kind of key."""
    import c2pa
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    kinds = c2pa.C2paSigningAlg
    try:
        loaded = load_pem_private_key(key.encode(), None)
    except (TypeError, ValueError):
        loaded = None
    if isinstance(loaded, ec.EllipticCurvePrivateKey) and loaded.key_size in (256, 384, 521):
        return {256: kinds.ES256, 384: kinds.ES384, 521: kinds.ES512}[loaded.key_size]
    if isinstance(loaded, ed25519.Ed25519PrivateKey):
        return kinds.ED25519
    if isinstance(loaded, rsa.RSAPrivateKey):
        return kinds.PS256
    raise ValueError(
        "a C2PA key must be an unencrypted PEM file of a P-256, P-384, P-521, RSA or Ed25519 key, got something else; "
        "give one"
    )


def without_manifest(text: str) -> str:
    """Return the text without manifests inside it."""
    return WRAPPER.sub("", text) if MAGIC in text else text


def read(text: str, trust: str = "", beside: bytes | None = None) -> Record | None:
    """Return what the manifest inside a text says, or the one beside it; None if there is none.

    trust: PEM, certificates that may have issued the signer's.
    """
    places = [found.span() for found in WRAPPER.finditer(text)] if MAGIC in text else []
    if not places and beside is None:
        return None
    if lacks := lacking():
        return Record(UNREAD, why=missing(lacks, "C2PA manifests"))
    if len(places) > 1 or (places and beside is not None):
        return Record(CHANGED, why="a text may have one, and several were given")
    import c2pa

    exclusions = []
    if places:
        [(start, end)] = places
        exclusions = [{"start": len(text[:start].encode()), "length": len(text[start:end].encode())}]
        beside = _unwrapped(text[start:end])
    if beside is None:
        return Record(CHANGED, why="a part of it is missing")
    try:
        context = c2pa.Context.from_dict(
            {"trust": {"user_anchors": trust} if trust else {}, "verify": {"remote_manifest_fetch": False}}
        )
        stream = io.BytesIO(text.encode())
        with context, c2pa.Reader(PLAIN, stream, manifest_data=beside, context=context) as reader:
            manifest = json.loads(reader.detailed_json())
            results = json.loads(reader.json())
        active = manifest["manifests"][manifest["active_manifest"]]["assertion_store"]
        active = {name: active.get(name) or {} for name in (LABEL, BINDING)}
        signature = results["manifests"][results["active_manifest"]]["signature_info"]
        codes = {each["code"] for each in results["validation_results"]["activeManifest"]["failure"]}
    except (c2pa.C2paError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Record(CHANGED, why=shown(str(error) or "it cannot be read"))
    # of the text's hash c2pa knows neither the place inside a text nor the normal form
    failures = sorted(code for code in codes if not code.startswith("assertion.dataHash.")) or [""]
    if failures not in ([""], ["signingCredential.untrusted"]):
        return Record(CHANGED, why=", ".join(failures))
    signer = visible(" ".join(f"{signature.get('issuer', '')} ({signature.get('common_name', '')})".split()))[:200]
    fits = _fits(active[BINDING], without_manifest(text), exclusions)
    return Record((UNKNOWN if failures[0] else TRUSTED) if fits else OTHER, signer, active[LABEL])


def _unwrapped(wrapper: str) -> bytes | None:
    import c2pa_text

    info = c2pa_text.find_wrapper_info(wrapper)
    return None if info is None else bytes(info[0])


def _fits(binding: Mapping[str, Any], text: str, exclusions: list[dict[str, int]]) -> bool:
    """Return whether a text has the hash of a manifest, which leaves out what these name and nothing else."""
    alg, digest = binding.get("alg", HASHES[0]), binding.get("hash")
    if alg not in HASHES or not isinstance(digest, str) or (binding.get("exclusions") or []) != exclusions:
        return False
    raw = normalized("NFC", text).encode()
    return base64.b64encode(hashlib.new(alg, raw).digest()).decode() == digest
