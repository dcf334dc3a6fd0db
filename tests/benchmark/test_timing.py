"""Rounds, what is taken off, quartiles: with a clock that only the calls advance."""

import pytest
import torch

from caw.benchmark.timing import Made, PreparationWatch, Summary, clock_for, measure, ratios, short_run


class Work:
    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self, name: str, first: float, step: float, preparation: float = 0.0):
        def run(tokens: int) -> Made:
            self.order.append(name)
            spent = preparation if tokens > 1 else 0.0
            self.now += first + (tokens - 1) * step + spent
            return Made([[0] * tokens], spent)

        return run


def test_first_token_step_and_preparation_come_apart() -> None:
    work = Work()
    calls = {"plain": work.call("plain", 5.0, 2.0), "other": work.call("other", 6.0, 3.0, preparation=40.0)}
    times = measure(calls, tokens=9, rounds=4, clock=work.clock, short=1)
    assert times["plain"].first == [5.0] * 4 and times["plain"].step == [2.0] * 4
    assert times["other"].first == [6.0] * 4 and times["other"].step == [3.0] * 4
    assert times["other"].preparation == [40.0] * 4
    # a short run that captures as well: both preparations are taken off
    assert measure(calls, 9, 1, work.clock, short=4)["other"].step == [3.0]


def test_every_round_has_every_mode_and_orders_differ() -> None:
    work = Work()
    calls = {name: work.call(name, 1.0, 1.0) for name in "abcd"}
    measure(calls, tokens=3, rounds=6, clock=work.clock, short=1)
    rounds = [tuple(work.order[i : i + 8 : 2]) for i in range(0, len(work.order), 8)]
    assert len(rounds) == 6 and all(sorted(r) == list("abcd") for r in rounds) and len(set(rounds)) > 2


def test_no_round_is_begun_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    monkeypatch.setattr("time.monotonic", work.clock)
    times = measure({"a": work.call("a", 1.0, 1.0)}, tokens=4, rounds=9, clock=work.clock, short=1, seconds=12.0)
    assert len(times["a"].step) == 3  # 5 seconds a round: the third begins after 10, the fourth would after 15
    assert len(measure({"a": work.call("a", 9, 9)}, 4, 9, work.clock, 1, seconds=0.0)["a"].step) == 1


def test_summary_is_median_and_quartiles() -> None:
    assert Summary.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Summary(3.0, 2.0, 4.0, 5)
    assert Summary.of([7.0]) == Summary(7.0, 7.0, 7.0, 1)
    assert ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]).median == 2.0
    with pytest.raises(ValueError, match="got none"):
        Summary.of([])


def test_preparation_watch_adds_what_lies_between_a_message_and_its_end() -> None:
    work = Work()
    watch = PreparationWatch(work.clock)
    for at, message in ((1.0, "capturing"), (4.0, ""), (9.0, "capturing"), (11.0, "again"), (12.0, "")):
        work.now = at
        watch(message)
    assert watch.seconds == 6.0


def test_both_runs_capture_or_none() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert short_run(200, cpu) == 1 and short_run(200, gpu) == 32 and short_run(33, gpu) == 32
    assert short_run(20, gpu) == 10
    with pytest.raises(ValueError, match="more than 32"):
        short_run(32, gpu)
    with pytest.raises(ValueError, match="at least 2 tokens"):
        measure({"a": Work().call("a", 1, 1)}, tokens=1, rounds=1, clock=Work().clock, short=1)


def test_processor_time_only_where_one_thread_works() -> None:
    assert clock_for(torch.device("cpu"), 1)[0] == "thread_time"
    assert clock_for(torch.device("cpu"), 2)[0] == clock_for(torch.device("cuda"), 1)[0] == "perf_counter"
