"""How short answers may be that are called marked: texts put together from answers of n tokens each, by watermark.

    python benchmarks/bench_short_answers.py --marks exp --answers 5,8,16,150

An answer knows the tokens that it generated itself as contexts, and no earlier ones. That is what a text decoded at
once looks like whose contexts forget, at every n-th token, what stood before; so no text is decoded more than once.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

import caw
from caw.decoding.texts import Texts

PROMPTS = [
    "The history of tea began in", "My favourite way to spend a rainy Sunday is", "The city council decided on Tuesday",
    "How a bicycle stays upright:", "Once upon a time in a small village", "The most important thing about cooking is",
    "Scientists have discovered that", "In the winter of 1890, the explorers",
]  # fmt: skip
KEY, TOKENS, LEVEL = "field-test-key", 150, 1e-3
MARKS: dict[str, Any] = {
    "kgw": caw.KGW(key=KEY), "selfhash": caw.KGW(key=KEY, seeding="selfhash"), "exp": caw.EXP(key=KEY),
    "synthid": caw.SynthID(key=KEY), "unigram": caw.Unigram(key=KEY),
}  # fmt: skip


class Forgetful:
    """What a state of texts made of answers of `answer` tokens, one behind the other, says of contexts."""

    answer = TOKENS
    whole = staticmethod(Texts.contexts)

    @classmethod
    def begun(cls, state: Texts) -> torch.Tensor:
        return (state.counts // cls.answer * cls.answer)[:, None]

    @classmethod
    def contexts(cls, state: Texts) -> torch.Tensor:
        whole = cls.whole(state)
        place = state.counts[:, None] - state.window + torch.arange(state.window, device=whole.device)[None]
        return torch.where(place < cls.begun(state), -1, whole)

    @classmethod
    def repeats(cls, state: Texts, context: torch.Tensor, missing: int) -> torch.Tensor:
        context = context.clamp_min(missing)
        windows = state.padded_tokens.clamp_min(missing).unfold(1, state.window, 1)[:, :-1]
        place = torch.arange(windows.shape[1], device=context.device)[None]
        own = (place >= cls.begun(state) + state.window) & (place < state.counts[:, None])
        return ((windows == context[:, None]).all(dim=-1) & own).any(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--marks", default=",".join(MARKS))
    parser.add_argument("--answers", default="1,2,3,4,5,6,8,12,16,24,32,150")
    asked = parser.parse_args()
    forgetful = {"contexts": Forgetful.contexts, "context_repeats": Forgetful.repeats}
    for name, function in forgetful.items():
        setattr(Texts, name, lambda state, *rest, function=function: function(state, *rest))
    model, tokenizer = caw.load_model("smollm2-135m", dtype="float32")
    for name in asked.marks.split(","):
        for answer in map(int, asked.answers.split(",")):
            Forgetful.answer = answer
            out = caw.generate(
                model, tokenizer, PROMPTS, watermark=MARKS[name], max_new_tokens=TOKENS, min_new_tokens=TOKENS,
                progress=False, return_trace=False, speculate=None, batch_size=len(PROMPTS),
            )  # fmt: skip
            found = [float(caw.detect(ids, None, MARKS[name]).p_value) for ids in out.sequences]
            hits = sum(p <= LEVEL for p in found)
            print(f"{name} {answer}: {hits} of {len(found)}, median p {statistics.median(found):.1e}", flush=True)


if __name__ == "__main__":
    main()
