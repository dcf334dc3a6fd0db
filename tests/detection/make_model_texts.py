"""Write model_texts.json: unmarked texts of the demo model, greedy (which repeats itself) and sampled, as token ids.

Run from the root of a checkout: `python tests/detection/make_model_texts.py`. The texts need not be made anew when
decoding changes: any text of a model that no key had a say in will do, and a file is the same on every processor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import caw

PROMPTS = [
    "Tell me about the history of tea.",
    "Explain to a child why the sky is blue.",
    "Write a story about a lighthouse keeper.",
    "How do I prepare for a job interview?",
    "Describe the water cycle.",
    "Write a short letter to a friend about a week in the mountains.",
    "What are the benefits of learning a second language?",
    "How does a bicycle stay upright?",
    "Describe a typical day of a farmer in spring.",
    "List ten European capitals.",
    "Explain what inflation is.",
    "What makes a good friend?",
]


def main() -> None:
    model, tokenizer = caw.load_model("smollm2-135m", device="cpu", dtype="float32")
    options: dict[str, Any] = {"max_new_tokens": 100, "chat": True, "return_trace": False, "progress": False}
    texts = caw.generate(model, tokenizer, PROMPTS, **options).sequences
    for seed in (3, 4, 5):
        texts += caw.generate(model, tokenizer, PROMPTS, do_sample=True, seed=seed, **options).sequences
    distinct = dict.fromkeys(map(tuple, texts))
    lines = ",\n".join(json.dumps(ids, separators=(",", ":")) for ids in distinct)
    Path(__file__).with_name("model_texts.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
