"""EXP(strength="scale") at strength 1: the model's own distribution, and a text that the key decides."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import prompt
from decoding.running import make_decoder, run
from scipy import stats
from tiny import tiny_tokenizer

import caw
from caw import ops
from caw.policies.mark import Mark
from caw.record import Record
from caw.watermarks import Position

FALSE_ALARM = 1e-6
RACE = caw.EXP(key=11, strength="scale", context_width=3, free=0)
SAMPLED = {"do_sample": True, "temperature": 1.3, "top_p": 0.95}
PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1)]


def position_of(logits: torch.Tensor, context: torch.Tensor) -> Position:
    record = Record.from_logits(logits)
    return Position(record, record.values, logits, context, logits)


def test_a_thousand_near_flat_tokens_are_drawn_as_often_as_they_should() -> None:
    """Chi-square over contexts, at a false-alarm rate of 1e-6; a race over the record of 100 would not pass."""
    draws = 200_000
    logits = torch.randn(1000) * 0.3
    expected = draws * logits.double().softmax(0).numpy()
    context = torch.arange(draws)[:, None].expand(-1, 3).contiguous()
    counts = np.zeros(1000)
    for some in context.split(5000):
        at = position_of(logits.expand(len(some), -1), some)
        counts += np.bincount(RACE.whole_winner(at, native=True).numpy(), minlength=1000)
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
    record = np.isin(np.arange(1000), logits.topk(100).indices.numpy())
    assert counts[~record].sum() > 0.5 * draws


@pytest.mark.parametrize(
    "watermark",
    [RACE, caw.EXP(key=5, strength="scale", temperature=0.6), caw.EXP(key=5, strength="scale", format="vllm-dual",
     alpha=0.4), caw.EXP(key=9, strength="scale", format="markllm", vocab_size=307, context_width=2),
     caw.EXP(key=5, strength="scale", payload=5, payload_bits=4)],
    ids=["native", "temperature", "dual", "markllm", "payload"],
)  # fmt: skip
def test_winner_by_the_formula(watermark: caw.EXP) -> None:
    """argmax of log p - log(-log F) over every token, by the noise that ladders use."""
    logits = torch.randn(40, 307) * 2
    logits[:, ::7] = -torch.inf
    at = position_of(logits, torch.randint(0, 307, (40, watermark.window)))
    noise = watermark.scheme.noise(at.context, torch.arange(307).expand(40, -1))
    race = torch.where(logits > -torch.inf, logits.double() / watermark.temperature + noise, -torch.inf)
    assert len(race.argmax(1).unique()) > 10
    for native in (True, False):
        assert torch.equal(watermark.whole_winner(at, native=native), race.argmax(1))


def first_repeat(tokens: list[int], width: int) -> int:
    """The place of the first token whose context stood there before."""
    padded = [-1] * width + tokens
    seen: set[tuple[int, ...]] = set()
    for place in range(len(tokens)):
        context = tuple(padded[place : place + width])
        if context in seen:
            return place
        seen.add(context)
    return len(tokens)


@pytest.mark.parametrize("fixed", [False, True])
def test_the_seed_has_no_say_until_a_context_repeats(llama: Any, fixed: bool) -> None:
    """By a context of one token texts repeat soon, and part there."""
    for width, apart in ((3, False), (1, True)):
        mark = dataclasses.replace(RACE, context_width=width)
        texts = [
            run(llama, PROMPTS, mark, seed=seed, max_new_tokens=60, fixed=fixed, **SAMPLED).tokens for seed in (5, 6)
        ]
        for one, other in zip(*texts, strict=True):
            until = first_repeat(one, width)
            assert one[:until] == other[:until]
        if apart:
            assert texts[0] != texts[1]
    assert texts[0] != run(llama, PROMPTS, mark.with_key(12), seed=5, max_new_tokens=60, **SAMPLED).tokens


def test_nothing_is_drawn_where_the_race_decides(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    call = ops.draw_scores

    def counted(warped: torch.Tensor, drawn: torch.Tensor, *rest: Any) -> Any:
        rows.append(int(drawn.sum()))
        return call(warped, drawn, *rest)

    monkeypatch.setattr(ops, "draw_scores", counted)
    mark = dataclasses.replace(RACE, context_width=1)
    tokens = run(llama, PROMPTS, mark, max_new_tokens=40, **SAMPLED).tokens
    repeats = 0
    for text in tokens:
        contexts = [-1, *text[:-1]]
        repeats += sum(context in contexts[:place] for place, context in enumerate(contexts))
    assert sum(rows) == repeats > 0
    rows.clear()
    asked = run(llama, PROMPTS, mark, max_new_tokens=40, mark_eos=False, eos_token_ids=(2,), **SAMPLED)
    assert sum(rows) == sum(map(len, asked.tokens)), "an end token must not decide by the key"


def test_policies_that_leave_tokens_alone_leave_them_to_the_sampler(llama: Any) -> None:
    """At a factor of 0 the unmarked text; under a gate the unmarked draws where it is shut."""
    plain = run(llama, PROMPTS, None, max_new_tokens=20, seed=3, **SAMPLED).tokens
    shut = run(llama, PROMPTS, RACE, caw.EntropyThreshold(100.0), max_new_tokens=20, seed=3, **SAMPLED).tokens
    assert shut == plain
    half = run(llama, PROMPTS, RACE, caw.EntropyThreshold(4.3), max_new_tokens=20, seed=3, **SAMPLED)
    marked = [strength for trace in half.traces for strength in trace.strength]
    assert {0.0, 1.0} == set(marked) and half.tokens != plain


def test_only_what_may_race_races() -> None:
    fixed = caw.FixedStrength(1.0)
    assert Mark(RACE, fixed).races and Mark(RACE, fixed).always_races
    assert Mark(RACE, caw.EntropyThreshold(1.0)).races and not Mark(RACE, caw.EntropyThreshold(1.0)).always_races
    for mark, policy in ((caw.EXP(key=1), fixed), (caw.KGW(key=1), fixed), (None, fixed),
                         (RACE, caw.FixedStrength(0.5)), (RACE, caw.FixedStrength(2.0))):  # fmt: skip
        assert not Mark(mark, policy).races


def test_what_a_full_race_does_not_take_is_refused(llama: Any) -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(ValueError, match="it takes no target, got one in FixedStrength; leave target out"):
        caw.generate(llama, tokenizer, [[1, 2]], watermark=RACE, policy=caw.FixedStrength(1.0, target=1e-3))
    with pytest.raises(ValueError, match="best_of must be 1, got 3; leave it out"):
        caw.generate(llama, tokenizer, [[1, 2]], watermark=RACE, detectable_at=1e-3, best_of=3, max_new_tokens=50)


def test_a_decoder_of_nothing_else_has_two_rungs(llama: Any) -> None:
    """Rungs of a ladder over the record would be forwarded as rows of a captured step's ring."""
    step: Any = make_decoder(llama, RACE, fixed=True, do_sample=True).step
    assert step.plan.rungs == 2
    other: Any = make_decoder(llama, RACE, caw.FixedStrength(0.5), fixed=True, do_sample=True).step
    assert other.plan.rungs == 100
