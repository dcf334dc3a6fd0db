"""Capture the whole step as one CUDA graph: one launch instead of some hundred, each of which costs the host time.

One graph per batch (and per number of candidate slots, which is fixed for a decoder). Lengths, positions, counts,
candidates and texts that ended are device memory that the captured kernels read, so a replay is right at any of them.
"""

import functools
from collections.abc import Callable

import torch

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
