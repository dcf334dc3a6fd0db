"""Run captured steps in rounds; the host reads one round while the next runs. A replay is right at any numbers."""

import functools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from caw.decoding.capture.fixed_step import DeviceStep, FixedStep, OutputRing
from caw.decoding.capture.graph_pool import GraphMemory, about_of, keep
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.state import DecodeState
from caw.decoding.trace import ALTERNATIVES, StepResult
from caw.io.warn import warn_caller

# steps taken before the capture: they compile Triton kernels, load modules and let libraries allocate what they keep
WARM_UP = 2


class CapturedStep:
    """Call `step`; from the third call on, replay a graph of it.

    The first calls are real steps whose results count, so warming up costs no work twice. Where the step cannot be
    captured (a model that reads back from the device, as mixtures of experts may), a warning says why and every call
    runs it as it is.

    Args:
        step: makes the same calls on the same addresses every time and returns nothing.
        what: names the capture in `report`, which is called before it starts and with "" when it is done.
    """

    def __init__(self, step: Callable[[], None], what: str, report: Callable[[str], None] | None = None) -> None:
        self.step, self.what = step, what
        self.report = report or (lambda message: None)
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.refused:
            self.step()
        elif self.calls < WARM_UP:
            self._warm_up()
        else:
            self._capture()
            self()
        self.calls += 1

    def _warm_up(self) -> None:
        if self.calls == 0:
            self.report(f"capturing a CUDA graph ({self.what})")
        self._side_stream(self.step)

    def _capture(self) -> None:
        try:
            self.graph = self._record()
        except RuntimeError as error:
            self.refused = True
            reason = str(error).splitlines()[0]
            warn_caller(
                f"expected a step that a CUDA graph can hold ({self.what}), got: {reason}; steps run one kernel at a "
                "time, which is slower and gives the same text"
            )
        self.report("")

    def _side_stream(self, run: Callable[[], None]) -> None:
        """Warm up on a side stream: captures use one, and libraries keep memory per stream."""
        stream = _warm_up_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # other threads may use the device meanwhile (a demo, a data loader): only this one is watched; memory is the
        # graph's own: a pool shared with a graph that is gone cannot be opened again (an assertion in torch)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.step()
        return graph


@functools.cache
def _warm_up_stream(device: int) -> torch.cuda.Stream:
    """Return one stream per device for all captures: libraries keep memory for every stream they see, cuBLAS 32 MiB."""
    return torch.cuda.Stream(device)


ROUND = 8  # steps between two looks at what came out; a text ended by a stop string runs on for up to two rounds
WORTH_CAPTURING = 32  # steps of one batch that pay for a capture, which costs about as much as a few of them


class Sequenced(Protocol):
    """What rounds need of a sequence: the number of tokens left in its budget."""

    @property
    def remaining(self) -> int: ...


Rows = Sequence[Any]  # of each row the sequence in it, or None
Results = list[tuple[StepResult, Rows]]


@dataclass
class _Round:
    """Steps under way: for which rows, and where their results will be on the host once `done` has happened."""

    steps: int
    rows: list[Any]
    ring: OutputRing
    integers: torch.Tensor
    floats: torch.Tensor | None
    done: torch.cuda.Event | None


class RunAhead:
    """Run rounds of up to ROUND captured steps, one ahead of what the host has read.

    On a CPU the steps run as plain calls, which is how the tests see all of this without a GPU.
    """

    def __init__(
        self, step: FixedStep, state: DecodeState, cache: SiblingCache, report: Callable[[str], None] | None = None,
        memory: GraphMemory | None = None,
    ) -> None:  # fmt: skip
        self.fixed_step, self.state, self.cache, self.report = step, state, cache, report
        self.cuda = state.pending.is_cuda
        self.under_way: deque[_Round] = deque()
        self._prepare()
        self.about = about_of(step.model, step.plan) if self.captured is not None else None
        if memory is not None:
            self._take_over(memory)

    def _prepare(self) -> None:
        """Make a ring and a step for the current batch."""
        self.batch = self.state.batch
        plan, rungs = self.fixed_step.plan, self.fixed_step.plan.rungs
        device, log_probs = self.state.pending.device, ALTERNATIVES if plan.limits.log_probs else 0
        self.ring = OutputRing.empty(ROUND, self.batch, rungs, plan.settings.return_trace, device, log_probs)
        self.step: Callable[[], None] = DeviceStep(self.fixed_step, self.state, self.cache, self.ring)
        what = f"batch {self.batch}, {min(rungs, plan.slots)} candidates"
        self.captured = CapturedStep(self.step, what, self.report) if self.cuda else None
        self.started = 0  # steps of this batch

    def _take_over(self, memory: GraphMemory) -> None:
        """Reuse the graph of an earlier call, whose memory texts, state and cache already use."""
        assert self.captured is not None
        memory.clear()
        # the network that the graph reads is its own; the step's is what would be captured, if it came to that
        self.fixed_step.choosing.evaluator, self.ring = memory.evaluator, memory.ring
        self.step = DeviceStep(self.fixed_step, self.state, self.cache, self.ring)
        self.captured.step, self.captured.graph = self.step, memory.graph
        self.started = WORTH_CAPTURING

    def keep(self) -> None:
        """Leave graph and memory to later calls, if there is a graph of the whole batch; all texts have ended."""
        plan, cache, graph = self.fixed_step.plan, self.cache, self.captured and self.captured.graph
        if graph is None or cache.store is None or cache.scratch is None:
            return
        whole = self.batch == self.state.batch == plan.batch
        if whole and self.about is not None and self.about == about_of(self.fixed_step.model, plan):
            choosing = self.fixed_step.choosing
            memory = GraphMemory(
                self.about, choosing.evaluator, cache.store, cache.scratch, cache.lengths, choosing.texts, self.state,
                self.ring, graph,
            )  # fmt: skip
            keep(self.fixed_step.model, plan, memory)

    def may_shrink(self, remaining: int) -> bool:
        """Tell whether a smaller batch, which has to be captured again, pays off with `remaining` steps to come."""
        return not self.cuda or remaining >= WORTH_CAPTURING

    def advance(self, rows: Rows) -> Results:
        """Start a round if a sequence may need it; return the results of the oldest once another is under way."""
        needed = max((self._needed(sequence) for sequence in rows if sequence is not None), default=0)
        if needed > 0:
            self._launch(needed, list(rows))
        if needed > ROUND and len(self.under_way) < 2:
            return []  # the next call starts the round that runs while this one is read
        return self._collect()

    def _needed(self, sequence: Sequenced) -> int:
        """Steps that must still be started for it, if each gives a token."""
        started = sum(r.steps for r in self.under_way if any(s is sequence for s in r.rows))
        return sequence.remaining - started

    def _launch(self, needed: int, rows: list[Any]) -> None:
        if self.batch != self.state.batch:
            self._prepare()
        steps = min(ROUND, needed)
        worth = self.started + needed >= WORTH_CAPTURING  # many short prompts are as good as a long one
        step = self.captured if self.captured is not None and worth else self.step
        self.started += steps
        self.ring.cursor.zero_()
        for _ in range(steps):
            step()
        copies = [to_host(t) for t in (self.ring.integers, self.ring.floats)]
        done = None
        if self.cuda:
            done = torch.cuda.Event()
            done.record()
        assert copies[0] is not None
        self.under_way.append(_Round(steps, rows, self.ring, copies[0], copies[1], done))

    def _collect(self) -> Results:
        if not self.under_way:
            return []
        first = self.under_way.popleft()
        if first.done is not None:
            first.done.synchronize()
        return [(result, first.rows) for result in first.ring.read(first.integers, first.floats, first.steps)]

    def close(self) -> None:
        """Drop rounds under way and the graph; its memory is freed once the device has finished them."""
        self.under_way.clear()
        self.step, self.captured = (lambda: None), None


def to_host(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Copy a tensor to the host asynchronously, in order with the steps around it."""
    if tensor is None:
        return None
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)
