"""The endpoint as OpenAI's own client sees it."""

import urllib.request
from typing import Any

import openai
import pytest
from serve.serving import KEY, MARK, NAME, OTHER, Kept, Running, alone, chat_ids, parts, running

import caw
from caw.models.teacher import log_probs
from caw.testing import assert_close

HELLO = {"role": "user", "content": "why is the sky blue"}
# OpenAI's parameters, and the same request in this library
SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0}, {}),
    ({"temperature": 0.9, "top_p": 0.8, "seed": 5}, {"do_sample": True, "temperature": 0.9, "top_p": 0.8, "seed": 5}),
    ({"temperature": None, "seed": (1 << 64) - 7}, {"do_sample": True, "seed": (1 << 64) - 7}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked, ours", SAMPLING)
def test_completions_are_what_the_library_gives_alone(
    served: Running, asked: dict[str, Any], ours: dict[str, Any], stream: bool
) -> None:
    want = alone("the sky is", count=2, max_new_tokens=30, **ours)
    answer = served.complete("the sky is", max_tokens=30, n=2, stream=stream, **asked)
    if not stream:
        assert [choice.text for choice in answer.choices] == want
        assert answer.usage.completion_tokens == 60 and answer.caw["marked"]
        assert len(set(answer.caw["receipts"])) == 2
        return
    texts, reasons = ["", ""], ["", ""]
    for chunk in answer:
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index] = choice.finish_reason or ""
    assert texts == want and reasons == ["length", "length"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_what_the_library_gives_alone(served: Running, stream: bool) -> None:
    want = alone(chat_ids(HELLO), max_new_tokens=25, do_sample=True, seed=9)
    told = {"include_usage": True, "continuous_usage_stats": True}
    settings: dict[str, Any] = {"stream_options": told} if stream else {}
    answer: Any = served.client().chat.completions.create(
        model=NAME, messages=[HELLO], max_completion_tokens=25, seed=9, stream=stream, **settings
    )
    if not stream:
        [choice] = answer.choices
        assert [choice.message.content] == want and choice.message.role == "assistant"
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(chat_ids(HELLO)), 25)
        return
    *chunks, last = list(answer)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert ["".join(chunk.choices[0].delta.content or "" for chunk in chunks)] == want
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert last.choices == [] and last.usage.completion_tokens == 25
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 25


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_are_left_out_of_the_text(served: Running, stream: bool) -> None:
    [free] = alone("a small text", max_new_tokens=40)
    stop = free[12:15]
    [want] = alone("a small text", max_new_tokens=40, stop=stop)
    assert want and stop not in want
    answer = served.complete("a small text", max_tokens=40, stop=[stop, "never"], stream=stream)
    pieces = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
    assert "".join(piece.text for piece in pieces) == want and pieces[-1].finish_reason == "stop"


def test_every_tenant_is_marked_under_its_own_key(served: Running) -> None:
    texts = [served.complete("the sky", key=key, max_tokens=20).choices[0].text for key in ("one", "two")]
    assert texts == [alone("the sky", max_new_tokens=20, key=key)[0] for key in (KEY, OTHER)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_the_unmarked_models(served: Running, stream: bool) -> None:
    answer: Any = served.client().chat.completions.create(
        model=NAME, messages=[HELLO], max_tokens=12, temperature=0, logprobs=True, top_logprobs=3, stream=stream  # type: ignore[call-overload]
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    content = [token for choice in choices if choice.logprobs for token in choice.logprobs.content]
    prompt = chat_ids(HELLO)
    [tokens] = caw.generate(
        *parts(), [prompt], watermark=MARK.with_key(KEY), max_new_tokens=12, progress=False
    ).sequences
    [expected] = log_probs(parts()[0], [([*prompt, *tokens], len(prompt))])
    assert_close([token.logprob for token in content], expected.tolist(), "forward")
    assert all(len(token.top_logprobs) == 3 for token in content)
    assert all(token.top_logprobs[0].logprob >= token.logprob for token in content)
    assert any(token.top_logprobs[0].token != token.token for token in content), "marks changed something"


def raw_of(token: str) -> bytes:
    part = token.startswith("bytes:")
    return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", "")) if part else token.encode()


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_of_a_part_of_a_character_are_its_own(served: Running, stream: bool) -> None:
    """And not those of the replacement character that stands for it in the text."""
    first, tokenizer = "\U0001f9a6".encode()[0], parts()[1]
    [token] = tokenizer.convert_tokens_to_ids([chr(first)])  # the alphabet of bytes has it as itself
    forced: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "logit_bias": {str(token): 100}, "stream": stream}
    answer: Any = served.client().chat.completions.create(
        model=NAME, messages=[HELLO], logprobs=True, top_logprobs=1, **forced
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    content = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    assert [each.bytes for each in content] == [[first]] * 2
    answer = served.complete("the sky", logprobs=1, **forced)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    logprobs = [choice.logprobs for choice in choices if choice.logprobs]
    assert [token for each in logprobs for token in each.tokens] == ["bytes:\\xf0"] * 2
    assert [place for each in logprobs for place in each.text_offset] == [0, 1]


def test_log_probabilities_of_completions(served: Running) -> None:
    said = served.complete("the sky", max_tokens=8, logprobs=2).choices[0].logprobs
    assert len(said.tokens) == len(said.token_logprobs) == len(said.top_logprobs) == 8
    whole = b"".join(raw_of(token) for token in said.tokens)
    starts = [place for place, byte in enumerate(whole) if byte & 0xC0 != 0x80]
    ends = [sum(len(raw_of(token)) for token in said.tokens[:place]) for place in range(8)]
    assert said.text_offset == [sum(start < end for start in starts) for end in ends]
    assert all(1 <= len(top) <= 2 and max(top.values()) < 0 for top in said.top_logprobs)


def test_several_prompts_as_texts_and_ids(served: Running) -> None:
    prompts = ["the sky", "a model", "the sky"]
    want = [alone(prompt, max_new_tokens=9)[0] for prompt in prompts]
    for given in (prompts, [parts()[1](prompt)["input_ids"] for prompt in prompts]):
        answer = served.complete(given, max_tokens=9)
        assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(want))


def test_models(served: Running) -> None:
    client = served.client()
    assert [model.id for model in client.models.list()] == [NAME] and client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match="'other' does not exist; use 'tiny'"):
        client.models.retrieve("other")


def test_strangers_are_refused_and_nothing_is_made_without_a_key(served: Running) -> None:
    for ask in (lambda c: c.models.list(), lambda c: c.completions.create(model=NAME, prompt="x")):
        with pytest.raises(openai.AuthenticationError, match="API key is missing or unknown") as caught:
            ask(served.client("stranger"))
        assert "stranger" not in str(caught.value)
    begun = len(served.log.begun)
    with pytest.raises(openai.InternalServerError, match="no active marking key") as failed:
        served.complete("x", key="lost")
    assert failed.value.status_code == 503 and len(served.log.begun) == begun


def test_many_who_ask_for_its_health_cost_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[int] = []
    monkeypatch.setattr(Kept, "check", lambda self: checks.append(1))
    with running() as served:
        for _ in range(5):
            with urllib.request.urlopen(f"{served.server.url}/health") as answer:
                assert answer.status == 200
    assert len(checks) <= 2


def test_health_and_metrics(served: Running) -> None:
    served.complete("x", max_tokens=3)
    served.idle()
    with urllib.request.urlopen(f"{served.server.url}/health") as answer:
        assert answer.status == 200 and answer.read() == b'{"status":"ok"}'
    with urllib.request.urlopen(f"{served.server.url}/metrics") as answer:
        shown = answer.read().decode()
    assert 'caw_requests_total{path="/v1/completions",status="200"}' in shown
    assert "caw_active_texts 0.0" in shown and 'caw_texts_total{ending="complete",marked="true"}' in shown
