"""The whole benchmark: cases of batch size and prompt length, the modes of each in turns, results as plain data."""

import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from caw.benchmark.equality import Check, DifferentTokensError, check_counts, check_tokens
from caw.benchmark.machine import about
from caw.benchmark.modes import DRAFTS, OTHERS, PLAIN, ModeInputs, call_of, check_modes
from caw.benchmark.subjects import SHAPES, Subject, load_subject, make_prompts
from caw.benchmark.timing import Call, Made, Summary, Times, clock_for, measure, ratios, scaled, short_run
from caw.checks import require_int, require_number
from caw.decoding.capture.graph_pool import forget
from caw.defaults import THETA
from caw.io.show import in_a_line, shown
from caw.models import DEMO_MODEL
from caw.models.facts import position_limit
from caw.models.quantization import check_name

KIND = "caw benchmark"
Report = Callable[[str], None]


@dataclass(frozen=True)
class BenchmarkSettings:
    """Settings of a benchmark.

    Args:
        model: as `caw.load_model` takes it. shapes: random weights of these shapes instead (`shapes.SHAPES`).
        modes: names of `modes.ALL`, or "default", "all". "plain" is always among them.
        batches, prompts: each batch with each prompt length (tokens) is a case. tokens: new ones, per sequence.
        rounds: repetitions of a case; max_seconds: none is begun after that. weights: as `caw.load_model` takes
            them, for a model alone.

    Raises ValueError naming the argument.
    """

    model: str = DEMO_MODEL
    shapes: str | None = None
    modes: tuple[str, ...] = ("default",)
    batches: tuple[int, ...] = (1,)
    prompts: tuple[int, ...] = (128,)
    tokens: int = 64
    rounds: int = 10
    dtype: str = "auto"
    device: str | None = None
    threads: int | None = None
    max_seconds: float | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.shapes is not None and self.shapes not in SHAPES:
            raise ValueError(f"shapes must be one of {', '.join(SHAPES)}, got {self.shapes!r}; choose one")
        if self.weights is not None and self.shapes is not None:
            raise ValueError(f"weights are those of a model, got {shown(self.weights)} with shapes; leave one out")
        if self.weights is not None:
            check_name(self.weights, "weights")
        for name in ("batches", "prompts"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"{name} must hold at least one number, got none; give e.g. 1")
            for value in values:
                require_int(name, value, 2 if name == "prompts" else 1, 1 << 20)
        require_int("tokens", self.tokens, 2, 1 << 20)
        require_int("rounds", self.rounds, 1, 1000)
        if self.max_seconds is not None:
            require_number("max_seconds", self.max_seconds, 0, 1e6, closed=True)
        object.__setattr__(self, "modes", check_modes(self.modes))


def run(
    settings: BenchmarkSettings,
    report: Report | None = None,
    saved: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Measure every case.

    report: called with what is being done. saved: called after each round with all that was measured until then, for
    whoever may be stopped without a word.

    Returns plain data: kind, arguments, machine, versions, commit, clock, checks and rows. A row holds mode, batch,
    prompt, tokens; `ms_per_token`, `first_token_ms`, `ratio` and `first_ratio` (over plain, round by round),
    each with median, low, high (quartiles) and n; rounds_ms, what ms_per_token is the median of; tokens_per_second;
    preparation_s (capturing graphs, of each run) and warm_up_s (the first run, which compiles), neither of which
    counts; on a GPU peak_bytes, peak_ratio; error where a mode of another system does not work here.

    complete: False until the last case is measured.

    Warns where a run is too short to time. Raises DifferentTokensError if sides that must give the same tokens do not,
    as float32 should (see `equality`).
    """
    say = report or (lambda message: None)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    say(f"loading {settings.shapes or settings.model}")
    subject = load_subject(settings.model, settings.shapes, settings.dtype, settings.device, None, settings.weights)
    device = subject.model.device
    clock_name, _ = clock_for(device, torch.get_num_threads())
    rows: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    resolved = {**asdict(settings), "dtype": str(subject.model.dtype).removeprefix("torch."), "device": device.type}
    found = {
        "kind": KIND, "arguments": resolved, "evaluator": subject.evaluator_source, **about(device),
        "clock": clock_name, "complete": False, "checks": checks, "rows": rows,
    }  # fmt: skip
    for batch, prompt in product(settings.batches, settings.prompts):
        case = Case(settings, subject, batch, prompt, say)
        checks += [{"batch": batch, "prompt": prompt, **asdict(check)} for check in case.checks]
        rows.extend(case.measure(lambda partial: saved({**found, "rows": [*rows, *partial]})))
    found["complete"] = True
    saved(found)
    return found


class Case:
    """One batch size and prompt length. Building it runs every mode once and checks the output."""

    def __init__(self, settings: BenchmarkSettings, subject: Subject, batch: int, prompt: int, say: Report) -> None:
        self.settings, self.subject, self.batch, self.prompt = settings, subject, batch, prompt
        self.name = f"batch {batch}, prompt {prompt}"
        self.say = lambda message: say(f"{self.name}: {message}")
        room = position_limit(subject.model)
        if room is not None and prompt + settings.tokens > room:
            raise ValueError(
                f"prompt and new tokens must fit the model's {room} positions, got {prompt} + {settings.tokens}; "
                "shorten one"
            )
        self.prompts = make_prompts(subject, batch, prompt)
        self.inputs = ModeInputs(subject, self.prompts, THETA, None)
        self.short = short_run(settings.tokens, subject.model.device)
        self.calls: dict[str, Call] = {}
        self.errors: dict[str, str] = {}
        self.warm_up: dict[str, float] = {}
        self.drafts: dict[str, dict[str, float]] = {}
        self.checks = self._check()

    def _check(self) -> list[Check]:
        made: dict[str, Made] = {}
        for mode in self.settings.modes:
            self.say(f"first run of {mode}")
            call = call_of(mode, self.inputs)
            started = time.perf_counter()
            try:
                made[mode] = call(self.settings.tokens)
            except Exception as error:
                if mode not in OTHERS:
                    raise
                self.errors[mode] = in_a_line(error)
                continue
            self.warm_up[mode] = time.perf_counter() - started
            self.calls[mode] = call
            if mode.endswith(DRAFTS):
                self.drafts[mode] = of_drafts(made[mode])
        check_counts(made, self.batch, self.settings.tokens)
        checks = check_tokens(self.subject.model, self.prompts, made)
        wrong = [check for check in checks if not check.holds]
        if wrong and self.subject.model.dtype == torch.float32:
            check = wrong[0]
            raise DifferentTokensError(
                f"{self.name}: modes {check.expected} and {check.got} must give the same tokens in float32, they "
                f"differ at {check.first} ({check.equal} of {check.of} sequences are equal); leave one out"
            )
        for mode, call in self.calls.items():
            self.say(f"warming up {mode}")
            for tokens in {1, self.short, *([self.settings.tokens] if mode in OTHERS else [])}:
                call(tokens)  # other lengths may compile again, and compilers need to see each twice
        return checks

    def measure(self, after: Callable[[list[dict[str, Any]]], None] = lambda rows: None) -> list[dict[str, Any]]:
        """Return one row a mode, in the order of the modes. after: called after each round with the rows so far."""
        settings = self.settings
        device = self.subject.model.device
        _, clock = clock_for(device, torch.get_num_threads())
        times = measure(
            self.calls, settings.tokens, settings.rounds, clock, self.short, self.say, settings.max_seconds,
            lambda times: after(self._rows(times, {})),
        )  # fmt: skip
        self._warn_of_noise(times)
        return self._rows(times, self._peaks() if device.type == "cuda" else {})

    def _rows(self, times: dict[str, Times], peaks: dict[str, int]) -> list[dict[str, Any]]:
        tokens = self.settings.tokens
        rows = []
        for mode in self.settings.modes:
            about_case = {"mode": mode, "batch": self.batch, "prompt": self.prompt, "tokens": tokens}
            if mode in self.errors:
                rows.append({**about_case, "error": self.errors[mode]})
                continue
            row = {**about_case, **figures(times[mode], times[PLAIN], self.batch, tokens)}
            row["warm_up_s"] = self.warm_up[mode]
            row.update(self.drafts.get(mode, {}))
            if peaks:
                row["peak_bytes"], row["peak_ratio"] = peaks[mode], peaks[mode] / peaks[PLAIN]
            rows.append(row)
        return rows

    def _warn_of_noise(self, times: dict[str, Times]) -> None:
        for name, measured in times.items():
            if min(measured.step) <= 0:
                warnings.warn(
                    f"{self.name}: in a round {name} took no longer for {self.settings.tokens} tokens than for "
                    f"{self.short}, so its time per token is noise; generate more tokens",
                    stacklevel=3,
                )

    def _peaks(self) -> dict[str, int]:
        """What torch allocated at most; graphs and caches of other calls are given back before."""
        device, peaks = self.subject.model.device, {}
        for mode, call in self.calls.items():
            self.say(f"memory of {mode}")
            forget()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            call(self.settings.tokens)
            peaks[mode] = torch.cuda.max_memory_allocated(device)
        return peaks


def figures(times: Times, plain: Times, batch: int, tokens: int) -> dict[str, Any]:
    """The measured part of a row."""
    seconds = [first + (tokens - 1) * step for first, step in zip(times.first, times.step, strict=True)]
    return {
        "ms_per_token": scaled(times.step, 1e3),
        "first_token_ms": scaled(times.first, 1e3),
        "ratio": ratios(times.step, plain.step).as_dict(),
        "first_ratio": ratios(times.first, plain.first).as_dict(),
        "tokens_per_second": batch * tokens / Summary.of(seconds).median,
        "rounds_ms": [1e3 * seconds for seconds in times.step],
        "preparation_s": scaled(times.preparation, 1.0)["median"],
    }


def of_drafts(made: Made) -> dict[str, float]:
    """Return draft statistics over all sequences; empty without drafts."""
    passes, drafted = sum(d.passes for d in made.drafts), sum(d.drafted for d in made.drafts)
    if not passes:
        return {}
    return {
        "tokens_per_pass": sum(map(len, made.tokens)) / passes,
        "rows_per_pass": sum(d.rows for d in made.drafts) / passes,
        "acceptance": sum(d.accepted for d in made.drafts) / max(drafted, 1),
    }
