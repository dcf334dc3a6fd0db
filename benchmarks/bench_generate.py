"""What watermarking costs: ways to generate the same number of tokens, interleaved in one run, as ratios.

    python benchmarks/bench_generate.py [--model smollm2-135m] [--tokens 64] [--rounds 7] [--batch 1] [--out r.json]
    python benchmarks/bench_generate.py --shapes llama-2-7b --dtype float16 --prompt 1024   (random weights, on a GPU)

Each round runs every variant once, in another order; a variant's ratio is its time over that of this library's own
unwatermarked decode in the same round, and the median over rounds is reported with its 20th and 80th percentile.
Processor time of the calling thread with one thread, else wall time, so that a busy machine shifts all alike.
transformers.generate is the same model, greedy, with its own attention and cache.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.initialization import no_init_weights

import caw
from caw.evaluator import Evaluator, FeatureSpec

PROMPT = "Tell me about the history of tea."


SHAPES: dict[str, dict[str, Any]] = {
    "llama-2-7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "llama-2-13b": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
                    "num_attention_heads": 40},
    "llama-3-8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "vocab_size": 128256},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
}  # fmt: skip


def random_model(shapes: str, dtype: str) -> Any:
    """A Llama of these shapes with random weights, made where it will run: its speed is that of the real one."""
    config = transformers.LlamaConfig(max_position_embeddings=16384, **SHAPES[shapes])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02) if parameter.dim() > 1 else parameter.fill_(1)
    return model


def number_tokenizer(vocab_size: int) -> Any:
    """A tokenizer whose tokens are numbers, for models that have none."""
    core = Tokenizer(WordLevel({str(i): i for i in range(vocab_size)}, unk_token="0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, eos_token="0")


def prompt_ids(tokenizer: Any, length: int | None, vocab_size: int) -> list[int]:
    """The chat prompt, or `length` random ids."""
    if length is not None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(3, vocab_size, (length,), generator=generator).tolist()
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def variants(
    model: Any, tokenizer: Any, evaluator: Any, tokens: int, batch: int, ids: list[int]
) -> dict[str, Callable[[], int]]:
    """Name -> a call that generates and returns how many tokens it made; `plain` is what the others are compared to."""
    # rows that differ early: what all prompts begin with would go through the model once in this library
    prompts = [[*ids[:2], 100 + row, *ids[2:]] for row in range(batch)]
    rows = torch.tensor(prompts, device=model.device)
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}

    def ours(watermark: Any, policy: Any, branching: str = "tree") -> Callable[[], int]:
        options = {**length, "branching": branching, "return_trace": False, "progress": False}
        return lambda: (
            caw.generate(
                model, tokenizer, prompts, watermark=watermark, policy=policy, batch_size=batch, **options
            ).num_tokens
        )

    def theirs() -> int:
        pad = tokenizer.eos_token_id
        out = model.generate(rows, attention_mask=torch.ones_like(rows), do_sample=False, pad_token_id=pad, **length)
        return out[:, rows.shape[1] :].numel()

    kgw, exp = caw.KGW(key=1), caw.EXP(key=1, top_k=10)
    capacity = caw.CapacityPolicy(evaluator, theta=0.8)
    found = {
        "plain": ours(None, None),
        "transformers.generate": theirs,
        "KGW": ours(kgw, None),
        "KGW + CAW": ours(kgw, capacity),
        "EXP": ours(exp, None),
        "EXP + CAW": ours(exp, capacity),
    }
    for branching in ("batch", "sequential"):
        found[f"KGW + CAW, {branching}"] = ours(kgw, capacity, branching)
        found[f"EXP + CAW, {branching}"] = ours(exp, capacity, branching)
    return found


def measure(calls: dict[str, Callable[[], int]], rounds: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every call in every round, after one round that does not count."""
    counts = {name: call() for name, call in calls.items()}
    if len(set(counts.values())) != 1:
        raise RuntimeError(f"every variant must make equally many tokens, got {counts}")
    order, times = list(calls), {name: [] for name in calls}
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            start = clock()
            calls[name]()
            times[name].append(clock() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--evaluator", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shapes", choices=SHAPES, help="random weights of these shapes instead of --model")
    parser.add_argument("--prompt", type=int, help="length of a prompt of random ids")
    parser.add_argument("--only", nargs="+", help="variants to time beside plain")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    if arguments.shapes:
        model = random_model(arguments.shapes, arguments.dtype)
        tokenizer = number_tokenizer(model.config.vocab_size)
        evaluator: Any = Evaluator(FeatureSpec()).eval().requires_grad_(False)
        arguments.prompt = arguments.prompt or 128
    else:
        model, tokenizer = caw.load_model(arguments.model, dtype=arguments.dtype)
        evaluator = arguments.evaluator
    single = arguments.threads == 1 and model.device.type == "cpu"
    ids = prompt_ids(tokenizer, arguments.prompt, model.config.vocab_size)
    calls = variants(model, tokenizer, evaluator, arguments.tokens, arguments.batch, ids)
    if arguments.only:
        calls = {name: call for name, call in calls.items() if name in ("plain", *arguments.only)}
    times = measure(calls, arguments.rounds, time.thread_time if single else time.perf_counter)
    rows = []
    print(f"| variant | time relative to plain (p20 - p80) | tokens/s, batch {arguments.batch} |\n| --- | --- | --- |")
    for name, seconds in times.items():
        ratios = sorted(s / p for s, p in zip(seconds, times["plain"], strict=True))
        low, _, _, high = statistics.quantiles(ratios, n=5) if len(ratios) > 1 else ratios * 4
        speed = arguments.tokens * arguments.batch / statistics.median(seconds)
        rows.append({"variant": name, "ratio": statistics.median(ratios), "p20": low, "p80": high, "speed": speed})
        print(f"| {name} | {statistics.median(ratios):.2f} ({low:.2f} - {high:.2f}) | {speed:.1f} |")
    if arguments.out:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "caw": caw.__version__}
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "versions": versions, "rows": rows}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
