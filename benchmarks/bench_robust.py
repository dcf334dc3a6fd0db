"""What edits leave of a mark: texts of several marks, edited, and how many of them are still detected.

    python benchmarks/bench_robust.py --folder runs/robust --models MODELS [--minutes 60] [--sets "demo .46" ...]
    python benchmarks/bench_robust.py --folder runs/robust --out benchmarks/results/robust.json

MODELS: see `bench_cost.py`, whose models and prompts these are. A set is a model, its sampling and a length; every text
of a set answers another prompt, under one of `KEYS` keys. Texts that end before the set's length are left out. Their
ids stay in the folder; a text that is there already is not drawn again. "entropy": nats a token of what the sampler
draws from, mean over unmarked texts. The detector has the edited text and the key. Finished parts (whose
scripts the result names by `script_commit`) lie in the same folder; --out gathers all.
"""

import argparse
import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from bench_cost import CHOSEN_WITH, SUBJECTS, USED, Loaded, Subject, coded

import caw
from caw.benchmark.machine import about
from caw.io.files import write_text
from caw.models.teacher import teacher_forced
from caw.watermarks import Signature
from caw_lab.evaluation.attacks.base import Attacked, RateAttack
from caw_lab.evaluation.attacks.copy_paste import CopyPaste
from caw_lab.evaluation.attacks.words import GAP_AND_WORD, WordD, draw_count
from caw_lab.training.everyday import EVERYDAY

SUBJECTS["demo"] = Subject("smollm2-135m", "file-fast", True, "qwen05")
KEY = "what edits leave {}"
KEYS, LEVELS, MEASURED = 4, (0.01, 0.001), 24
UNMARKED = "unmarked"
MARKS: dict[str, Callable[[str], Signature]] = {
    UNMARKED: caw.Recommended,  # reads them; they are drawn without a mark
    "recommended": caw.Recommended,
    "race 2": caw.Recommended,  # the same texts, read as the race alone
    "race 4": lambda key: caw.EXP(key, strength="scale", context_width=4),
    "SynthID": caw.SynthID,
    "KGW 2 nats": lambda key: caw.KGW(key, delta=2.0),
    "Unigram 2 nats": lambda key: caw.Unigram(key, delta=2.0),
}


@dataclass(frozen=True)
class Set:
    model: str
    sampling: dict[str, float]
    tokens: int
    texts: int
    marks: tuple[str, ...]


def mark_of(mark: str, key: str) -> Signature:
    watermark = MARKS[mark](key)
    return watermark.drawn if mark == "race 2" else watermark  # type: ignore[attr-defined]


ALL, FEW = tuple(MARKS), tuple(MARKS)[:3]
SETS = {
    "demo .46": Set("demo", {"temperature": 0.46}, 300, 96, ALL),
    "demo .7": Set("demo", {"temperature": 0.7, "top_p": 0.95}, 200, 64, ALL),
    "demo .5": Set("demo", {"temperature": 0.5}, 240, 64, FEW),
    "demo .3": Set("demo", {"temperature": 0.3}, 240, 64, FEW),
    "qwen .7": Set("qwen05", {"temperature": 0.7}, 200, 64, (*FEW, "SynthID")),
    "demo 1": Set("demo", {"temperature": 1.0}, 400, 32, FEW),
}


@dataclass(frozen=True)
class Replaced(RateAttack):
    """Replaces this share of the words by words of other texts, drawn at random."""

    kind: ClassVar[str] = "replaced"
    stream: ClassVar[str] = "replaced"
    words: tuple[str, ...] = field(repr=False)

    def substitute(self, word: str, rng: np.random.Generator) -> str:
        return self.words[int(rng.integers(len(self.words)))]

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        parts = GAP_AND_WORD.findall(text)
        chosen = set(rng.permutation(len(parts))[: draw_count(self.rate, len(parts), rng)].tolist())
        out = [gap + (self.substitute(word, rng) if i in chosen else word) for i, (gap, word) in enumerate(parts)]
        return Attacked("".join(out), len(chosen), len(parts))


@dataclass(frozen=True)
class Misspelt(Replaced):
    """Exchanges two neighbouring letters in this share of the words."""

    kind: ClassVar[str] = "misspelt"

    def substitute(self, word: str, rng: np.random.Generator) -> str:
        at = int(rng.integers(max(len(word) - 1, 1)))
        return word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :]


def as_markdown(text: str) -> str:
    """Every line a point of a list that begins in bold."""
    lines = [line.split(" ", 3) for line in text.splitlines() if line.strip()]
    return "\n".join(" ".join(["- **" + " ".join(words[:3]) + "**", *words[3:]]) for words in lines)


def as_html(text: str) -> str:
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in text.splitlines() if line.strip())


Edit = Callable[[str, str], str]


def edits(others: list[str]) -> dict[str, Edit]:
    """By name, functions of a text and its id; others: unmarked texts, for words and surroundings."""
    words = tuple(word for text in others for word in text.split())
    made: dict[str, Edit] = {"as is": lambda text, name: text}
    attacks = [Replaced(words=words, rate=rate) for rate in (0.05, 0.1, 0.2, 0.3)]
    attacks += [WordD(rate) for rate in (0.05, 0.1, 0.2, 0.3)]  # type: ignore[misc]
    attacks += [Misspelt(words=(), rate=0.1), CopyPaste(0.25, tuple(others))]  # type: ignore[list-item]
    for attack in attacks:
        made[attack.name] = lambda text, name, attack=attack: attack(text, name).text  # type: ignore[misc]
    plain: dict[str, Callable[[str], str]] = {"lower case": str.lower, "Markdown": as_markdown, "HTML": as_html}
    return made | {label: lambda text, name, change=change: change(text) for label, change in plain.items()}  # type: ignore[misc]


def prompts_of(number: int, texts: int) -> list[str]:
    """A key's share of the prompts that no setting was chosen with."""
    lines = [json.loads(line)["prompt"] for line in EVERYDAY.read_text(encoding="utf-8").splitlines()]
    usable = [prompt for prompt in lines[USED:] if prompt not in CHOSEN_WITH]
    return usable[number::KEYS][: texts // KEYS]


def draw(wanted: Set, mark: str, loaded: Loaded) -> list[list[list[int]]]:
    """Ids of the texts, by key."""
    model, tokenizer = loaded(wanted.model)
    out = []
    for number in range(KEYS):
        ids = coded(wanted.model, tokenizer, prompts_of(number, wanted.texts))
        watermark = None if mark == UNMARKED else mark_of(mark, KEY.format(number))
        made = caw.generate(
            model, tokenizer, ids, do_sample=True, **wanted.sampling, seed=number, max_new_tokens=wanted.tokens,
            batch_size=32, return_trace=False, progress=False, speculate=None, watermark=watermark,
        )  # fmt: skip
        out.append([list(map(int, text)) for text in made.sequences])
    return out


@torch.inference_mode()
def entropy_of(wanted: Set, texts: list[list[list[int]]], loaded: Loaded) -> float:
    """Nats a token that the sampler had, over the first whole texts."""
    model, tokenizer = loaded(wanted.model)
    pairs = []
    for number, own in enumerate(texts):
        asked = coded(wanted.model, tokenizer, prompts_of(number, wanted.texts))
        pairs += [([*p, *t], len(p)) for p, t in zip(asked, own, strict=True) if len(t) == wanted.tokens]
    sums = []
    for _, logits in teacher_forced(model, pairs[:: max(len(pairs) // MEASURED, 1)]):
        for rows in logits[:-1].split(16):
            p = (rows.float() / wanted.sampling["temperature"]).softmax(1)
            if "top_p" in wanted.sampling:
                p = p.sort(1, descending=True).values
                p = torch.where(p.cumsum(1) - p < wanted.sampling["top_p"], p, 0.0)
                p = p / p.sum(1, keepdim=True)
            sums.append(torch.special.entr(p).sum(1))
    return float(torch.cat(sums).mean())


def found(wanted: Set, mark: str, texts: list[list[list[int]]], changes: dict[str, Edit], tokenizer: Any) -> list[Any]:
    """A row for each edit, and for each shorter beginning."""
    beginnings = {f"first {n} tokens": n for n in (100, 200, 300) if n < wanted.tokens}
    p_values: dict[str, list[float]] = {name: [] for name in [*changes, *beginnings]}
    for number, own in enumerate(texts):
        watermark = mark_of(mark, KEY.format(number))
        whole = [ids for ids in own if len(ids) == wanted.tokens]
        said = tokenizer.batch_decode(whole, skip_special_tokens=True)
        cases = {name: [change(t, f"{number} {i}") for i, t in enumerate(said)] for name, change in changes.items()}
        for name, n in beginnings.items():
            cases[name] = tokenizer.batch_decode([ids[:n] for ids in whole], skip_special_tokens=True)
        for name, several in cases.items():
            p_values[name] += [result.p_value for result in caw.detect(several, tokenizer, watermark)] if whole else []
    return [
        {"mark": mark, "edit": name, "n": len(p), "found": [sum(v <= level for v in p) for level in LEVELS]}
        for name, p in p_values.items()
    ]


def run(folder: Path, models: Path, minutes: float, names: list[str]) -> None:
    until, loaded = time.time() + 60 * minutes, Loaded(models)
    (folder / "ids").mkdir(parents=True, exist_ok=True)
    for name in names:
        wanted = SETS[name]
        texts, changes, tokenizer = {}, {}, loaded(wanted.model)[1]
        rows, part = [], folder / f"set {name}.json"
        for mark in wanted.marks:
            path, began = folder / "ids" / f"{name} {mark.replace('race 2', 'recommended')}.json", time.time()
            if not path.exists():
                if began > until:
                    break
                write_text(path, json.dumps(draw(wanted, mark, loaded)))
            texts[mark] = json.loads(path.read_text())
            if mark == UNMARKED:
                others = [ids for own in texts[mark] for ids in own]
                changes = edits(tokenizer.batch_decode(others, skip_special_tokens=True))
                entropy = entropy_of(wanted, texts[mark], loaded)
            rows += found(wanted, mark, texts[mark], changes, tokenizer)
            head = {"set": name, "model": wanted.model, **wanted.sampling, "tokens": wanted.tokens, "entropy": entropy}
            write_text(part, json.dumps({**about(), **head, "rows": rows}))
            shares = {row["edit"]: round(row["found"][0] / max(row["n"], 1), 2) for row in rows if row["mark"] == mark}
            print(
                f"{name} {mark} {time.time() - began:.0f} s, {entropy:.3f} nats, n {rows[-1]['n']}: {shares}",
                flush=True,
            )


def publish(folder: Path, out: Path) -> None:
    parts = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    said = {key: parts[0].pop(key) for key in ("machine", "versions", "commit")}
    for part in parts[1:]:
        said["commit"] = part.pop("commit")
        _ = part.pop("machine"), part.pop("versions")
    rows = ",\n".join(json.dumps(part) for part in parts)
    out.write_text(json.dumps(said)[:-1] + f', "rows": [\n{rows}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.out is not None:
        publish(asked.folder, asked.out)
    else:
        run(asked.folder, asked.models, asked.minutes, asked.sets)


if __name__ == "__main__":
    main()
