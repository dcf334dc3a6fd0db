"""KGW: green lists seeded by the tokens before (Kirchenbauer et al. 2023, arXiv 2301.10226 and 2306.04634).

Native format, under the key derived for domain `caw/kgw` (see `prf`), word = PRF(key, context, token):

    lefthash  context = the last `context_width` generated tokens (default 1)
              green iff (word >> 8) < floor(gamma 2^24)
    selfhash  window = the last `context_width` - 1 generated tokens (default 3)
              seed = the smallest PRF(key, (x,), token) over x in the window (the anchored minimum)
              green iff (PRF(key, (seed, token), token) >> 8) < floor(gamma 2^24)

What counts as evidence once is (context, token), for selfhash (seed, token). The code: `formats.native`.

Formats of other systems: `formats.rules`. What counts as evidence once there is (seed of the list, token).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from caw.checks import require_choice, require_int
from caw.watermarks.formats.foreign import require_vocab_size
from caw.watermarks.formats.foreign_lists import ForeignLists, TestedLists
from caw.watermarks.formats.native import LeftHash, SelfHash
from caw.watermarks.formats.rules import FOREIGN, find_rule
from caw.watermarks.green_list import FormattedList, GreenScheme
from caw.watermarks.payload import make_payload
from caw.watermarks.scheme import require_format

DOMAIN = b"caw/kgw"
SEEDINGS = {"lefthash": LeftHash, "selfhash": SelfHash}
MAX_WIDTH = 16


@dataclass(frozen=True)
class KGW(FormattedList):
    """Green lists that change with the tokens before: Kirchenbauer et al. 2023, arXiv 2301.10226, Algorithm 2.

    Args:
        key: int below 2^64, text or bytes.
        gamma: share of the vocabulary that is green, in (0, 1).
        delta: number that strength 1 adds to the logits of green tokens.
        seeding: "lefthash" or "selfhash". Formats of other systems have more, see `formats.rules`.
        context_width: number of hashed tokens; selfhash includes the candidate. None = 1 for lefthash, 4 for selfhash,
            or the format's own.
        format: "native", "transformers", "markllm", "lm-watermarking" or "sbw".
        vocab_size: size of the model's logits, over which formats of other systems draw lists. `generate` fills it in.
        subkeys: V, in [1, 1024]: sub-keys that a detector tries, corrected for their number. Texts are marked with
            sub-key 0, the key itself, so a detector with more sub-keys reads them too. Native format, no payload.
        subkey: the sub-key in [0, subkeys) that marks; with subkeys=1 any up to 1023, which a detector reads alone.
        payload, payload_bits: a number below 2^payload_bits (at most 2^32) to embed in the text, see `payload`. To read
            it, give payload_bits alone. Native format only, gamma 1/2, 1/4 or 1/16.

    Raises TypeError or ValueError naming the argument, and ImportError for a payload without reedsolo.
    """

    seeding: str = "lefthash"
    subkeys: int = 1
    context_width: int | None = None
    format: str = "native"
    vocab_size: int | None = None
    payload: int | None = None
    payload_bits: int = 0
    subkey: int = 0

    name: ClassVar[str] = "kgw"

    def validate(self) -> None:
        super().validate()
        require_format(self.format, ("native", *FOREIGN))
        require_vocab_size(self.vocab_size)
        self.check_subkeys(self.payload_bits)
        object.__setattr__(self, "context_width", self.scheme.width)

    @cached_property
    def scheme(self) -> GreenScheme:
        lists = round(1 / self.gamma) if 1 / self.gamma % 1 == 0 else 0
        payload = make_payload(self.payload, self.payload_bits, lists, self.format)
        if self.format != "native":
            rule = find_rule(self.format, self.seeding)
            foreign = TestedLists if rule.tested else ForeignLists
            return foreign(self.format, rule, self.secret, self.gamma, self.context_width, self.vocab_size)
        require_choice("seeding", self.seeding, tuple(SEEDINGS), "lefthash")
        kind = SEEDINGS[self.seeding]
        width = kind.default_width if self.context_width is None else self.context_width
        require_int("context_width", width, 1 + kind.salted, MAX_WIDTH)
        return kind(self.secret, DOMAIN, self.gamma, width, payload, self.subkey)
