"""Stages add up: by a clock that only the stages advance, and on a tiny model."""

from __future__ import annotations

import time

from stages import OUTSIDE, PREFILL, STAGES, StageClock, breakdown, watching

from caw.benchmark.modes import ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.decoding import decoder
from caw.decoding.eager_step import EagerStep


def test_what_a_stage_calls_is_not_counted_twice() -> None:
    now = [0.0]

    def spend(seconds: float) -> None:
        now[0] += seconds

    watch = StageClock(lambda: now[0])
    record = watch.timed("record", lambda: spend(3.0))
    commit = watch.timed("commit", lambda: (spend(1.0), record(), spend(0.5)))
    step = watch.timed("rest of the step", lambda: (record(), spend(0.25), commit()))
    watch.run(lambda: (spend(10.0), step(), step()))
    assert watch.steps == 2
    assert {name: s for name, s in watch.seconds.items() if s} == {
        "record": 12.0, "commit": 3.0, "rest of the step": 0.5, OUTSIDE: 10.0,
    }  # fmt: skip


def test_stages_of_a_model_and_nothing_is_left_behind() -> None:
    before = EagerStep.decode, EagerStep.record, decoder.prefill
    subject = load_subject("", "tiny", "float32", "cpu", None)
    inputs = ModeInputs(subject, make_prompts(subject, 2, 9), 0.8, 1.0)
    calls = {mode: call_of(mode, inputs) for mode in ("plain", "kgw+caw")}
    found = breakdown(calls, tokens=6, rounds=3, clock=time.thread_time)
    assert (EagerStep.decode, EagerStep.record, decoder.prefill) == before
    assert found["plain"]["steps"] == found["kgw+caw"]["steps"] == 6
    plain, marked = (found[mode]["stages"] for mode in ("plain", "kgw+caw"))
    assert "evaluate + select" not in plain and marked["evaluate + select"]["median"] > 0
    for row in found.values():
        assert set(row["stages"]) <= set(STAGES) and PREFILL not in row["stages"] and row["prefill_ms"]["median"] > 0
        assert row["stages"]["forward"]["median"] > 0.1 * row["step_ms"]["median"]
        assert all(summary["n"] == 3 for summary in row["stages"].values())


def test_an_error_leaves_the_step_as_it_was() -> None:
    real = EagerStep.decode
    try:
        with watching(StageClock()):
            assert EagerStep.decode is not real
            raise KeyError
    except KeyError:
        assert EagerStep.decode is real
