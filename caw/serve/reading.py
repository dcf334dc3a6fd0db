"""What tests of texts need of a server: a tokenizer and the watermark of each key, and no model."""

from typing import Any

from caw.serve.contracts import MarkKey
from caw.serve.settings import ServerSettings
from caw.watermarks import Signature
from caw.watermarks.names import watermark_from


class Reading:
    """A tokenizer and the watermark that the server describes, whose key is not used. vocab_size: number of logits."""

    def __init__(self, tokenizer: Any, watermark: Signature, settings: ServerSettings, vocab_size: int) -> None:
        self.tokenizer, self.settings, self.vocab_size = tokenizer, settings, vocab_size
        self.watermark = watermark.with_vocabulary(vocab_size)

    def mark_of(self, key: MarkKey) -> Signature:
        """Return the watermark of a key, whether or not this server marks with it."""
        if not key.watermark:
            return self.watermark.with_key(key.key)
        return watermark_from(key.watermark, key.key).with_vocabulary(self.vocab_size)
