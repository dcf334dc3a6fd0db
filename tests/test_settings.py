"""The settings of a call: one list, from which the public functions' keywords are derived."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import caw
from caw.settings import Settings

# what a call takes besides: what it works with, and how it is watched
BESIDES = {"model", "tokenizer", "prompts", "watermark", "policy", "streamer", "report", "prompt_cache", "progress",
           "detector"}  # fmt: skip


@pytest.mark.parametrize("function", [caw.generate, caw.iter_generate])
def test_public_functions_take_every_setting_with_its_default(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function).parameters
    given = {name: p.default for name, p in shown.items() if name not in BESIDES}
    assert given == {field.name: field.default for field in fields(Settings)}
    assert list(shown)[:3] == ["model", "tokenizer", "prompts"]
    assert all(p.kind is p.KEYWORD_ONLY for p in list(shown.values())[3:])
    assert shown.keys() - given.keys() == BESIDES - ({"progress"} if function is caw.iter_generate else set())


@pytest.mark.parametrize("function", [caw.generate, caw.iter_generate])
def test_every_keyword_is_documented_with_its_type(function: Callable[..., Any]) -> None:
    shown = inspect.signature(function).parameters
    section = (function.__doc__ or "").partition("Args:\n")[2].partition("Returns:")[0]
    entries = [
        line.strip().partition(":")[0] for line in section.splitlines() if line.startswith(" " * 8 + line.strip()[:1])
    ]
    documented = [name for entry in entries if entry for name in entry.split(", ")]
    assert documented == list(shown)
    assert get_type_hints(function)["top_k"] is int and shown["max_memory"].annotation == int | float | str | None


def test_wrong_arguments_are_named_with_what_they_are_near_to() -> None:
    with pytest.raises(TypeError, match=r"^generate\(\) got .* 'temprature'; did you mean 'temperature'"):
        caw.generate(None, None, [], temprature=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^iter_generate\(\) got an unexpected keyword argument 'zzz'$"):
        caw.iter_generate(None, None, [], zzz=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^generate\(\) missing 1 required positional argument: 'prompts'"):
        caw.generate(None, None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^generate\(\) takes .* positional arguments"):
        caw.generate(None, None, [], 5)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_arrives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {
        "max_new_tokens": 9, "min_new_tokens": 2, "branching": "batch", "do_sample": True, "temperature": 0.7,
        "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 1.0,
        "frequency_penalty": 0.5, "logit_bias": {3: 1.0}, "seed": 3, "slots": 4, "stop": "x",
        "chat": True, "mark_eos": True,
        "return_trace": False, "batch_size": 3, "max_memory": "8GiB", "prefill_attention": "eager", "compile": True,
        "backend": "reference", "detectable_at": 1e-3, "max_attempts": 5, "best_of": 2, "select": "likeliest",
        "on_undetected": "drop", "edits": 0.1, "guard": caw.Guard(keeps="number"), "speculate": 5,
    }  # fmt: skip
    seen: list[Settings] = []

    def stop(*arguments: Any, **options: Any) -> None:
        seen.extend(a for a in arguments if isinstance(a, Settings))
        raise InterruptedError

    for needless in ("check_streamer", "accepted_for"):
        monkeypatch.setattr(f"caw.entrance.{needless}", lambda *a, **k: AcceptedNothing())
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
        "detectable_at": 1e-3, "max_attempts": 5, "best_of": 2, "select": "likeliest",
        "on_undetected": "drop", "edits": 0.1,
    }  # fmt: skip
    tested = Settings(seed=4, **asked)
    assert tested.tested() == asked and tested.untested() == Settings(seed=4) and Settings().tested() == {}


def test_a_race_needs_a_temperature_and_a_choice() -> None:
    """Races of cooler texts are not found: 0 of 9 of 200 tokens at 0.05, 0.1 and 0.2."""
    for drawing, races in (
        ({"temperature": 0.3}, True),
        ({"temperature": 0.29}, False),
        ({"temperature": 0.05}, False),
        ({"temperature": 1.0}, True),
        ({"top_p": 0.02}, True),
        ({"top_p": 0.01}, False),
        ({"top_k": 2}, True),
        ({"top_k": 1}, False),
        ({"min_p": 1.0}, False),
    ):
        assert Settings(do_sample=True, **drawing).races is races  # type: ignore[arg-type]
        assert not Settings(do_sample=False, **drawing).races  # type: ignore[arg-type]
