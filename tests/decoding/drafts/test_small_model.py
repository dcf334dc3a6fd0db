"""A smaller model that guesses: with the large one's own weights it is right nearly always."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from decoding.architectures import build, policy_of, prompt, tokenizer
from decoding.drafts.guessing import keep_price_steady
from decoding.mixing import texts
from decoding.running import Run, run

import caw
from caw import ops
from caw.decoding.drafts.price import RowPrice
from caw.decoding.drafts.small_model import ForeseeingFollower, ModelDrafter
from caw.decoding.drafts.step import DraftStep
from caw.decoding.row_settings import RowSettings

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
PROMPTS = [prompt(9), prompt(30, 1)]


def made(speculate: Any, **options: Any) -> caw.GenerationOutput:
    return caw.generate(
        build("qwen3"), tokenizer(), PROMPTS, max_new_tokens=24, min_new_tokens=24, speculate=speculate, progress=False,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("marked", ["unmarked", "exp", "caw exp", "foreign"])
def test_texts_stay_and_a_copy_is_right(marked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_price_steady(monkeypatch)
    options: dict[str, Any] = {
        "unmarked": {}, "exp": {"watermark": caw.EXP(key=3)},
        "caw exp": {"watermark": caw.EXP(key=3, top_k=3), "policy": policy_of(build("qwen3"))},
        "foreign": {"watermark": caw.KGW(key=3, delta=0.5, format="transformers")},
    }[marked]  # fmt: skip
    mark = options.get("watermark")
    drafter = ModelDrafter(copy.deepcopy(build("qwen3")), mark, options.get("policy", caw.FixedStrength(1.0)), cost=0.1)
    plain, done = made(None, **options), made(drafter, **options)
    assert done.sequences == plain.sequences
    for trace in done.trace or []:
        counts = trace.drafts
        assert counts is not None and counts.drafted
        if marked != "foreign":  # it knows the key too, and under CAW what follows the original token
            assert counts.accepted == counts.drafted and trace.tokens_per_pass > 2
            assert any(trace.choice) == (marked != "unmarked")


OWN = [RowSettings(max_new_tokens=14, **own) for own in ({}, {"key": "other"}, {"key": 8, "strength_factor": 0.4})]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_each_text_has_its_own_key_and_factor(looks_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is told neither takes the call's for all, and is right less often where they differ."""
    keep_price_steady(monkeypatch)
    model, mark = build("qwen3"), caw.KGW(key=3, delta=6.0)
    policy = policy_of(model) if looks_ahead else caw.FixedStrength(1.0)
    drafter = ModelDrafter(copy.deepcopy(model), mark, policy, cost=0.1)
    untold = SimpleNamespace(follow=drafter.follow, learn=drafter.learn, cost=0.1, expected=drafter.expected)

    def decoded(speculate: Any) -> Run:
        prompts = [PROMPTS[0]] * len(OWN)
        return run(model, prompts, mark, policy, rows=OWN, batch=2, max_new_tokens=14, speculate=speculate, slots=2)

    plain, told, not_told = decoded(None), decoded(drafter), decoded(untold)
    assert texts(told) == texts(not_told) == texts(plain)
    assert len({tuple(tokens) for tokens in plain.tokens}) == len(OWN), "keys and factors matter"
    right, less = ([t.drafts.acceptance for t in done.traces] for done in (told, not_told))
    assert right == [1.0] * len(OWN)
    assert less[0] == 1.0 and max(less[1:]) < 1.0


@pytest.mark.parametrize("seconds, carried", [(0.01, range(55, 80)), (0.5, range(1, 4))])
def test_guesses_are_priced_by_what_they_take(seconds: float, carried: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside forwards of .1 s, for a copy that is always right and says that a token costs it a tenth of one.

    It is asked for a single token until that is known.
    """
    now, price, forward, among = [0.0], RowPrice(), DraftStep.forward, ForeseeingFollower.among

    def timed_forward(self: DraftStep, *given: Any) -> Any:
        found = forward(self, *given)
        now[0] += 0.1 * (self._walking is None)
        return found

    def timed_among(self: ForeseeingFollower, *given: Any) -> Any:
        root, guess = among(self, *given)
        now[0] += seconds * len(guess.tokens)
        return root, guess

    monkeypatch.setattr("caw.decoding.drafts.step.time.thread_time", lambda: now[0])
    monkeypatch.setattr(DraftStep, "forward", timed_forward)
    monkeypatch.setattr(ForeseeingFollower, "among", timed_among)
    monkeypatch.setattr("caw.decoding.steps.price_for", lambda model: price)
    monkeypatch.setattr("caw.decoding.steps.share_of", lambda small, large: 0.1)
    model = build("qwen3")
    mark, policy, small = caw.EXP(key=3, top_k=3), policy_of(model), copy.deepcopy(model)
    plain, done = (run(model, PROMPTS[:1], mark, policy, max_new_tokens=80, speculate=each) for each in (None, small))
    assert texts(done) == texts(plain)
    counts = done.traces[0].drafts
    assert counts.accepted == counts.drafted and counts.drafted in carried


def test_another_model_may_be_wrong() -> None:
    options = {"watermark": caw.EXP(key=3)}
    done = made(ModelDrafter(build("llama"), caw.EXP(key=3), caw.FixedStrength(1.0), cost=0.1), **options)
    assert done.sequences == made(None, **options).sequences
    assert sum(trace.drafts.drafted - trace.drafts.accepted for trace in done.trace or [] if trace.drafts) > 0


def test_a_model_is_followed_as_far_as_its_size_pays() -> None:
    """One of the same size never pays; its texts are the same all the same."""
    done = made(copy.deepcopy(build("qwen3")))
    assert done.sequences == made(None).sequences
    assert all(trace.drafts is not None and not trace.drafts.drafted for trace in done.trace or [])


@pytest.mark.parametrize("marked", [False, True])
def test_the_cache_keeps_what_is_still_true(marked: bool) -> None:
    model = copy.deepcopy(build("qwen3"))
    drafter = ModelDrafter(model, caw.KGW(key=3, delta=4.0) if marked else None, policy_of(model), 0.3)
    text, long = PROMPTS[1], prompt(60, 5)
    follower = drafter.follow(text[:10])
    follower.after(7, 3)
    follower.extend(text[10:])
    fresh = drafter.follow(text).after(5, 4)
    assert follower.after(5, 4) == fresh and len(fresh.tokens) == 4
    assert follower.after(5, 4) == fresh, "asking changes nothing"
    assert (list(fresh.originals) not in ([], list(fresh.tokens))) == marked
    follower.extend(long)
    assert follower.after(6, 60) == drafter.follow([*text, *long]).after(6, 60), "the cache grows, the positions end"
    assert len(follower.after(6, 60).tokens) == 128 - 90 - 1
    assert not drafter.follow([10**6]).after(1, 3).tokens, "an id that it does not know"


def test_itself_is_no_smaller_model() -> None:
    with pytest.raises(ValueError, match=r"^speculate must be a smaller model than the one that writes"):
        made(build("qwen3"))
