"""What removers of 2026 leave of the marks, on the texts of `bench_robust.py`.

    python benchmarks/bench_removers.py RUNS TOOLS MODELS OUT

RUNS: its folder. TOOLS: folder with checkouts of guillaumemeyer/watermarks-remover (service/scripts) and
cyzanfar/dewatermark. MODELS: folder with the model that rewrites. "readings": `caw.detect` as it is, which undoes
homoglyphs and invisible characters; "bare": `normalize="none"`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from bench_cost import Loaded
from bench_robust import KEY, KEYS, LEVELS, SETS, mark_of

import caw

RUNS, TOOLS, MODELS, OUT = map(Path, sys.argv[1:5])
sys.path[:0] = [str(TOOLS / "service/scripts"), str(TOOLS / "dewatermark/src")]
import dewatermark  # noqa: E402
import rewrite_text  # noqa: E402
import text_unicode  # noqa: E402

MARKS, MOST = ("unmarked", "recommended", "race 4", "SynthID", "KGW 2 nats"), 16
TWINS = dict(zip("acejopsxyABCEHIKMOPSTX", "асејорѕхуАВСЕНІКМОРЅТХ", strict=True))


def homoglyphs(text: str, rng: np.random.Generator, rate: float = 0.1) -> str:
    return "".join(TWINS[c] if c in TWINS and rng.random() < rate else c for c in text)


def zero_width(text: str, rng: np.random.Generator, rate: float = 0.1) -> str:
    return "".join(c + "\u200b" if rng.random() < rate else c for c in text)


def cleaned(text: str) -> str:
    return str(text_unicode.clean_text(text)[0])


def changed(text: str, name: str) -> dict[str, str]:
    rng = np.random.default_rng(list(name.encode()))
    return {
        "as is": text, "watermarks-remover 0.5, layer A": cleaned(text),
        "dewatermark 0.8, sanitize": dewatermark.sanitize(text, "safe"),
        "homoglyphs, 10 % of the letters that have one": homoglyphs(text, rng),
        "zero-width spaces, 10 %": zero_width(text, rng),
        "no-break spaces": text.replace(" ", "\u00a0"),
    }  # fmt: skip


def rewritten(texts: list[str], kind: str, name: str) -> list[str]:
    model, tokenizer = caw.load_model(str(next(MODELS.glob(f"{name.lower()}*.gguf"))), quantization="file-fast")
    prompts = [rewrite_text.PROMPTS[kind].replace("{TEXT}", text) for text in texts]
    made = caw.generate(
        model, tokenizer, prompts, chat=True, do_sample=True, temperature=0.7, seed=1, max_new_tokens=240,
        batch_size=16, return_trace=False, progress=False, speculate=None, watermark=None,
    )  # fmt: skip
    return made.texts


def kept(before: str, after: str) -> float:
    """Share of a text's runs of three words that are still there."""
    runs = [{tuple(w[i : i + 3]) for i in range(len(w) - 2)} for w in (before.lower().split(), after.lower().split())]
    return len(runs[0] & runs[1]) / max(1, len(runs[0]))


def rewrites() -> None:
    rows = json.loads(OUT.read_text())["rows"]
    tokenizer = Loaded(MODELS)("demo")[1]
    for name, mark in (("Qwen2.5-Coder-0.5B", "recommended"), ("Qwen2.5-Coder-1.5B", "recommended"),
                       ("Qwen2.5-Coder-1.5B", "SynthID")):  # fmt: skip
        by_key = json.loads((RUNS / "ids" / f"demo .7 {mark}.json").read_text())
        own = [(number, ids) for number in range(KEYS) for ids in by_key[number] if len(ids) == SETS["demo .7"].tokens]
        own = own[:: len(own) // MOST][:MOST]
        texts = tokenizer.batch_decode([ids for _, ids in own], skip_special_tokens=True)
        for kind in ("paraphrase", "humanize"):
            after = rewritten(texts, kind, name)
            p = [
                caw.detect(t, tokenizer, mark_of(mark, KEY.format(k))).p_value
                for (k, _), t in zip(own, after, strict=True)
            ]
            rows.append({"set": "demo .7", "mark": mark, "edit": f"watermarks-remover 0.5, layer B: {kind} by {name}",
                         "n": len(p), "readings": [sum(v <= level for v in p) for level in LEVELS],
                         "kept": [kept(b, a) for b, a in zip(texts, after, strict=True)], "p": p})  # fmt: skip
            print({k: v for k, v in rows[-1].items() if k != "p"}, flush=True)
            OUT.write_text(json.dumps({"rows": rows}, indent=1))


def main() -> None:
    rows = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    for name in ("demo .7", "demo .46"):
        wanted = SETS[name]
        tokenizer = Loaded(MODELS)(wanted.model)[1]
        for mark in MARKS:
            if any((row["set"], row["mark"]) == (name, mark) for row in rows):
                continue
            by_key = json.loads((RUNS / "ids" / f"{name} {mark}.json").read_text())
            whole = [(number, ids) for number in range(KEYS) for ids in by_key[number] if len(ids) == wanted.tokens]
            texts = tokenizer.batch_decode([ids for _, ids in whole], skip_special_tokens=True)
            cases = [changed(text, f"{name} {i}") for i, text in enumerate(texts)]
            for edit in dict.fromkeys(edit for case in cases for edit in case):
                own = [(whole[i][0], case[edit]) for i, case in enumerate(cases) if edit in case]
                row: dict[str, Any] = {"set": name, "mark": mark, "edit": edit, "n": len(own)}
                for label, how in (("readings", {}), ("bare", {"normalize": "none"})):
                    p = [caw.detect(t, tokenizer, mark_of(mark, KEY.format(k)), **how).p_value for k, t in own]
                    row[label] = [sum(v <= level for v in p) for level in LEVELS]
                rows.append(row)
                print(row, flush=True)
            OUT.write_text(json.dumps({"rows": rows}, indent=1))


main()
rewrites()
