"""A custom watermark: green lists seeded by the last two tokens, in either order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

import caw
from caw import prf
from caw.watermarks import TokenScores
from caw.watermarks.green_list import GreenList
from caw.watermarks.keys import derive_key


@dataclass(frozen=True)
class EitherOrder(GreenList):
    """Green iff the keyed function says so for (the two previous tokens, sorted; the token)."""

    name: ClassVar[str] = "either-order"

    @property
    def window(self) -> int:
        return 2  # tokens of context that decoder and detector pass in

    def green_tokens(self, context: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """context int64 [B, 2], -1 where there is no token; tokens int64 [B, N] -> bool [B, N]."""
        # its own key: other lists say nothing about these
        key = derive_key(self.secret, b"example/either-order")
        return prf.green(prf.context_words(key, context.sort(dim=1).values, tokens), self.gamma)

    def green_vocabulary(self, context: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """The whole lists, bool [B, V]; for positions where no likely token is green."""
        tokens = torch.arange(vocab_size, device=context.device).expand(context.shape[0], -1)
        return self.green_tokens(context, tokens)

    def score_tokens(self, ids: torch.Tensor) -> TokenScores:
        """Every token of one text, int64 [n], from the text alone."""
        contexts, tokens = self.contexts(ids), ids[:, None]
        return TokenScores(
            values=self.green_tokens(contexts, tokens)[:, 0].double(),
            # the same pair and token again is the same evidence: it counts once
            evidence=torch.cat([contexts.sort(dim=1).values, tokens], dim=1),
            scored=torch.ones_like(ids, dtype=torch.bool),
        )


def main() -> None:
    """Mark a text and detect the mark."""
    model, tokenizer = caw.load_model("smollm2-135m")
    watermark = EitherOrder(key=42)
    policy = caw.CapacityPolicy("smollm2-135m")  # any policy goes with any watermark
    prompt = "Why do we sleep?"
    out = caw.generate(model, tokenizer, prompt, watermark=watermark, policy=policy, chat=True)
    print(out.texts[0])
    print("with the key:   ", caw.detect(out.texts[0], tokenizer, watermark).message)
    other = EitherOrder(key=43)
    print("with another:   ", caw.detect(out.texts[0], tokenizer, other).message)


if __name__ == "__main__":
    main()
