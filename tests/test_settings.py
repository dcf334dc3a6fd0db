"""The settings of a call: one list, which the public functions repeat for editors and type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

import caw
from caw.settings import Settings

# what a call takes besides: what it works with, and how it is watched
BESIDES = {"model", "tokenizer", "prompts", "watermark", "policy", "streamer", "report", "prompt_cache", "progress",
           "detector"}  # fmt: skip


@pytest.mark.parametrize("function", [caw.generate, caw.iter_generate])
def test_public_functions_take_every_setting_with_its_default(function: Callable[..., Any]) -> None:
    given = {name: p.default for name, p in inspect.signature(function).parameters.items() if name not in BESIDES}
    assert given == {field.name: field.default for field in fields(Settings)}


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_arrives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each at another value than the default, so that a forgotten one shows."""
    other = {
        "max_new_tokens": 9, "min_new_tokens": 2, "branching": "batch", "do_sample": True, "temperature": 0.7,
        "top_k": 5, "top_p": 0.9, "seed": 3, "slots": 4, "stop": "x", "chat": True, "mark_eos": True,
        "return_trace": False, "batch_size": 3, "max_memory": "8GiB", "prefill_attention": "eager", "compile": True,
        "backend": "reference", "found_at": 1e-3, "max_attempts": 5, "best_of": 2, "select": "likeliest",
        "on_unfound": "drop", "edits": 0.1, "speculate": 5,
    }  # fmt: skip
    seen: list[Settings] = []

    def stop(*arguments: Any, **options: Any) -> None:
        seen.extend(a for a in arguments if isinstance(a, Settings))
        raise InterruptedError

    for needless in ("check_streamer", "accept_prompts"):
        monkeypatch.setattr(f"caw.entrance.{needless}", lambda *a, **k: AcceptedNothing())
    monkeypatch.setattr("caw.entrance.ModelFacts.of", lambda *a: None)
    monkeypatch.setattr("caw.entrance.stream_results", stop)
    for function in (caw.generate, caw.iter_generate):
        with pytest.raises(InterruptedError):
            function(None, None, ["a"], **{name: other[name]})
    assert seen == [Settings(**{name: other[name]})] * 2 and getattr(Settings(), name) != other[name]


class AcceptedNothing:
    def tell(self) -> None:
        """Nothing was refused."""


def test_how_texts_are_tested_is_left_out_as_a_whole() -> None:
    asked: dict[str, Any] = {
        "found_at": 1e-3, "max_attempts": 5, "best_of": 2, "select": "likeliest", "on_unfound": "drop", "edits": 0.1,
    }  # fmt: skip
    tested = Settings(seed=4, **asked)
    assert tested.tested() == asked and tested.untested() == Settings(seed=4) and Settings().tested() == {}


def test_settings_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().seed = 1  # type: ignore[misc]
