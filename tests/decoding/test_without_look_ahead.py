"""Evaluators that do not read the next position: one token a forward, and the tokens of the look-ahead all the same."""

import math
from typing import Any

import pytest
from decoding.architectures import prompt
from decoding.capturing import replays_go_on_as, seen_by_fakes, started
from decoding.drafts.test_step import decoded, same
from decoding.mixing import ROWS, texts
from decoding.running import Run, run
from decoding.test_step import SAMPLING, WATERMARKS, capacity_policy
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.choosing import Choosing
from caw.decoding.plan_defaults import checked
from caw.testing import assert_close

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(6, 3)]
WINDOWS = [(0, 0), (1, 0)]
SLOTS = 32  # as many as any ladder here has rungs: with fewer a look-ahead would wait, and only cost steps


class Forced(caw.CapacityPolicy):
    """Looks ahead although its evaluator does not read what it sees."""

    looks_ahead = True  # type: ignore[assignment]


def both(model: Any, window: tuple[int, int], **more: Any) -> tuple[caw.CapacityPolicy, caw.CapacityPolicy]:
    """The policy, and the same one with its look-ahead forced."""
    network = capacity_policy(model, window).network
    return tuple(kind(network, 0.8, 1.5, **more) for kind in (caw.CapacityPolicy, Forced))  # type: ignore[return-value]


def alike(done: Run, forced: Run) -> None:
    assert done.tokens == forced.tokens and done.reasons == forced.reasons
    assert 0 < done.changed < sum(map(len, done.tokens))
    for ours, theirs in zip(done.traces, forced.traces, strict=True):
        assert (ours.candidates, ours.choice) == (theirs.candidates, theirs.choice)
        assert_close(ours.strength, theirs.strength, "capacity")
        assert_close(ours.capacity, theirs.capacity, "capacity")
        assert not any(map(math.isnan, ours.capacity)), "every token has one"


def rows_of(done: Run) -> int:
    return sum(sum(active) * forwarded for active, _, _, forwarded in done.steps)


# in every branching, and by the steps that a CUDA graph could hold, of two operators and of the whole loop
WAYS: dict[str, dict[str, Any]] = {
    **{branching: {"branching": branching} for branching in ("tree", "sequential", "batch")},
    "fused": {"fixed": True}, "fixed": {"fixed": True, "kernels": ops.references()},
}  # fmt: skip


@pytest.mark.parametrize("way, watermark, window, sampling", pairwise(WAYS, WATERMARKS, WINDOWS, SAMPLING))
def test_the_tokens_are_those_of_a_look_ahead(
    llama: Any, way: str, watermark: str, window: tuple[int, int], sampling: str
) -> None:
    """In a batch whose places are filled again; each forward carries a token a text."""
    mark, (policy, forced) = WATERMARKS[watermark], both(llama, window)
    given: dict[str, Any] = {"batch": 2, "budgets": [12, 7, 12, 9], "eos_token_ids": (2,), **SAMPLING[sampling]}
    done = run(llama, PROMPTS, mark, policy, **given, **WAYS[way])
    ahead = run(llama, PROMPTS, mark, forced, slots=SLOTS, **given)
    alike(done, ahead)
    assert {forwarded for *_, forwarded in done.steps} == {1}
    if "fixed" not in WAYS[way]:
        assert rows_of(done) < rows_of(ahead)
        assert len(done.steps) == len(ahead.steps)


@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_is_read_back_and_a_replay_goes_on(llama: Any, window: tuple[int, int]) -> None:
    policy = both(llama, window)[0]
    decoder, step = started(llama, PROMPTS[:3], WATERMARKS["top_k"], policy)
    seen_by_fakes(decoder, step, calls=2)
    replays_go_on_as([started(llama, PROMPTS[:3], WATERMARKS["top_k"], policy) for _ in range(2)])


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
@pytest.mark.parametrize("window", WINDOWS)
def test_drafts(llama: Any, window: tuple[int, int]) -> None:
    """A draft is the token that will be chosen, behind which the next decision needs no forward."""
    mark, (policy, forced) = WATERMARKS["lefthash"], both(llama, window)
    done = same(llama, mark, policy, ["right", "right", "last wrong", "empty"])
    assert texts(done) == texts(decoded(llama, mark, forced, ROWS, fixed=False))
    counts = [trace.drafts for trace in done.traces]
    passes = sum(each.passes for each in counts)
    assert passes + sum(each.accepted for each in counts) == sum(map(len, done.tokens))
    # no second candidate
    assert sum(each.rows for each in counts) == passes + sum(each.drafted for each in counts)


def test_a_target(llama: Any) -> None:
    policy, forced = both(llama, (1, 0), target=0.01)
    given: dict[str, Any] = {"max_new_tokens": 24}
    mark = WATERMARKS["unigram"]
    alike(run(llama, PROMPTS, mark, policy, **given), run(llama, PROMPTS, mark, forced, slots=SLOTS, **given))


def test_an_evaluator_of_the_next_position_cannot_be_told_not_to_look(llama: Any) -> None:
    class Blind(caw.CapacityPolicy):
        looks_ahead = False  # type: ignore[assignment]

    with pytest.raises(ValueError, match="must look ahead, Blind has looks_ahead = False"):
        checked(Blind(capacity_policy(llama, (1, 1)).network))
    assert checked(Blind(capacity_policy(llama, (1, 0)).network)).reads_capacity


def test_the_evaluator_is_asked_only_where_there_is_a_choice(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace a position of one candidate needs no capacity."""
    policy, asked = both(llama, (1, 0))[0], []
    found = Choosing.evaluate_and_select

    def counted(self: Choosing, *given: Any) -> Any:
        asked.append(1)
        return found(self, *given)

    monkeypatch.setattr(Choosing, "evaluate_and_select", counted)
    given: dict[str, Any] = {"max_new_tokens": 16}
    traced = run(llama, PROMPTS[:1], WATERMARKS["lefthash"], policy, **given)
    everywhere, single = len(asked), sum(len(candidates) == 1 for candidates in traced.traces[0].candidates)
    asked.clear()
    plain = run(llama, PROMPTS[:1], WATERMARKS["lefthash"], policy, return_trace=False, **given)
    assert plain.tokens == traced.tokens and everywhere == 16
    assert len(asked) == 16 - single < 16
