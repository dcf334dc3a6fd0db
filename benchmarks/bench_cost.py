"""What a mark of drawn words costs, and how well it is found: race, SynthID and green lists against unmarked texts.

    python benchmarks/bench_cost.py --folder runs/cost --models MODELS [--minutes 80] [--threads 1]
    python benchmarks/bench_cost.py --folder runs/cost --out benchmarks/results/cost.json.xz

MODELS is a folder with the .gguf files of `SUBJECTS`. One text of at most 400 tokens for each everyday prompt and key;
its beginnings give the shorter ones. A chunk is a model, a temperature, a method, a key and up to 100 prompts;
finished chunks are skipped, so a run can be continued, and `PLAN` lists them by worth. Prompts of
`caw_lab/training/everyday_prompts.jsonl` from the 41st on, without `CHOSEN_WITH`, the ones that V was chosen
with.

Of each text are kept (no words):

    n, ended     tokens, and whether it ended by itself
    p            -log10 of the p-value of the beginnings of 50, 100, 200, 300 and of the whole, by the detector of its
                 method without model or prompt; an unmarked text is tested by the one of the race
    nats         -log p a token under the model at temperature 1, of the first 200 tokens and of the whole
    excess       the same minus what the distribution that is drawn from lets expect at each place: 0 without a mark
    other        -log p a token under the other model (in its own tokens, after the prompt), of the whole; of the first
                 20 texts of a chunk
    distinct     share of 4-grams that are distinct, of the first 200 tokens and of the whole
"""

import argparse
import itertools
import json
import lzma
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text
from caw.models.teacher import log_probs, teacher_forced
from caw_lab.training.everyday import EVERYDAY

CHOSEN_WITH = (
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
TOKENS, LENGTHS, FIRST, GRAM = 400, (50, 100, 200, 300), 200, 4
USED, SHARE = 40, 100  # prompts that earlier trials used, and prompts of a chunk
JUDGED, LEVEL = 20, 1e-3


@dataclass(frozen=True)
class Subject:
    source: str
    quantization: str | None
    chat: bool
    judge: str
    evaluator: str | None = None
    batch: int = 64


SUBJECTS = {
    "smollm2": Subject("smollm2-135m", None, True, "qwen05", "smollm2-135m"),
    "qwen05": Subject("qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "file-fast", True, "smollm2", "qwen2.5-coder-0.5b"),
    "gemma270m": Subject("gemma3-270m.Q4_K_M.gguf", "file-fast", False, "smollm2"),
    "qwen15": Subject("qwen2.5-coder-1.5b-instruct.Q4_K_M.gguf", "file-fast", True, "smollm2", "qwen2.5-coder-1.5b"),
}
METHODS: dict[str, Callable[[str, Subject], dict[str, Any]]] = {
    "unmarked": lambda key, subject: {},
    "race": lambda key, subject: {"watermark": caw.Recommended(key)},
    "race-found": lambda key, subject: {"watermark": caw.Recommended(key), "detectable_at": LEVEL},
    "synthid": lambda key, subject: {"watermark": caw.SynthID(key)},
    "dual": lambda key, subject: {"watermark": caw.EXP(key, strength="scale", format="vllm-dual")},
    "kgw-caw": lambda key, subject: {
        "watermark": caw.KGW(key), "policy": caw.CapacityPolicy(subject.evaluator or "universal", target=LEVEL),
    },
    "kgw-2": lambda key, subject: {"watermark": caw.KGW(key, delta=2.0)},
}  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    model: str
    temperature: float
    method: str
    number: int
    """of the key; even ones have the first half of the prompts, odd ones the second"""

    texts: int = SHARE

    @property
    def name(self) -> str:
        return f"{self.model}-{self.temperature:g}-{self.method}-{self.number}"


def _pairs(model: str, number: int, temperatures: tuple[float, ...] = (0.7, 1.0), texts: int = SHARE) -> list[Chunk]:
    return [Chunk(model, t, method, number, texts) for t in temperatures for method in ("unmarked", "race")]


def _others(model: str, number: int, temperatures: tuple[float, ...], texts: int) -> list[Chunk]:
    methods = ("synthid", "kgw-caw", "kgw-2", "dual")
    return [Chunk(model, t, method, number, texts) for t in temperatures for method in methods]


PLAN = [
    *_pairs("smollm2", 0), *_others("smollm2", 0, (0.7,), 30), *_pairs("qwen05", 0, (0.7,), 50), *_pairs("smollm2", 1),
    *_pairs("smollm2", 0, (0.3,)), Chunk("smollm2", 0.3, "race-found", 0), *_pairs("qwen05", 1, (0.7,)),
    *_pairs("gemma270m", 0, texts=50), *_pairs("qwen05", 0, (1.0,), 50), *_pairs("qwen15", 0, texts=30),
    *_others("qwen05", 0, (0.7,), 30), *_others("gemma270m", 0, (0.7,), 30), *_others("qwen15", 0, (0.7,), 30),
    *_pairs("qwen05", 0, (0.3,), 50), *_pairs("gemma270m", 0, (0.3,), 50), *_pairs("qwen15", 0, (0.3,), 30),
    *_others("smollm2", 0, (1.0,), 30), *_others("qwen05", 0, (1.0,), 30), *_others("gemma270m", 0, (1.0,), 30),
    *_others("qwen15", 0, (1.0,), 30), *_others("smollm2", 0, (0.3,), 30), *_others("qwen05", 0, (0.3,), 30),
    *_others("gemma270m", 0, (0.3,), 30), *_others("qwen15", 0, (0.3,), 30), *_pairs("smollm2", 2),
    *_pairs("qwen05", 2), *_pairs("gemma270m", 1, texts=50), *_pairs("smollm2", 3), *_pairs("qwen05", 3),
    *_pairs("smollm2", 4), *_pairs("smollm2", 5),
]  # fmt: skip


def prompts_of(chunk: Chunk) -> list[str]:
    lines = [json.loads(line)["prompt"] for line in EVERYDAY.read_text(encoding="utf-8").splitlines()]
    half = USED + chunk.number % 2 * SHARE
    return [prompt for prompt in lines[half : half + SHARE] if prompt not in CHOSEN_WITH][: chunk.texts]


class Loaded:
    """Models by name, loaded when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._of = folder, {}

    def __call__(self, name: str) -> tuple[Any, Any]:
        if name not in self._of:
            subject = SUBJECTS[name]
            file = self.folder / subject.source
            source = str(file) if file.is_file() else subject.source
            model, tokenizer = caw.load_model(source, quantization=subject.quantization)
            self._of[name] = model, tokenizer
        return self._of[name]


def coded(name: str, tokenizer: Any, prompts: list[str]) -> list[list[int]]:
    if not SUBJECTS[name].chat:
        return [list(ids) for ids in tokenizer(prompts)["input_ids"]]
    made = [
        tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True, tokenize=False)
        for p in prompts
    ]
    return [list(ids) for ids in tokenizer(made, add_special_tokens=False)["input_ids"]]


@torch.inference_mode()
def measured(chunk: Chunk, loaded: Loaded) -> list[dict[str, Any]]:
    subject, prompts = SUBJECTS[chunk.model], prompts_of(chunk)
    model, tokenizer = loaded(chunk.model)
    key = f"what a mark costs {chunk.number}"
    asked = METHODS[chunk.method](key, subject)
    ids = coded(chunk.model, tokenizer, prompts)
    began = time.time()
    out = caw.generate(
        model, tokenizer, ids, do_sample=True, temperature=chunk.temperature, seed=chunk.number,
        max_new_tokens=TOKENS, batch_size=subject.batch, return_trace=False, progress=False, speculate=None, **asked,
    )  # fmt: skip
    print(f"{chunk.name}: {sum(map(len, out.sequences))} tokens in {time.time() - began:.0f} s", flush=True)
    detector = asked.get("watermark", caw.Recommended(key))
    rows = []
    for tokens in out.sequences:
        beginnings = [tokens[:n] for n in LENGTHS if n <= len(tokens)] + [tokens]
        results = caw.detect(beginnings, None, detector, fpr=LEVEL)
        rows.append({
            "n": len(tokens), "ended": len(tokens) < TOKENS,
            "p": [round(-math.log10(max(r.p_value, 1e-300)), 2) for r in results],
            "distinct": [round(distinct(part), 4) for part in (tokens[:FIRST], tokens)],
        })  # fmt: skip
    for i, own in likelihoods(model, ids, out.sequences, chunk.temperature):
        rows[i] |= own
    judge, its = loaded(subject.judge)
    said = [its(text, add_special_tokens=False)["input_ids"] for text in out.texts[:JUDGED]]
    before = coded(subject.judge, its, prompts) if subject.chat else [its(p)["input_ids"] for p in prompts]
    read = log_probs(judge, [([*b, *s], len(b)) for b, s in zip(before, said, strict=False)])
    others = [round(-float(found.mean()), 4) if len(found) else None for found in read]
    for row, other in itertools.zip_longest(rows, others):
        row["other"] = other
    print(f"{chunk.name}: measured after {time.time() - began:.0f} s", flush=True)
    return rows


def distinct(tokens: list[int]) -> float:
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return len(set(grams)) / max(len(grams), 1)


def likelihoods(
    model: Any, prompts: list[list[int]], texts: list[list[int]], temperature: float
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, nats and excess) of each text."""
    asked = [([*p, *t], len(p)) for p, t in zip(prompts, texts, strict=True)]
    for i, logits in teacher_forced(model, asked):
        own, expected = [], []
        wanted = torch.tensor(texts[i])
        for at in range(0, len(wanted), 16):
            part = logits[at : at + 16][: len(wanted) - at].float().log_softmax(1)
            own.append(-part.gather(1, wanted[at : at + 16, None])[:, 0])
            expected.append(-((part / temperature).softmax(1) * part).sum(1))
        nats, excess = torch.cat(own).double(), torch.cat(own).double() - torch.cat(expected).double()
        yield (
            i,
            {
                name: [round(float(values[:end].mean()), 4) for end in (FIRST, len(wanted))]
                for name, values in (("nats", nats), ("excess", excess))
            },
        )


def run(folder: Path, models: Path, minutes: float) -> None:
    until, loaded = time.time() + 60 * minutes, Loaded(models)
    folder.mkdir(parents=True, exist_ok=True)
    for chunk in PLAN:
        path = folder / f"{chunk.name}.json"
        if path.exists():
            continue
        if time.time() > until:
            break
        write_text(path, json.dumps({"chunk": vars(chunk), **about(), "rows": measured(chunk, loaded)}))


def publish(folder: Path, out: Path) -> None:
    """All chunks in one file: for each what it is, and its rows by column."""
    chunks, first = [], None
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        rows, first = found.pop("rows"), first or found
        chunks.append({**found["chunk"], **{name: [row[name] for row in rows] for name in rows[0]}})
    said = {**{name: value for name, value in (first or {}).items() if name != "chunk"}, "rows": chunks}
    out.write_bytes(lzma.compress(json.dumps(said, separators=(",", ":")).encode(), preset=9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--minutes", type=float, default=80)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.out is not None:
        publish(asked.folder, asked.out)
    else:
        run(asked.folder, asked.models or Path(), asked.minutes)


if __name__ == "__main__":
    main()
