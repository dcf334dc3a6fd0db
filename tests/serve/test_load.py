"""A hundred clients at once."""

import asyncio
import contextlib
import random
from typing import Any

import openai
import pytest
from serve.serving import KEY, MARK, NAME, OTHER, Kept, Running, alone, parts, running

import caw
from caw.detectable.receipts import text_digest

CLIENTS, ROUNDS, TOKENS = 100, 4, 120
PROMPTS = ("the sky", "a small model", "why", "\r\n\r\ndata: [DONE]\r\n\r\n", "<|end|> \x00\u202e")


def request_of(number: int) -> dict[str, Any]:
    """What a client asks: keys, prompts, lengths, sampling and streaming are mixed."""
    rng = random.Random(number)
    greedy = rng.random() < 0.3
    return {
        "key": rng.choice(["one", "two"]), "prompt": rng.choice(PROMPTS) + f" {number % 40}", "stream": number % 2 == 0,
        "max_tokens": rng.choice([1, 7, 30, TOKENS]), "temperature": 0 if greedy else rng.choice([0.5, 1.0]),
        "top_p": 1.0 if greedy else rng.choice([0.7, 1.0]), "seed": rng.randrange(1 << 63),
    }  # fmt: skip


def expected(asked: dict[str, Any]) -> str:
    sampling = {name: asked[name] for name in ("temperature", "top_p", "seed")}
    ours = {"do_sample": True, **sampling} if asked["temperature"] else {}
    key = {"one": KEY, "two": OTHER}[asked["key"]]
    return alone(asked["prompt"], key=key, max_new_tokens=asked["max_tokens"], **ours)[0]


async def answer_of(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> str:
    body = {name: value for name, value in asked.items() if name != "key"}
    answer: Any = await client.completions.create(model=NAME, **body)
    if not asked["stream"]:
        return str(answer.choices[0].text)
    return "".join([chunk.choices[0].text async for chunk in answer])


async def all_clients(served: Running, count: int, rounds: int) -> list[tuple[dict[str, Any], str]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            key: await stack.enter_async_context(
                openai.AsyncOpenAI(base_url=f"{served.server.url}/v1", api_key=key, max_retries=0, timeout=600)
            )
            for key in ("one", "two")
        }

        async def one(number: int) -> list[tuple[dict[str, Any], str]]:
            asked = [request_of(number + turn * count) for turn in range(rounds)]
            return [(each, await answer_of(clients[each["key"]], each)) for each in asked]

        return [pair for found in await asyncio.gather(*map(one, range(count))) for pair in found]


def check_all(served: Running, found: list[tuple[dict[str, Any], str]]) -> None:
    """No text is lost, mixed up or unmarked: each is what its request gives alone, with a receipt of its own."""
    served.idle()
    assert [text for _, text in found] == [expected(asked) for asked, _ in found]
    assert sorted(one.digest for one in served.log.closed) == sorted(text_digest(text) for _, text in found)
    assert {one.ending for one in served.log.closed} == {"complete"}
    assert {one.unmarked for one in served.log.begun} == {""} and len({one.id for one in served.log.begun}) == len(
        found
    )


def test_a_few_clients_at_once() -> None:
    with running(batch=3) as served:
        check_all(served, asyncio.run(all_clients(served, 5, 1)))


@pytest.mark.gate("serve")
def test_a_hundred_clients_at_once() -> None:
    with running(batch=16, log=Kept()) as served:
        found = asyncio.run(all_clients(served, CLIENTS, ROUNDS))
        check_all(served, found)
    long = [(asked, text) for asked, text in found if asked["max_tokens"] == TOKENS]
    marks = {"one": MARK.with_key(KEY), "two": MARK.with_key(OTHER)}
    results = [caw.detect(text, parts()[1], marks[asked["key"]], fpr=1e-2) for asked, text in long]
    others = [caw.detect(text, parts()[1], MARK.with_key(99), fpr=1e-2) for _, text in long]
    assert len(long) > 50
    assert sum(one.is_watermarked for one in results) >= 0.9 * len(long)
    assert sum(one.is_watermarked for one in others) <= 0.1 * len(long)
