"""Real .gguf files against llama.cpp: the same ids of texts, the same greedy tokens but for near ties.

    python -m venv /tmp/llama && /tmp/llama/bin/pip install xllamacpp
    python benchmarks/bench_llama_cpp.py --llama /tmp/llama/bin/python MODEL.gguf [MODEL.gguf ...] --names

llama.cpp rounds inputs of its products to 8 bits, so a token may differ where two logits are near each other; the
gap is that of this library's logits between its own token and llama.cpp's. `--names` gives the demo model's
vocabulary every pre-tokenizer that is known here in turn. Writes benchmarks/results/llama_cpp.json: counts and
digests, no texts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# fmt: off
PROMPTS = (
    "The capital of France is", "def fibonacci(n):\n    ", "In 1969, 12 345 people   saw 3.14159 and",
    "Water boils at 100 degrees because", "Once upon a time there was a", "1. one\n\n2. two\n\n3.",
    "import numpy as np\n\ndef mean(x):\n", "The three laws of motion are",
    "Dear Sir or Madam,\n\nI am writing to", "Q: What is 17 + 25?\nA:", "To bake bread you need",
    "SELECT name, age FROM users WHERE", "Die Hauptstadt von Deutschland ist",
    "La r\u00e9volution fran\u00e7aise commence en", "class Stack:\n    def __init__(self):",
    "The difference between a virus and a bacterium is", "for i in range(10):\n    print(",
    "It was the best of times, it was", "A prime number is a number that",
    "total:    42\napples        120\npears          45\nplums",
)
TEXTS = (
    *PROMPTS, "It's I'LL they've DON'T we'd", "\u65e5\u672c\u8a9e \u4e2d\u6587 \ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639 \u0939\u093f", "a\n\n\nb \n c\r\nd\t\te   f",
    "x=1;y==2;z!=3//4**5<=6 {a:[b,c]} $9.99 `q` ~w", "1234567 12 3 45678.9 1,000,000",
    "HelloWorld helloWORLD iPhone", "cafe\u0301 na\u00efve \u00bd \u2460 \u0663\u0664", "trailing  ", "  leading",
    "don't.stop!now?yes;no:maybe/or",
)
# fmt: on


def llama_side() -> None:
    """In llama.cpp's own environment: answers requests on stdin, one JSON object a line, on stdout."""
    import xllamacpp as llama

    given = json.loads(sys.stdin.readline())
    params = llama.CommonParams()
    params.model.path = given["model"]
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 1024, 1, False, -1
    params.cpuparams.n_threads = given["threads"]
    params.cache_type_k = params.cache_type_v = llama.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = type(params.flash_attn_type)(0)
    server = llama.Server(params)
    for line in sys.stdin:
        path, body = json.loads(line)
        request = urllib.request.Request(
            server.listening_address + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            print("answer " + json.dumps(json.load(answer)), flush=True)


class Llama:
    """llama.cpp with one file."""

    def __init__(self, python: str, model: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        self._send({"model": str(model), "threads": threads})

    def _send(self, value: Any) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._send([path, body])
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("answer "):
                return dict(json.loads(line.removeprefix("answer ")))
        raise SystemExit("llama.cpp ended without an answer; is xllamacpp installed there?")

    def ids(self, text: str) -> list[int]:
        return list(self.ask("/tokenize", {"content": text, "add_special": True, "parse_special": False})["tokens"])

    def greedy(self, ids: list[int], tokens: int) -> list[int]:
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "return_tokens": True, "cache_prompt": False,
                "ignore_eos": True, "samplers": ["temperature"]}  # fmt: skip
        return list(self.ask("/completion", body)["tokens"])

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def compare(model: Path, python: str, threads: int, tokens: int, near: float) -> dict[str, Any]:
    """Counts for one file."""
    import torch

    import caw

    torch.set_num_threads(threads)
    ours, tokenizer = caw.load_model(model, device="cpu", dtype="float32")
    theirs, gaps, same_ids, ids_of = Llama(python, model, threads), [], 0, []
    for prompt in PROMPTS:
        ids = theirs.ids(prompt)
        same_ids += ids == tokenizer(prompt)["input_ids"]
        found = theirs.greedy(ids, tokens)
        with torch.inference_mode():
            logits = ours(torch.tensor([ids + found])).logits[0, len(ids) - 1 : -1].float()
        at = torch.arange(len(found))
        gap = logits.max(-1).values - logits[at, torch.tensor(found)]
        # behind the first other token the texts part
        gaps.append(next((float(g) for g in gap if g > 0), 0.0))
        ids_of.append(found)
    theirs.close()
    apart = sorted(g for g in gaps if g > 0)
    return {
        "prompts": len(PROMPTS), "tokens": tokens, "ids of prompts equal": same_ids,
        "greedy equal": len(PROMPTS) - len(apart), "near tie": sum(g <= near for g in apart),
        "different": sum(g > near for g in apart), "gaps": [round(g, 4) for g in apart], "near below": near,
        "digest of llama.cpp's ids": hashlib.sha256(json.dumps(ids_of).encode()).hexdigest()[:16],
    }  # fmt: skip


def renamed(file: Path, name: str, into: Path) -> Path:
    """The file with another name of its pre-tokenizer."""
    whole = file.read_bytes()
    key = b"tokenizer.ggml.pre"
    at = whole.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    (old,) = struct.unpack_from("<Q", whole, at)
    from caw.models.gguf_file import GGUFFile

    start = min(info.offset for info in GGUFFile(file).tensors.values())
    text = name.encode()
    # the header's own last bytes may be zeros, so its length is counted, not guessed
    length = GGUFFile(file)._at + len(text) - old
    header = (whole[:at] + struct.pack("<Q", len(text)) + text + whole[at + 8 + old : start])[:length]
    into.write_bytes(header + bytes(-length % 32) + whole[start:])
    return into


def names(python: str, threads: int) -> dict[str, Any]:
    """Names of pre-tokenizers by how many texts have other ids than with llama.cpp."""
    from caw.models.gguf_file import GGUFFile
    from caw.models.gguf_tokenizer import SPLITS, gguf_tokenizer
    from caw.models.sources import DEMO_MODEL, file_or_folder

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SPLITS:
            file = renamed(file_or_folder(DEMO_MODEL), name, Path(folder) / "renamed.gguf")
            theirs, tokenizer = Llama(python, file, threads), gguf_tokenizer(GGUFFile(file))
            tokenizer.backend_tokenizer.normalizer = None  # llama.cpp composes no characters
            other = [i for i, text in enumerate(TEXTS) if theirs.ids(text) != tokenizer(text)["input_ids"]]
            theirs.close()
            found[name] = {"other ids": len(other), "texts": other}
            print(name, other, file=sys.stderr, flush=True)
    return {"texts": len(TEXTS), "names": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--llama", help="python with xllamacpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--near", type=float, default=0.25, help="logit gap of a near tie")
    parser.add_argument("--names", action="store_true", help="compare every pre-tokenizer")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return llama_side()
    place = HERE / "results" / "llama_cpp.json"
    result = json.loads(place.read_text()) if place.exists() else {}
    for model in options.models:
        result[model.name] = compare(model, options.llama, options.threads, options.tokens, options.near)
        print(model.name, json.dumps(result[model.name], indent=1))
    if options.names:
        result["pre-tokenizers"] = names(options.llama, options.threads)
    result["command"] = "python benchmarks/bench_llama_cpp.py --llama PYTHON_WITH_XLLAMACPP MODEL.gguf ... --names"
    place.write_text(json.dumps(result, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
