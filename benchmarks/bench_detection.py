"""How well marked texts are found, and what marking changed: plain, KGW and CAW texts of the same prompts.

    python benchmarks/bench_detection.py [--tokens 200] [--delta 4] [--theta 0.9] [--beta 1] [--out r.json]

Greedy, with the model's chat template. Every text is tested from the text alone, the plain one too (its rate is that of
false alarms). "changed" is the share of tokens that the watermark chose differently from the model; "surprise" is the
mean negative log-probability, in nats a token, that the unwatermarked model gives to the text it wrote under the mark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from typing import Any

import torch

import caw
from caw.defaults import BETA_BY_MODEL, DELTA, THETA
from caw.models import DEMO_MODEL
from caw.models.teacher import log_probs

PROMPTS = (
    "Tell me about the history of tea.",
    "Describe how bread is made, from grain to loaf.",
    "Write a short letter to a friend about a week in the mountains.",
    "Explain to a child why the sky is blue.",
    "Give advice to someone who is moving to a new city.",
    "What can I do in Rome in three days?",
    "Write a story about a lighthouse keeper who finds a message in a bottle.",
    "How does a bicycle stay upright?",
    "Describe a typical day of a farmer in spring.",
    "What are the benefits of learning a second language?",
    "Explain how a library organises its books.",
    "Write a product description of a wooden chair.",
    "How do I prepare for a job interview?",
    "Tell me about the life of bees.",
    "Describe the water cycle.",
    "What should I consider before adopting a dog?",
    "Write a speech for a school's opening day.",
    "Why do leaves change colour in autumn?",
    "Explain what inflation is.",
    "Describe a train journey through the Alps.",
    "How can a small shop attract more customers?",
    "Tell me about the invention of the printing press.",
    "Write a diary entry of a sailor at sea.",
    "What makes a good friend?",
)


def prompt_ids(tokenizer: Any) -> list[list[int]]:
    """The prompts in the model's chat template."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in PROMPTS
    ]
    return [list(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def surprise(model: Any, prompt_ids: list[int], ids: list[int]) -> float:
    """Mean negative log-probability of `ids` after the prompt, nats."""
    (found,) = log_probs(model, [([*prompt_ids, *ids], len(prompt_ids))])
    return -float(found.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--delta", type=float, default=DELTA)
    parser.add_argument("--theta", type=float, default=THETA)
    parser.add_argument("--beta", type=float, default=BETA_BY_MODEL[DEMO_MODEL])
    parser.add_argument("--key", default="caw benchmark")
    parser.add_argument("--fpr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    model, tokenizer = caw.load_model(arguments.model, dtype=arguments.dtype)
    watermark = caw.KGW(key=arguments.key, delta=arguments.delta)
    policy = caw.CapacityPolicy(arguments.evaluator, theta=arguments.theta, beta=arguments.beta)
    ids = prompt_ids(tokenizer)
    rows = []
    print(f"| {len(PROMPTS)} texts | found at {arguments.fpr:g} | median p-value | changed | surprise |")
    print("| --- | --- | --- | --- | --- |")
    for name, mark, how in (("plain", None, None), ("KGW", watermark, None), ("KGW + CAW", watermark, policy)):
        out = caw.generate(model, tokenizer, ids, watermark=mark, policy=how, max_new_tokens=arguments.tokens)
        assert out.trace is not None
        results = caw.detect(out.texts, tokenizer, watermark, fpr=arguments.fpr)
        choices = [c for trace in out.trace for c in trace.choice]
        row = {
            "variant": name,
            "found": sum(r.is_watermarked for r in results),
            "texts": len(results),
            "median_p": statistics.median(r.p_value for r in results),
            "changed": sum(c > 0 for c in choices) / len(choices),
            "surprise": statistics.fmean(surprise(model, i, s) for i, s in zip(ids, out.sequences, strict=True)),
        }
        rows.append(row)
        print(
            f"| {name} | {row['found']} of {row['texts']} | {row['median_p']:.1e} | {row['changed']:.1%} "
            f"| {row['surprise']:.2f} |",
            flush=True,
        )
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
