"""The time of a step alone on a GPU: replays of its graph between events, at any prefix length.

No text is read for it: the cache has room for the prefix, lengths say that it is there, and what it holds does not
change the time. The sides take turns in every round. Beside each time stand the bytes that the model of the step counts
and their share of what a kernel moves that only reads.
"""

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from compiled_torch import COMPILED, CompiledTorch
from replays import copy_bandwidth, on_device, read_bandwidth, replay_timer
from step_model import model_of_step

from caw.benchmark.machine import about
from caw.benchmark.modes import OWN, PLAIN, SAMPLED, ModeInputs, drawing_of, parts_of
from caw.benchmark.subjects import Subject, load_subject
from caw.benchmark.timing import clock_for, ratios, scaled
from caw.checks import require_int
from caw.decoding.capture.fixed_step import DeviceStep
from caw.decoding.capture.graph_pool import forget
from caw.decoding.capture.run_ahead import ROUND, WARM_UP, RunAhead
from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.defaults import THETA
from caw.io.show import in_a_line
from caw.models.facts import ModelFacts
from caw.policies import FixedStrength
from caw.record import Record
from caw.settings import Settings

KIND = "captured steps"
COUNTS = Path(__file__).parent / "results" / "rows.json"  # 64 tokens of 42 texts
TOKENS = 256  # room of a text; half of them are there
MODES = (PLAIN, "kgw+caw", "exp+caw", COMPILED)
Call = Callable[[], None]


@dataclass(frozen=True)
class StepSettings:
    """What to time. shapes: of `shapes.SHAPES`, with random weights. modes: of this library's, or COMPILED. rounds: of
    ROUND steps each; seconds: no case but the first is begun once they have passed. weights: "fp8", "int8" or "int4".
    texts: whether ladders have as many candidates as those of real texts (COUNTS), not all that random weights give.

    Raises ValueError naming the argument.
    """

    shapes: str
    dtype: str
    device: str | None
    modes: tuple[str, ...] = MODES
    batches: tuple[int, ...] = (1,)
    prefixes: tuple[int, ...] = (1024,)
    rounds: int = 32
    seconds: float | None = None
    weights: str | None = None
    texts: bool = False

    def __post_init__(self) -> None:
        known_modes = (*OWN, *SAMPLED, COMPILED)
        if wrong := set(self.modes) - {*known_modes}:
            known = ", ".join(known_modes)
            raise ValueError(f"modes must be among {known} for times of steps, got {min(wrong)!r}; leave it out")
        for name in ("batches", "prefixes"):
            for value in getattr(self, name):
                require_int(name, value, 1, 1 << 20)
        require_int("rounds", self.rounds, 1, 1000)


class Step(NamedTuple):
    """call: one step. reset: as if the prefix had just been read. graph: of `call`, None where there is none.
    bytes: that the device needs for it, beside the weights. uncaptured: seconds of the last step before the capture."""

    call: Call
    reset: Call
    graph: Any
    bytes: int
    uncaptured: float = 0.0


def own_step(mode: str, subject: Subject, batch: int, prefix: int, texts: bool = False) -> Step:
    """A step of this library, captured where there is a GPU. texts: of `StepSettings`."""
    facts, device = ModelFacts.of(subject.model), subject.model.device
    watermark, policy, branching = parts_of(mode, ModeInputs(subject, [], THETA, None))
    options: dict[str, Any] = {"branching": branching, "max_new_tokens": TOKENS, "return_trace": False}
    settings = Settings(**options, **drawing_of(mode))
    plan = make_plan(facts, watermark, policy or FixedStrength(1.0), settings,
                     RowLimits.of([RowSettings.of(settings)], facts.ends, prefix + TOKENS), batch,
                     captured=True)  # fmt: skip
    decoder = Decoder(subject.model, plan)
    config = facts.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = torch.empty(decoder.cache.batch, heads, 1, dim, dtype=facts.dtype, device=device)
    decoder.cache.allocate(keys, keys)
    state, cache = decoder.state, decoder.cache
    logits = torch.randn(batch, facts.vocab_size, generator=torch.Generator().manual_seed(0)).to(device)
    record = Record.from_logits(logits, kernels=plan.kernels)
    rows = torch.arange(batch, device=device)
    state.start(rows, logits, [record] * (1 + plan.history))
    row = RowSettings.of(settings)
    decoder.choosing.start(range(batch), [Request([0], TOKENS, row)] * batch, [()] * batch)
    steps = decoder.steps()
    assert isinstance(steps, RunAhead) and isinstance(steps.step, DeviceStep)
    if texts:
        counts = json.loads(COUNTS.read_text(encoding="utf-8"))["counts"][:batch]
        follow(steps.step.step, torch.tensor([list(map(int, text)) for text in counts], device=device))

    def reset() -> None:
        cache.lengths.fill_(prefix)
        decoder.choosing.texts.counts.fill_(TOKENS // 2)
        decoder.choosing.texts.active.fill_(True)
        state.pending.fill_(-1)
        steps.ring.cursor.zero_()

    with decoder.lock, decoder.mode, decoder.attention, decoder.linears:
        captured = steps.captured
        alone = 0.0
        for number in range(WARM_UP + 1 if captured is not None else 0):
            reset()
            begun = settled(device)
            captured()  # type: ignore[misc]
            alone = settled(device) - begun if number == WARM_UP - 1 else alone

    def call() -> None:
        with decoder.lock, decoder.mode, decoder.attention, decoder.linears:
            steps.step()

    if captured is not None and captured.graph is None:
        raise RuntimeError(f"expected a step of {mode} that a CUDA graph can hold, got one that none can")
    return Step(call, reset, None if captured is None else captured.graph, 0, alone)


def follow(step: Any, counts: torch.Tensor) -> None:
    """Let the ladders of a step have no more candidates than the next column of counts, int64 [B, N]."""
    turn, ladder = torch.zeros(1, dtype=torch.int64, device=counts.device), step.ladder

    def shortened(state: Any) -> Any:
        found = ladder(state)
        if found.counts is not None:
            found.counts.copy_(found.counts.minimum(counts.index_select(1, turn)[:, 0]))
            turn.add_(1).remainder_(counts.shape[1])
        return found

    step.ladder = shortened


def settled(device: torch.device) -> float:
    """The time, once the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def compiled_step(subject: Subject, batch: int, prefix: int) -> Step:
    """A step of plain PyTorch, compiled and captured."""
    with torch.inference_mode(False), torch.no_grad():
        run = CompiledTorch(subject.model, batch, prefix + TOKENS)
        run.prepare()
    return Step(run.step, lambda: run.reset(prefix), run.graph, 0)


def prepared(mode: str, subject: Subject, batch: int, prefix: int, texts: bool) -> Step:
    """The step of a mode, and how many bytes it took."""
    device = subject.model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    made = own_step(mode, subject, batch, prefix, texts) if mode != COMPILED else compiled_step(subject, batch, prefix)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        made = made._replace(bytes=torch.cuda.max_memory_allocated(device) - before)
    return made


def timed(step: Step, clock: Callable[[], float]) -> Callable[[], float]:
    """A function that gives the seconds of a step: on a GPU of ROUND, one after another."""
    replayed = None if step.graph is None else replay_timer(step.graph, ROUND, ROUND)

    def once() -> float:
        step.reset()
        if replayed is not None:
            return replayed()
        begun = clock()
        step.call()
        return clock() - begun

    return once


def run(
    settings: StepSettings,
    say: Callable[[str], None] = lambda message: None,
    saved: Callable[[dict[str, Any]], None] = lambda found: None,
) -> dict[str, Any]:
    """Every case as plain data: kind, arguments, machine, bandwidth (bytes a second that a kernel reads),
    copy_bandwidth, weights (bytes), clock, complete, rows.

    A row has mode, batch, prefix and either step_us and ratio (over plain, round by round; median, low, high, n),
    uncaptured_us (of one step before the capture, once; None where there was none), bytes and share_of_bandwidth (None
    where nobody counts), own_bytes (of memory) and memory_ratio, or error. saved: called after each case.
    """
    subject = load_subject("", settings.shapes, settings.dtype, settings.device, None, settings.weights)
    place = subject.model.device
    few = place.type != "cuda"
    own = (*subject.model.parameters(), *subject.model.buffers())
    weights = sum(p.numel() * p.itemsize for p in own)
    resolved = {**asdict(settings), "dtype": str(subject.model.dtype).removeprefix("torch."), "device": place.type}
    with on_device(place):
        bandwidth, copied = read_bandwidth(place.type, few), copy_bandwidth(place.type, few)
    name, clock = clock_for(place, torch.get_num_threads())
    found: dict[str, Any] = {
        "kind": KIND, "arguments": resolved, **about(place), "bandwidth": bandwidth, "copy_bandwidth": copied,
        "weights": weights, "clock": name if few else "events", "complete": False, "rows": [],
    }  # fmt: skip
    cases = [(batch, prefix) for batch in settings.batches for prefix in settings.prefixes]
    begun = time.monotonic()
    for number, (batch, prefix) in enumerate(cases):
        if number and settings.seconds is not None and time.monotonic() - begun > settings.seconds:
            break
        say(f"batch {batch}, prefix {prefix}")
        with on_device(place):
            rows = case(subject, settings, batch, prefix, clock)
        for row in rows:
            if "error" not in row:
                row |= counted(row, settings, resolved["dtype"], bandwidth, weights, rows)
        found["rows"] += rows
        found["complete"] = number == len(cases) - 1
        saved(found)
    return found


def make_room(device: torch.device) -> None:
    """Give back what the case before took."""
    forget()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@torch.inference_mode()
def case(
    subject: Subject, settings: StepSettings, batch: int, prefix: int, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Rows of one batch and prefix; a mode that fails (as for want of memory) has an error and the others go on."""
    make_room(subject.model.device)
    rows: list[dict[str, Any]] = [{"mode": mode, "batch": batch, "prefix": prefix} for mode in settings.modes]
    steps: dict[str, Step] = {}
    for row in rows:
        try:
            steps[row["mode"]] = prepared(row["mode"], subject, batch, prefix, settings.texts)
        except Exception as error:  # of any kind: it is another mode's time that would be lost
            row["error"] = in_a_line(error)
    timers = {mode: timed(step, clock) for mode, step in steps.items()}
    times: dict[str, list[float]] = {mode: [] for mode in timers}
    for _ in range(settings.rounds):
        for mode, once in timers.items():
            times[mode].append(once())
    for row in rows:
        if (mode := row["mode"]) in times:
            row |= {"step_us": scaled(times[mode], 1e6), "own_bytes": steps[mode].bytes}
            row["uncaptured_us"] = round(1e6 * steps[mode].uncaptured, 1) or None
            row["ratio"] = ratios(times[mode], times[PLAIN]).as_dict() if PLAIN in times else None
    return rows


def counted(
    row: dict[str, Any], settings: StepSettings, dtype: str, bandwidth: float, weights: int,
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:  # fmt: skip
    """Return the model-of-step bytes of a row, and its memory relative to plain's."""
    plain = next((r for r in rows if r["mode"] == PLAIN and "own_bytes" in r), None)
    memory = None if plain is None else (weights + row["own_bytes"]) / (weights + plain["own_bytes"])
    if row["mode"] not in OWN:
        return {"bytes": None, "share_of_bandwidth": None, "memory_ratio": memory}
    case = row["mode"], settings.shapes, dtype, row["batch"], row["prefix"]
    moved = sum(launch.bytes for launch in model_of_step(*case, weights=settings.weights))
    share = moved / bandwidth / (1e-6 * row["step_us"]["median"])
    return {"bytes": moved, "share_of_bandwidth": round(share, 4), "memory_ratio": memory}
