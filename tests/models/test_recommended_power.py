"""How many drawn texts of a `caw.Recommended` are found, against what the race's law says of their probabilities."""

import numpy as np
import pytest
from scipy import special
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.defaults import FREE_NATS
from caw.models import ReaderWeights

TOKENS, KEYS, LEVEL, DRAWS = 9, 5, 1e-3, 1000
FALSE_ALARM = 4.5  # standard errors: 7e-6


@pytest.mark.parametrize("temperature", [1.0])
def test_the_share_found_is_what_theory_says(temperature: float) -> None:
    """A token of probability q scores -log(1 - M^q); a text is found above the gamma quantile of half the level."""
    tokenizer = tiny_tokenizer()
    model, rng, found, expected, spread = tiny_model(len(tokenizer)), np.random.default_rng(0), 0, 0.0, 0.0
    prompts = [[i, i + 1, i + 2] for i in range(10, 50)]
    reader = ReaderWeights(model, tokenizer, temperature=temperature)
    for key in range(KEYS):
        mark = caw.Recommended(key)
        texts = caw.generate(
            model, tokenizer, prompts, watermark=mark, do_sample=True, temperature=temperature, max_new_tokens=TOKENS,
            min_new_tokens=TOKENS, progress=False, return_trace=False, batch_size=40,
        ).sequences  # fmt: skip
        for prompt, ids in zip(prompts, texts, strict=True):
            found += caw.detect(ids, None, mark, LEVEL).is_watermarked
            scores = caw.detect(ids, None, mark.drawn).token_scores
            counted = np.array([score is not None for score in scores])
            shares = reader.with_prompt(prompt).shares(np.array(ids))
            spent = np.cumsum(-np.log(shares)) + np.log(shares)  # before each token
            q = np.where(spent < FREE_NATS, 1.0, shares)[counted]
            sums = -np.log1p(-(rng.random((DRAWS, len(q))) ** q)).sum(axis=1)
            chance = (special.gammaincc(len(q), sums) <= mark.level_of_each(LEVEL)).mean()
            expected, spread = expected + chance, spread + chance * (1 - chance)
    texts_made = KEYS * len(prompts)
    assert 0.1 < expected / texts_made < 0.98, "a share that could go either way"
    assert abs(found - expected) < FALSE_ALARM * np.sqrt(spread) + LEVEL * texts_made
