"""Writes foreign_golden.json from the code of lm-watermarking and of SBW themselves, none of it from this library:

    CAW_LM_WATERMARKING=FOLDER python tests/watermarks/formats/make_foreign_golden.py

FOLDER holds lm-watermarking's alternative_prf_schemes.py, extended_watermark_processor.py, homoglyphs.py and
normalizers.py; `sbw` is installed (version 1.0.0 made the file). The file is frozen: texts that others marked stay.

lists: for each scheme, key and context, the green tokens of a vocabulary of 503 as an integer in hex, bit t = token t.
texts: what their detectors say of one text, some of it twice, with a vocabulary of 50257: each n-gram's color in the
order of the text (1 = green, repeated ones too), and how many different n-grams count, how many of them green.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).with_name("foreign_golden.json")
SMALL, LARGE, GAMMA, KEYS = 503, 50257, 0.25, (15485863, 12345)
# scheme of this library -> (their name for it, tokens before the marked one that its list depends on)
# (lm-watermarking's selfhash counts the candidate among its 4, and asks for 4 tokens before it all the same)
LM = {"minhash": ("ff-minhash_prf-4-False", 4), "skipgram": ("ff-skipgram_prf-5-False", 5),
      "selfhash": ("ff-anchored_minhash_prf-4-True", 4)}  # fmt: skip
SBW = {"lefthash": ("gpu-simple_1", 1), "simple_4": ("gpu-fused-simple_4", 4), "minhash": ("gpu-minhash", 4),
       "skipgram": ("gpu-skipgram", 5), "selfhash": ("gpu-fused-selfhash-fullvocab", 4)}  # fmt: skip


def contexts(width: int) -> list[list[int]]:
    return [[(7919 * i * i + 31 * i + 5 * row) % SMALL for i in range(width)] for row in range(1, 4)]


def text() -> list[int]:
    ids = [(104729 * i * i + 613 * i + 11) % LARGE for i in range(60)]
    return ids + ids[10:30] + [9, 9, 9, 9, 9, 9, 9]


def packed(green: list[bool]) -> str:
    return hex(sum(1 << token for token, is_green in enumerate(green) if is_green))


def said(detector: Any) -> dict[str, Any]:
    found = detector._score_sequence(torch.tensor(text()), return_green_token_mask=True)
    colors = "".join(str(int(x)) for x in found["green_token_mask"])
    return {"colors": colors, "scored": found["num_tokens_scored"], "green": found["num_green_tokens"],
            "z": found["z_score"]}  # fmt: skip


def lm_watermarking() -> list[dict[str, Any]]:
    sys.path.insert(0, os.environ["CAW_LM_WATERMARKING"])
    original = importlib.import_module("extended_watermark_processor")
    rows = []
    for scheme, (name, width) in LM.items():
        for key in KEYS:
            options = {"gamma": GAMMA, "seeding_scheme": f"{name}-{key}"}
            device = torch.device("cpu")
            more = {"device": device, "tokenizer": object(), "normalizers": []}
            small = original.WatermarkDetector(vocab=list(range(SMALL)), **options, **more)
            large = original.WatermarkDetector(vocab=list(range(LARGE)), **options, **more)
            masks = []
            for context in contexts(width):
                ids = torch.tensor(context)
                if scheme == "selfhash":
                    lists = [small._get_greenlist_ids(torch.cat([ids, torch.tensor([t])])) for t in range(SMALL)]
                    green = [bool((found == t).any()) for t, found in enumerate(lists)]
                else:
                    found = set(small._get_greenlist_ids(ids).tolist())
                    green = [t in found for t in range(SMALL)]
                masks.append(packed(green))
            rows.append({"format": "lm-watermarking", "scheme": scheme, "key": key, "lists": masks, **said(large)})
    return rows


def sbw() -> list[dict[str, Any]]:
    torch.compile = lambda function=None, **options: function or (lambda f: f)  # type: ignore[assignment]
    batch, detectors = importlib.import_module("sbw.batch"), importlib.import_module("sbw.detector")
    rows = []
    for scheme, (name, width) in SBW.items():
        for key in KEYS:
            options = {"gamma": GAMMA, "seeding_scheme": name, "hash_key": key, "device": torch.device("cpu")}
            marker = batch.WatermarkBatch(vocab=list(range(SMALL)), delta=2.0, **options)
            apply = {"selfhash": "_selfsalt_fused", "simple_4": "_simple_fused"}.get(scheme, "_fused")
            logits = torch.zeros(3, SMALL)
            marked = getattr(marker, f"apply_watermark{apply}")(torch.tensor(contexts(width)), logits)
            large = detectors.WatermarkDetector(vocab=list(range(LARGE)), tokenizer=object(), normalizers=[], **options)
            masks = [packed((row > 0).tolist()) for row in marked]
            rows.append({"format": "sbw", "scheme": scheme, "key": key, "lists": masks, **said(large)})
    return rows


def main() -> None:
    about = {"gamma": GAMMA, "small": SMALL, "large": LARGE, "torch": torch.__version__}
    rows = [*lm_watermarking(), *sbw()]
    lines = ",\n".join(json.dumps(row) for row in rows)
    FILE.write_text(json.dumps(about)[:-1] + ', "rows": [\n' + lines + "\n]}\n")


if __name__ == "__main__":
    main()
