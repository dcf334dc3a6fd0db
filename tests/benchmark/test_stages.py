"""Stages add up: by a clock that only the stages advance, and on a tiny model."""

import time

from stages import PREFILL, STAGES, StageClock, breakdown, watching

from caw.benchmark.modes import ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.decoding import decoder
from caw.decoding.eager_step import EagerStep


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
