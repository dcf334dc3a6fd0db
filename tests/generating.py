"""Call `generate` on tiny models, and record what a streamer is given."""

from typing import Any

import torch
from decoding.architectures import character, prompt, tokenizer
from transformers.generation.streamers import BaseStreamer

import caw

PROMPTS = [prompt(9), prompt(1, 2), prompt(14, 1)]
WATERMARKS = {"kgw": caw.KGW(key=1), "unigram": caw.Unigram(key=2, gamma=0.5), "exp": caw.EXP(key=3)}


def generate(model: Any, prompts: Any = PROMPTS, **options: Any) -> caw.GenerationOutput:
    return caw.generate(model, tokenizer(), prompts, **{"max_new_tokens": 12, **options})


def text_of(tokens: list[int]) -> str:
    return "".join(map(character, tokens))


def stock_greedy(model: Any, ids: list[int], **options: Any) -> list[int]:
    out = model.generate(torch.tensor([ids]), do_sample=False, pad_token_id=0, **options)
    return out[0, len(ids) :].tolist()


class Recorder(BaseStreamer):
    """Keeps what it is given; raises `error` when the token number `at` comes."""

    def __init__(self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.given: list[Any] = []
        self.ended, self.at, self.error = 0, at, error

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())
        if len(self.given) - 1 == self.at:
            raise self.error

    def end(self) -> None:
        self.ended += 1
