"""What copying does to a marked text, and what testing several readings of it gets back; false alarms of the procedure.

    python benchmarks/bench_readings.py [--texts 40] [--keys 250] [--out benchmarks/results/detect_readings.json]

Half of the marked texts are KGW's, half EXP's: greedy, at most 200 tokens, the demo model's answers to everyday
prompts, each under a key of its own. Unmarked: pieces of 700 characters of this repository's documentation. Every
damage is done to every text. "given" tests the text as it is alone, "readings" as `caw.detect` does. False alarms:
each unmarked text under each KGW key; their upper bound is that of a 97.5 % interval over keys, under each of which
all texts are tested.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import caw
from caw.benchmark.machine import about
from caw.detection import Detector, KeySearch
from caw.models import DEMO_MODEL, load_tokenizer

COMMAND = "python benchmarks/bench_readings.py"
ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "caw_lab" / "training" / "everyday_prompts.jsonl"
TOKENS, PIECE, FPR, LEVELS = 200, 700, 1e-3, (1e-2, 1e-3)
LOOKALIKE = str.maketrans("aeopcAEOPC", "аеорсАЕОРС")
WORD_SIGNS = [("--", "—"), (" - ", " – "), ("...", "…"), ("'", "’"), ('"', "“")]
ASCII_SIGNS = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})


def each_line(text: str, width: int, start: str = "") -> str:
    """Paragraphs wrapped at a width, each line begun with `start`."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, width, break_long_words=False) or [""]]
    return "\n".join(start + line for line in lines)


def hyphenated(text: str) -> str:
    """Wrapped at 60 columns, every second line's last word parted where it has eight letters or more."""
    lines = each_line(text, 60).split("\n")
    for i in range(0, len(lines) - 1, 2):
        word = re.search(r"([a-z]{4,})([a-z]{4})$", lines[i])
        if word and lines[i + 1]:
            lines[i], lines[i + 1] = lines[i][: word.end(1)] + "-", word[2] + " " + lines[i + 1]
    return "\n".join(lines)


def word_processor(text: str) -> str:
    for ascii_sign, sign in WORD_SIGNS:
        text = text.replace(ascii_sign, sign)
    return text


def full_width(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalnum() else c for c in text)


def every(text: str, old: str, new: str, n: int) -> str:
    """The text with every n-th `old` replaced."""
    parts = text.split(old)
    return parts[0] + "".join((new if i % n == 0 else old) + part for i, part in enumerate(parts[1:]))


DAMAGES: dict[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "zero-width space at every space": lambda text: text.replace(" ", " \u200b"),
    "zero-width joiner inside every third word": lambda text: re.sub(r"((?:\w+\W+){2}\w)", "\\1\u200d", text),
    "soft hyphens in long words": lambda text: re.sub(r"([A-Za-z]{4})(?=[A-Za-z]{3})", "\\1\u00ad", text),
    "byte-order mark and marks of direction": lambda text: "\ufeff" + text.replace(". ", ".\u200e \u202a"),
    "every fifth space a no-break space": lambda text: every(text, " ", "\u00a0", 5),
    "ligatures": lambda text: text.replace("ffi", "\ufb03").replace("fi", "\ufb01").replace("fl", "\ufb02"),
    "wrapped at 72 columns": lambda text: each_line(text, 72),
    "wrapped at 72 columns and quoted": lambda text: each_line(text, 72, "> "),
    "wrapped at 60 columns, words parted": hyphenated,
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "two spaces behind sentences": lambda text: text.replace(". ", ".  "),
    "spaces at both ends and lines' ends trimmed": lambda text: re.sub(r"[ \t]+$", "", text, flags=re.M).strip(),
    "decomposed letters (NFD)": lambda text: unicodedata.normalize("NFD", text),
    "full-width letters": full_width,
    "HTML entities": lambda text: text.replace("&", "&amp;").replace("'", "&#39;").replace("  ", " &nbsp;"),
    "typographic signs, as a word processor makes them": word_processor,
    "typographic signs made ASCII": lambda text: text.translate(ASCII_SIGNS),
    "every tenth word in Cyrillic lookalikes": lambda text: re.sub(
        r"((?:\w+\W+){9})(\w+)", lambda m: m[1] + m[2].translate(LOOKALIKE), text
    ),
    "a page of PDF: wrapped, parted, ligatures, typographic": lambda text: word_processor(
        hyphenated(text).replace("fi", "\ufb01").replace("fl", "\ufb02")
    ),
}  # fmt: skip


def marked(count: int) -> list[tuple[Any, str]]:
    """(watermark with its key, text) of texts of the demo model, half KGW and half EXP."""
    prompts = [json.loads(line)["prompt"] for line in islice(PROMPTS.open(encoding="utf-8"), count)]
    model, tokenizer = caw.load_model(DEMO_MODEL)
    out = []
    for i, prompt in enumerate(prompts):
        mark = caw.KGW(key=f"readings {i}") if i % 2 else caw.EXP(key=f"readings {i}")
        made = caw.generate(
            model, tokenizer, prompt, watermark=mark, max_new_tokens=TOKENS, chat=True, policy=caw.FixedStrength()
        )
        out.append((mark, made.texts[0]))
    return out


def unmarked() -> list[str]:
    """Pieces of the documentation, with their line breaks, tables and code."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    return [text[i : i + PIECE] for text in texts for i in range(0, len(text) - PIECE, PIECE)]


def found(texts: list[tuple[Any, str]], damage: Callable[[str], str], tokenizer: Any) -> dict[str, Any]:
    """What is found of marked texts after a damage."""
    rows = []
    for mark, text in texts:
        spoilt = damage(text)
        given = Detector(tokenizer, mark, FPR, normalize="none")(spoilt)
        result = Detector(tokenizer, mark, FPR)(spoilt)
        rows.append((given.p_value, result.p_value, result.num_readings, spoilt != text))
    p = np.array([row[:2] for row in rows])
    return {
        "changed": sum(row[3] for row in rows),
        "readings": float(np.mean([row[2] for row in rows])),
        "found": dict(zip(("given", "readings"), (p <= FPR).mean(axis=0).tolist(), strict=True)),
        "median_log10_p": dict(zip(("given", "readings"), np.median(np.log10(p), axis=0).tolist(), strict=True)),
    }


def alarms(texts: list[str], damage: Callable[[str], str], search: KeySearch) -> dict[str, Any]:
    """Share of (text, key) with p <= level, and its upper bound over keys."""
    results = search([damage(text) for text in texts])
    p = np.stack([r.p_values for r in results])  # [texts, keys], corrected for readings alone
    out: dict[str, Any] = {"readings": float(np.mean([r.nearest.num_readings for r in results]))}
    for level in LEVELS:
        rates = (p <= level).mean(axis=0)
        spread = float(stats.t.ppf(0.975, len(rates) - 1) * rates.std(ddof=1) / np.sqrt(len(rates)))
        out[f"{level:g}"] = {"rate": float(rates.mean()), "upper": float(rates.mean()) + spread}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--keys", type=int, default=250)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer, texts, plain = load_tokenizer(DEMO_MODEL), marked(options.texts), unmarked()
    search = KeySearch(tokenizer, {str(i): caw.KGW(key=f"alarm {i}") for i in range(options.keys)})
    rows = []
    for name, damage in DAMAGES.items():
        row = {"damage": name, "marked": found(texts, damage, tokenizer), "unmarked": alarms(plain, damage, search)}
        rows.append(row)
        share, alarm = row["marked"]["found"], row["unmarked"]
        rates = ", ".join(
            f"{alarm[f'{level:g}']['rate']:.5f} (< {alarm[f'{level:g}']['upper']:.5f})" for level in LEVELS
        )
        print(f"{name}: found {share['given']:.3f} -> {share['readings']:.3f}; false alarms {rates}", flush=True)
    if options.out:
        said = {"command": COMMAND, "texts": len(texts), "unmarked": len(plain), "keys": options.keys, "fpr": FPR}
        options.out.write_text(json.dumps({**said, **about(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
