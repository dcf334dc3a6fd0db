"""What a server says about its mark: the document at `/.well-known/watermark.json`, for other services' detectors.

It holds what a detector needs besides the key, and where those without the key have a text tested. No key, no tenant.
"""

import hashlib
import json
from typing import Any

from caw.detectable.receipts import versions
from caw.serve.contracts import LEVEL
from caw.serve.detecting import LEAST_TOKENS, MARKED, MAX_LETTERS, NONE, PUBLIC_BURST, PUBLIC_RATE, SHORT
from caw.serve.languages import LANGUAGES
from caw.serve.reading import Reading
from caw.watermarks.names import said_of

PATH = "/.well-known/watermark.json"


def describe(reading: Reading) -> dict[str, Any]:
    """Return the document. verify: addresses are paths on this server; languages: of its page."""
    return {
        "object": "watermark", "service": f"caw {versions()['caw']}", "model": reading.settings.name,
        "format": said_of(reading.watermark), "context_width": reading.watermark.window,
        "tokenizer": {"vocab_size": reading.vocab_size, "sha256": tokenizer_digest(reading.tokenizer)},
        "verify": {
            "path": "/v1/detect", "page": "/", "languages": list(LANGUAGES), "most_characters": MAX_LETTERS,
            "least_tokens": LEAST_TOKENS, "false_positive_rate": LEVEL, "verdicts": [MARKED, NONE, SHORT],
            "requests_per_second": PUBLIC_RATE, "requests_at_once": PUBLIC_BURST,
        },
    }  # fmt: skip


def tokenizer_digest(tokenizer: Any) -> str:
    """Return the SHA-256 of the vocabulary: a JSON list of [token, id] by id, in ASCII, without spaces."""
    pairs = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    return hashlib.sha256(json.dumps(pairs, separators=(",", ":")).encode()).hexdigest()
