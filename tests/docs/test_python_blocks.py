"""Every block of Python on the pages runs, with the demo model and 8 tokens; servers and Ray by signature alone."""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from docs.test_pages import READ, ROOT, blocks

import caw

MOST = 8  # tokens of a text
SHOWN = [page for page in READ if list(blocks(page, {"python", "py"}))]
# what the words around a block say is there
TEXTS = ["The sea is wide and blue, and nobody knows where it ends.", "Tea came from the hills in the south."]


def capped(function: Any) -> Any:
    """The function with fewer new tokens; what it does not take is refused as ever."""

    def call(*arguments: Any, **options: Any) -> Any:
        inspect.signature(function).bind(*arguments, **options)
        return function(*arguments, **{**options, "max_new_tokens": min(options.get("max_new_tokens", 200), MOST)})

    return call


def by_signature(function: Any, result: Any) -> Any:
    """The result for every call that the function's signature takes."""

    def call(*arguments: Any, **options: Any) -> Any:
        inspect.signature(function).bind(*arguments, **options)
        return result

    return call


def answers_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """openai's client gets an answer without a server, for what its own signature takes."""
    completions = pytest.importorskip("openai.resources.chat.completions").Completions
    create = completions.create

    def answer(self: Any, **options: Any) -> Any:
        inspect.signature(create).bind(self, **options)
        said = SimpleNamespace(content="Because.")
        choice = SimpleNamespace(choices=[SimpleNamespace(message=said, delta=said)])
        return iter([choice]) if options.get("stream") else choice

    monkeypatch.setattr(completions, "create", answer)


@pytest.fixture
def names(demo: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a page's program starts with; the folder is an empty one."""
    model, tokenizer = demo
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAW_MASTER_KEY", "0" * 43 + "=")
    monkeypatch.setattr(caw, "load_model", by_signature(caw.load_model, demo))
    for name in ("generate", "iter_generate"):
        monkeypatch.setattr(caw, name, capped(getattr(caw, name)))
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # dataclasses look their module up
    page.__dict__.update({
        "model": model, "tokenizer": tokenizer, "watermark": caw.KGW(key=42), "policy": caw.FixedStrength(),
        "prompts": TEXTS, "text": TEXTS[0], "texts_of_key_1": TEXTS, "texts_of_key_2": TEXTS, "secrets": [1, 2, 3],
        "inputs": {**tokenizer(TEXTS[0], return_tensors="pt"), "max_new_tokens": MOST},
    })  # fmt: skip
    return page.__dict__


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("page", SHOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for code in blocks(page, {"python", "py"}):
        if "openai.OpenAI" in code:
            answers_of_a_server(monkeypatch)
        if "caw.ray" in code:
            ray = importlib.import_module("caw.ray")
            found = SimpleNamespace(written=2, errors=0)
            monkeypatch.setattr(ray, "generate_dataset", by_signature(ray.generate_dataset, found))
        exec(compile(code, page.name, "exec"), names)
