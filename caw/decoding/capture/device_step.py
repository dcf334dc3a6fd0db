"""A whole step without the host: the step of `step.py`, which texts it ended, and its results in an output ring.

Every call makes the same tensor operations on the same addresses and reads nothing back, so a CUDA graph can hold the
call and be replayed. The tests run this very function under fake tensors, in one Dynamo graph and as a recorded replay.
"""

from __future__ import annotations

from caw.decoding.capture.fixed_step import FixedStep
from caw.decoding.capture.fused_step import FusedStep
from caw.decoding.capture.output_ring import OutputRing
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.state import DecodeState
from caw.decoding.step_result import StepResult


class DeviceStep:
    """One step of every active sequence; a call returns nothing and leaves its results in `ring`.

    Mutates state, cache and ring in place. A sequence rests from the step that ended it on: by an end token or by its
    budget; what else ends a text (stop strings) only the host knows, which sets `state.active`.
    """

    def __init__(self, step: FixedStep, state: DecodeState, cache: SiblingCache, ring: OutputRing) -> None:
        self.step, self.state, self.cache, self.ring = step, state, cache, ring
        step.ring = ring

    def __call__(self) -> None:
        self.decide()

    def decide(self) -> StepResult:
        """One token of every active sequence."""
        result = self.step.take(self.state, self.cache)
        if isinstance(self.step, FusedStep):  # it did the rest by itself
            return result
        self.state.finish(result.tokens, result.emitted)
        self.cache.lengths.masked_fill_(~self.state.active, 0)  # a finished row reads no prefix
        self.ring.write(result)
        return result
