"""C2PA manifests: a signed record of a text, beside it, or inside it in characters that nobody sees.

C2PA 2.4: annex A.8, "Embedding Manifests into Unstructured Text" (A.7 in 2.3), and 9.2.4 for the hash of a text, which
is that of its NFC. A manifest inside names its own place, the bytes that this hash leaves out. Nothing is fetched.
"""

import base64
import contextlib
import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import caw
from caw.io.inputs import read_text
from caw.io.show import shown, visible
from caw.io.unicode import normalized
from caw.requirements import PACKAGES, missing, there

# anything that claims to be one, also damaged: a mark, "C2PATXT" and a zero, the rest of the run
MAGIC = "\U000e0133\U000e0122\U000e0140\U000e0131\U000e0144\U000e0148\U000e0144\ufe00"
WRAPPER = re.compile(f"\ufeff?{MAGIC}[\ufe00-\ufe0f\U000e0100-\U000e01ef]*")
LABEL, BINDING = "caw.receipt", "c2pa.hash.data"
SOURCE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
KIND, PLAIN = "application/c2pa", "text/plain"
HASHES = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}
# uses that a signer's certificate may be for: C2PA claims, e-mail, documents; c2pa itself has the last two only
USES = "1.3.6.1.4.1.62558.2.1\n1.3.6.1.5.5.7.3.4\n1.3.6.1.5.5.7.3.36\n"
# what China's GB 45438-2025 asks a text to show: that it is of an AI, and generated
AIGC_LABEL = "\n\n（AI生成）"
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
    a package is missing. why: of the last two. signer: organisation and name of the certificate. about: this library's
    part of it, {} without one. Both only where the signature holds.
    """

    state: str
    why: str = ""
    signer: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def receipt(self) -> str:
        """The receipt's id, "" for none."""
        return visible(str(self.about.get("receipt", "")))[:64]

    @property
    def message(self) -> str:
        """One sentence."""
        receipt = f"; it names receipt {self.receipt}" if self.receipt else ""
        return SENTENCES[self.state].format(**vars(self) | {"receipt": receipt})


class Signer:
    """Writes manifests.

    Args:
        certificate: PEM, the signer's first, then those of its issuers. key: PEM, PKCS#8.

    What a manifest says is JSON; "marked" in it adds that a watermark was put in.

    Raises ImportError without the packages and ValueError for a certificate or key that does not fit, in one sentence.
    """

    def __init__(self, certificate: str, key: str) -> None:
        if lacks := lacking():
            raise ImportError(lacks)
        import c2pa

        self.certificate = certificate
        self._info = {"sign_cert": certificate.encode(), "private_key": key.encode(), "ta_url": None}
        self._info["alg"] = _algorithm(key)
        try:
            self._signed("x", {}, verify=True)
        except c2pa.C2paError as error:
            raise ValueError(
                "a C2PA certificate must be valid today, for signing, with its issuers behind it and its own key, got "
                f"one of which c2pa says {' '.join(str(error).split())[:200]!r}; have one issued for C2PA claim signing"
            ) from None

    def sign(self, text: str, says: Mapping[str, Any], *, inside: bool) -> tuple[bytes, str]:
        """Return (the manifest of a text, the characters to append to the text if it is to be inside).

        Each signature has bytes of its own, of which some take a character of 3 bytes and most one of 4, and a manifest
        inside names how many it takes in all: it is signed until that is right, some ten times.
        """
        if not inside:
            return self._signed(text, says), ""
        import c2pa_text

        lengths, length = list[int](), FIRST_LENGTH
        for _ in range(MOST_TRIES):
            manifest = self._signed(text, says, length)
            wrapper = str(c2pa_text.encode_wrapper(manifest))
            lengths.append(len(wrapper.encode()))
            if lengths[-1] == length:
                return manifest, wrapper
            length = round(sum(lengths) / len(lengths))
        raise RuntimeError(f"no manifest of {MOST_TRIES} is as long as it says")

    def _signed(self, text: str, says: Mapping[str, Any], length: int = 0, *, verify: bool = False) -> bytes:
        """Return a signed manifest. length: in bytes, of what will stand behind the text."""
        import c2pa

        raw = text.encode()
        binding = {"name": "text", "alg": "sha256", "hash": list(_hash(text, "sha256")), "pad": []}
        if length:
            binding["exclusions"] = [{"start": len(raw), "length": length}]
        actions = [{"action": "c2pa.created", "digitalSourceType": SOURCE}]
        if says.get("marked"):
            actions.append({"action": "c2pa.watermarked.unbound"})
        parts = {"c2pa.actions.v2": {"actions": actions}, LABEL: dict(says), BINDING: binding}
        manifest = {
            "claim_generator_info": [{"name": "caw", "version": caw.__version__}], "format": PLAIN,
            "assertions": [{"label": label, "created": True, "data": data} for label, data in parts.items()],
        }  # fmt: skip
        settings = {"trust": {"trust_config": USES}, "verify": {"verify_after_sign": verify}}
        info = c2pa.C2paSignerInfo(**self._info)
        with (
            c2pa.Context.from_dict(settings) as context,
            c2pa.Signer.from_info(info) as signer,
            c2pa.Builder(manifest, context=context) as builder,
        ):
            builder.set_no_embed()
            return bytes(builder.sign(signer, PLAIN, io.BytesIO(raw), io.BytesIO()))


def lacking() -> str:
    """Return the sentence about a package that manifests need and that is not installed, "" if all are."""
    names = [name for name in ("c2pa-python", "c2pa-text", "cryptography") if not there(PACKAGES[name][0])]
    return missing(names[0], "C2PA manifests") if names else ""


def _algorithm(key: str) -> Any:
    """Return the C2PA algorithm of a private key. ValueError for another file, or another kind of key."""
    import c2pa
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    kinds = c2pa.C2paSigningAlg
    with contextlib.suppress(TypeError, ValueError, LookupError):
        loaded = load_pem_private_key(key.encode(), None)
        if isinstance(loaded, ec.EllipticCurvePrivateKey):
            return {256: kinds.ES256, 384: kinds.ES384, 521: kinds.ES512}[loaded.key_size]
        if isinstance(loaded, ed25519.Ed25519PrivateKey):
            return kinds.ED25519
        if isinstance(loaded, rsa.RSAPrivateKey):
            return kinds.PS256
    raise ValueError(
        "a C2PA key must be an unencrypted PEM file of a P-256, P-384, P-521, RSA or Ed25519 key, got something else; "
        "give one"
    )


def trusted(path: str | None) -> str:
    """Return the PEM of a file of certificates, "" for no file. ValueError for another; unasked without packages."""
    if path is None:
        return ""
    pem = read_text(path)
    if not lacking():
        from cryptography.x509 import load_pem_x509_certificates

        try:
            load_pem_x509_certificates(pem.encode())
        except ValueError:
            raise ValueError(
                "--c2pa-trust must be a PEM file of certificates, got another or a damaged one; give one"
            ) from None
    return pem


def bare(text: str) -> str:
    """Return the text without manifests inside it, and without `AIGC_LABEL` at its end."""
    unsigned = _unsigned(text)
    return unsigned.removesuffix("\n").removesuffix(AIGC_LABEL) if AIGC_LABEL in unsigned else unsigned


def _unsigned(text: str) -> str:
    return WRAPPER.sub("", text) if MAGIC in text else text


def read(text: str, trust: str = "", beside: bytes | None = None) -> Record | None:
    """Return what the manifest inside a text says, or the one beside it; None if there is none.

    trust: PEM, certificates that may have issued the signer's.
    """
    places = [found.span() for found in WRAPPER.finditer(text)] if MAGIC in text else []
    if not places and beside is None:
        return None
    if lacks := lacking():
        return Record(UNREAD, lacks)
    if len(places) + (beside is not None) > 1:
        return Record(CHANGED, "a text may have one, and several were given")
    import c2pa
    import c2pa_text

    exclusions = []
    for start, end in places:
        exclusions.append({"start": len(text[:start].encode()), "length": len(text[start:end].encode())})
        beside = (c2pa_text.find_wrapper_info(text[start:end]) or [None])[0]
    if beside is None:
        return Record(CHANGED, "a part of it is missing")
    anchors = {"user_anchors": trust} if trust else {}
    settings = {"trust": {"trust_config": USES, **anchors}, "verify": {"remote_manifest_fetch": False}}
    try:
        with (
            c2pa.Context.from_dict(settings) as context,
            c2pa.Reader(PLAIN, io.BytesIO(text.encode()), manifest_data=beside, context=context) as reader,
        ):
            found, detailed = json.loads(reader.json()), json.loads(reader.detailed_json())
        name = found["active_manifest"]
        parts, signature = detailed["manifests"][name]["assertion_store"], found["manifests"][name]["signature_info"]
        codes = {each["code"] for each in found["validation_results"]["activeManifest"]["failure"]}
        binding, about = dict(parts.get(BINDING) or {}), dict(parts.get(LABEL) or {})
        # the last line break of a file is its editor's
        forms = [_hash(_unsigned(each), binding.get("alg", "sha256")) for each in (text, text.removesuffix("\n"))]
        fits = (binding.get("exclusions") or []) == exclusions and base64.b64decode(binding["hash"]) in forms
        signer = visible(" ".join(f"{signature.get('issuer')} ({signature.get('common_name')})".split()))[:200]
    except (c2pa.C2paError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Record(CHANGED, shown(str(error)))
    # of the hash c2pa knows neither the place inside a text nor the normal form
    failures = sorted(code for code in codes if not code.startswith("assertion.dataHash."))
    if failures and failures != ["signingCredential.untrusted"]:
        return Record(CHANGED, ", ".join(failures))
    return Record((UNKNOWN if failures else TRUSTED) if fits else OTHER, "", signer, about)


def _hash(text: str, alg: str) -> bytes:
    """Return the hash of a text, as 9.2.4 says. LookupError for another than C2PA's algorithms."""
    return HASHES[alg](normalized("NFC", text).encode()).digest()
