"""Base of the formats of other systems: keys that those can represent, and numbers over one model's vocabulary."""

from caw.watermarks.scheme import Scheme


class ForeignScheme(Scheme):
    """A scheme of another system, whose name is for messages. size: V of the logits; None until one provides it."""

    foreign = True

    def __init__(self, format_name: str, secret: int, window: int, size: int | None) -> None:
        require_foreign_key(format_name, secret)
        super().__init__(window, secret)
        self.format_name, self.size = format_name, size

    @property
    def vocab_size(self) -> int:
        """V. ValueError if it is unknown."""
        if self.size is None:
            raise ValueError(
                f"format {self.format_name!r} requires vocab_size, the size of the model's logits, got None; pass "
                "vocab_size=model.config.vocab_size"
            )
        return self.size

    def check_readable(self) -> None:
        _ = self.vocab_size


def require_two_lists(gamma: float, size: int | None) -> None:
    """Raise unless int(gamma V) tokens are more than none and fewer than all."""
    if size is not None and not 0 < int(size * gamma) < size:
        raise ValueError(f"gamma must leave both lists of {size} tokens non-empty, got {gamma!r}; use 0.25")


def require_foreign_key(format_name: str, key: int) -> None:
    """Raise unless the other systems can represent the key and it affects the 32 bits that their generators read."""
    if key >> 63:
        raise ValueError(
            f"format {format_name!r} requires a key below 2**63, got a greater one; use an integer that the other "
            "system supports (text becomes 64 bits)"
        )
    if not key & 0xFFFFFFFF:
        raise ValueError(
            f"format {format_name!r} reads the low 32 bits of key * tokens, which are 0 for this key; use another one"
        )
