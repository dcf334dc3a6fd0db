"""Stages add up: by a clock that only the stages advance, and on a tiny model."""

import time
from functools import partial

from stages import StageClock, interleaved, watching

from caw.benchmark.modes import ModeInputs, call_of
from caw.benchmark.subjects import load_subject, make_prompts
from caw.decoding import decoder
from caw.decoding.eager_step import EagerStep


def test_stages_of_a_model_and_nothing_is_left_behind() -> None:
    before = EagerStep.decode, EagerStep.record, decoder.prefill
    subject = load_subject("", "tiny", "float32", "cpu", None)
    inputs = ModeInputs(subject, make_prompts(subject, 2, 9), 0.8, 1.0)
    calls = {mode: partial(call_of(mode, inputs), 6) for mode in ("plain", "kgw+caw")}
    found = interleaved(calls, 3, time.thread_time)
    assert (EagerStep.decode, EagerStep.record, decoder.prefill) == before
    for mode, watches in found.items():
        assert [watch.steps for watch in watches] == [6] * 3
        for watch in watches:
            assert watch.seconds["forward"] > 0.1 * sum(watch.seconds.values()) and watch.seconds["prefill"] > 0
            assert (watch.seconds["evaluate + select"] > 0) == (mode == "kgw+caw")


def test_an_error_leaves_the_step_as_it_was() -> None:
    real = EagerStep.decode
    try:
        with watching(StageClock()):
            assert EagerStep.decode is not real
            raise KeyError
    except KeyError:
        assert EagerStep.decode is real
