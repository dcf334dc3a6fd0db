"""Streams of generate: what they are given, and that errors and interruptions end them and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding.architectures import build, tokenizer
from generating import PROMPTS, Recorder, generate, text_of
from transformers import TextIteratorStreamer, TextStreamer

import caw
from caw.decoding import decoder
from caw.decoding.forward.sibling_cache import SiblingCache


@pytest.fixture
def model() -> Any:
    return build("llama")


def test_streamer_gets_prompt_tokens_and_end(model: Any) -> None:
    recorder = Recorder()
    out = generate(model, PROMPTS[:1], streamer=recorder, watermark=caw.EXP(key=1))
    assert recorder.given == [[PROMPTS[0]], *[[t] for t in out.sequences[0]]]
    assert recorder.ended == 1


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_transformers_streamers_show_the_text(model: Any, skip_prompt: bool, capsys: pytest.CaptureFixture) -> None:
    out = generate(model, PROMPTS[:1], streamer=TextStreamer(tokenizer(), skip_prompt=skip_prompt))
    shown = capsys.readouterr().out.rstrip("\n")
    assert shown == ("" if skip_prompt else text_of(PROMPTS[0])) + out.texts[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_inside_restores_attention_and_ends_the_stream(
    model: Any, at: int, error: type[BaseException]
) -> None:
    recorder = Recorder(at, error)
    with pytest.raises(error):
        generate(model, PROMPTS[:1], streamer=recorder)
    assert recorder.ended == 1
    assert model.config._attn_implementation == "sdpa"
    assert not torch.is_inference_mode_enabled()
    assert generate(model, PROMPTS[:1]).sequences == generate(model).sequences[:1]


def test_an_error_in_the_model_restores_attention(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, calls = Recorder(), []
    inner = model.model.layers[1].forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return inner(*args, **kwargs)

    monkeypatch.setattr(model.model.layers[1], "forward", failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(model, PROMPTS[:1], streamer=recorder)
    assert (model.config._attn_implementation, recorder.ended) == ("sdpa", 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, None])
def test_an_interruption_gives_the_cache_back_at_once(
    model: Any, error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SiblingCache] = []
    monkeypatch.setattr(decoder, "SiblingCache", lambda *a, **k: made.append(SiblingCache(*a, **k)) or made[-1])
    if error:
        iterator = caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=30, streamer=Recorder(3, error))
        with pytest.raises(error) as caught:
            next(iterator)
        assert caught.tb is not None
    else:
        iterator = caw.iter_generate(model, tokenizer(), PROMPTS, max_new_tokens=30, batch_size=1)
        next(iterator)
        assert made[-1].store is not None
        iterator.close()
    assert made[-1].store is None
    assert made[-1].scratch is None
    assert made[-1].layers[0].keys is None


def test_bad_input_ends_the_stream_too(model: Any) -> None:
    """Whoever waits in another thread for the text must not wait for ever."""
    streamer = TextIteratorStreamer(tokenizer(), timeout=1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        generate(model, PROMPTS[:1], streamer=streamer, max_new_tokens=0)
    assert list(streamer) == [""]


def test_a_stream_ends_though_nobody_asked_for_a_result(model: Any) -> None:
    for drop in (lambda iterator: iterator.close(), lambda iterator: None):
        streamer = TextIteratorStreamer(tokenizer(), timeout=1)
        drop(caw.iter_generate(model, tokenizer(), PROMPTS[:1], max_new_tokens=3, streamer=streamer))
        assert list(streamer) == [""]
