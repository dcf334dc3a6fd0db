"""Tables of real .gguf files beside llama.cpp (`bench_llama_cpp.py`)."""

from __future__ import annotations

from result_files import as_table, read_result, source


def llama_cpp() -> str:
    """Ids of prompts and greedy tokens, file by file, and how many names of pre-tokenizers give the same ids."""
    found = read_result("llama_cpp.json")
    lines = [
        (name.removesuffix(".gguf"), f"{row['ids of prompts equal']} of {row['prompts']}", row["greedy equal"],
         row["near tie"], row["different"], f"{max(row['gaps'], default=0):.2f}")
        for name, row in found.items() if name.endswith(".gguf")
    ]  # fmt: skip
    header = ("file", "ids of prompts equal", "same tokens", "near tie", "different", "largest gap")
    kept = found["pre-tokenizers"]
    other = {name: row["other ids"] for name, row in kept["names"].items() if row["other ids"]}
    said = f"Of {len(kept['names'])} pre-tokenizer names, {len(kept['names']) - len(other)} give llama.cpp's ids "
    said += f"for all {kept['texts']} texts, on the demo model's vocabulary"
    if other:
        said += "; others for some texts: " + ", ".join(f"`{name}` ({count})" for name, count in other.items())
    return f"{as_table(header, lines)}\n\n{said}. {source('llama_cpp.json')}"
