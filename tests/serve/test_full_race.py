"""A server whose drawn texts race at full strength, each under a variant of its tenant's key."""

from __future__ import annotations

import openai
import pytest
from serve.serving import KEY, parts, running

import caw
from caw.detection import Detector

PROMPT = "the sky is blue because"
RACE = caw.EXP(key=1, strength="scale", context_width=2, variants=16)
MARK = RACE.with_key(KEY)
DRAWN = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 60}


def test_choices_are_variants_and_receipts_name_them() -> None:
    with running(RACE) as server:
        answer = server.complete(PROMPT, n=4, seed=3, **DRAWN)
        texts = [choice.text for choice in answer.choices]
        expected = caw.generate(
            *parts(), [PROMPT] * 4, watermark=MARK, do_sample=True, seed=3, top_p=0.95, max_new_tokens=60,
            progress=False,
        )  # fmt: skip
        assert texts == list(expected.texts) and len(set(texts)) == 4
        results = [Detector(parts()[1], MARK)(text) for text in texts]
        found = {place: result.variant for place, result in enumerate(results) if result.is_watermarked}
        assert len(found) >= 2 and len({(number - place) % 16 for place, number in found.items()}) == 1
        tested = server.complete(PROMPT, key="found", seed=3, **DRAWN)
        server.idle()
        closed = server.log.closed[-1]
        assert tested.choices[0].text == texts[0] and closed.detected
        assert closed.tested is not None and closed.tested["variant"] == results[0].variant


def test_rules_of_another_strength_are_refused() -> None:
    with running(RACE) as server:
        begun = len(server.log.begun)
        with pytest.raises(openai.InternalServerError, match="race has one strength, this API key's rules another"):
            server.complete(PROMPT, key="half", **DRAWN)
        assert len(server.log.begun) == begun
    with pytest.raises(ValueError, match="it takes no target"), running(RACE, caw.FixedStrength(1.0, target=1e-3)):
        pass
