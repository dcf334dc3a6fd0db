"""Where the 240 everyday prompts are that measurements share: JSONL, {"prompt": ...} a line."""

from pathlib import Path

EVERYDAY = Path(__file__).parent / "everyday_prompts.jsonl"
