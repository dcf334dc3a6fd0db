"""A server of a Recommended: texts that are drawn and greedy ones in one batch, each as it is alone."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from flat_evaluator import flat_evaluator
from serve.serving import KEY, parts, running

import caw
from caw import defaults

PROMPTS = ["the sky is blue because", "a tree is", "tea came to"]
MARK = caw.Recommended(1, evaluator=flat_evaluator())
OWN = MARK.with_key(KEY)


def test_requests_of_both_families_share_the_batch_and_are_as_alone() -> None:
    asked = [(prompt, temperature) for prompt in PROMPTS[:2] for temperature in (0, 0.29, 1.0)]
    with running(MARK, batch=4) as server:
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(
                pool.map(lambda one: server.complete(one[0], temperature=one[1], seed=3, max_tokens=30), asked)
            )
        server.idle()
        begun = {one.policy.partition("(")[2] for one in server.log.begun}
        numbers = f"theta={defaults.THETA}, beta={defaults.BETA}, target={OWN.level_of_each(1e-3)}"
        assert begun == {"value=1.0)", f"evaluator='flat.safetensors', {numbers})"}
    from_its_start = dataclasses.replace(OWN.drawn, free=0)  # plain completions have no free beginning
    for (prompt, temperature), answer in zip(asked, answers, strict=True):
        expected = caw.generate(
            *parts(), [prompt], watermark=from_its_start if temperature == 1 else OWN, do_sample=temperature > 0,
            temperature=temperature or 1.0, seed=3, max_new_tokens=30, progress=False,
        )  # fmt: skip
        assert answer.choices[0].text == expected.texts[0]


def test_tests_receipts_and_rules_of_each_family() -> None:
    with running(MARK) as server:
        for prompt, temperature, family in (("a long way", 0, "kgw"), (PROMPTS[0], 2.0, "exp")):
            server.complete(prompt, key="found", temperature=temperature, seed=3, max_tokens=200)
            server.idle()
            closed = server.log.closed[-1]
            assert closed.tested is not None and closed.tested["watermark"] == "recommended"
            assert closed.tested["family"] == family, closed.tested
            assert closed.detected, closed.tested
            assert closed.tested["level"] == 1e-3
        # another strength is for greedy texts: a race has one
        server.complete(PROMPTS[1], key="half", temperature=1.0, seed=5, max_tokens=40)
        server.idle()
        tested = server.log.closed[-1].tested
        assert tested is not None and tested["strength_factor"] == 1


def test_a_text_without_a_beginning_is_drawn_once() -> None:
    """The key decides it: further attempts would be the same text. Greedy ones are tried more strongly."""
    with running(MARK) as server:
        for temperature, attempts in ((1.0, 1), (0.0, 4)):
            server.complete(PROMPTS[0], key="found", temperature=temperature, max_tokens=3 if attempts == 1 else 12)
            server.idle()
            tested = server.log.closed[-1].tested
            assert tested is not None and (tested["detected"], tested["attempts"]) == (False, attempts)


def test_what_leaves_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="brings its own policies"), running(MARK, caw.FixedStrength(1.0)):
        pass
    race = caw.EXP(key=1, strength="scale", context_width=2)
    with pytest.raises(ValueError, match="it takes no target"), running(race, caw.FixedStrength(1.0, target=1e-3)):
        pass
    with running(race) as server:
        with pytest.raises(openai.InternalServerError, match="race has one strength, this API key's rules another"):
            server.complete(PROMPTS[0], key="half", temperature=1.0, max_tokens=60)
        assert not server.log.begun


def test_a_continued_text_keeps_its_family() -> None:
    with running(MARK) as server:
        first = server.complete(PROMPTS[0], temperature=2.0, seed=3, max_tokens=12)
        [token] = first.caw["continuations"]
        prompt, extra = PROMPTS[0] + first.choices[0].text, {"continuation": token}
        whole = server.complete(PROMPTS[0], temperature=2.0, seed=3, max_tokens=24).choices[0].text
        for seed in (None, 3):
            own = {} if seed is None else {"seed": seed}
            answer = server.complete(prompt, temperature=2.0, max_tokens=12, extra_body=extra, **own)
            assert first.choices[0].text + answer.choices[0].text == whole
        with pytest.raises(openai.BadRequestError, match="continuation"):
            server.complete(prompt, temperature=0, max_tokens=12, extra_body=extra)
