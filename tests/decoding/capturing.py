"""What a CUDA graph does to a step, without CUDA: record each tensor operation once, replay them on the same memory."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from decoding.running import make_decoder
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from caw import ops
from caw.decoding.capture import run_ahead
from caw.decoding.capture.fixed_step import DeviceStep, FixedStep
from caw.decoding.capture.run_ahead import ROUND, WARM_UP, CapturedStep, RunAhead
from caw.decoding.decoder import Decoder
from caw.decoding.eager_step import EagerStep
from caw.decoding.forward.attention import caw_attention
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings
from caw.decoding.trace import StepResult


def started(
    model: Any,
    prompts: list[list[int]],
    watermark: Any,
    policy: Any,
    kernels: ops.Ops | None = None,
    max_new_tokens: int = 30,
    capacity: int = 60,
    **settings: Any,
) -> tuple[Decoder, DeviceStep]:
    """A decoder with its prompts prefilled, and the step that would be captured."""
    decoder = make_decoder(
        model, watermark, policy, len(prompts), capacity, kernels=kernels, fixed=True, max_new_tokens=max_new_tokens,
        **settings,
    )  # fmt: skip
    refill(decoder, prompts)
    steps = decoder.steps()
    assert isinstance(steps, RunAhead)
    assert isinstance(steps.step, DeviceStep)
    return decoder, steps.step


def refill(decoder: Decoder, prompts: list[list[int]]) -> None:
    row = RowSettings.of(decoder.plan.settings)
    requests = requests_for(prompts, [row.max_new_tokens] * len(prompts), [row] * len(prompts))
    for request in requests:
        decoder.waiting.add(request)
    with torch.inference_mode(), decoder.attention:
        decoder._refill()


def tensors(step: DeviceStep) -> dict[str, torch.Tensor]:
    state, texts, cache, ring = step.state, step.step.choosing.texts, step.cache, step.ring
    both = {**vars(state), **vars(texts)}
    found = {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}
    found |= {f"record {i}": tensor for i, tensor in enumerate(state.records)}
    found |= {f"evidence {i}": tensor for i, tensor in enumerate(texts.evidence.tensors if texts.evidence else [])}
    found |= {"store": cache.store, "scratch": cache.scratch, "lengths": cache.lengths}
    found |= {"ring": ring.integers, "cursor": ring.cursor} | ({} if ring.floats is None else {"floats": ring.floats})
    return found


class ReadingBack(EagerStep):
    """A step that reads back, where one is expected that does not."""

    ring, conclude = None, FixedStep.conclude


def reading_back(decoder: Decoder, step: DeviceStep) -> ReadingBack:
    made = ReadingBack(step.step.model, decoder.plan.within(decoder.plan.limits), decoder.choosing.texts)
    made.ring = step.ring
    return made


def newest(step: DeviceStep) -> StepResult:
    ring = step.ring
    place = (int(ring.cursor) - 1) % ring.size
    floats = None if ring.floats is None else ring.floats[place : place + 1].clone()
    return ring.read(ring.integers[place : place + 1].clone(), floats, 1)[0]


class Recording(TorchDispatchMode):
    """Operations inside run and are kept for `replay`, as in a CUDA graph: with the numbers and addresses they had."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        with torch.inference_mode():
            for func, args, kwargs, out in self.calls:
                again = func(*args, **kwargs)
                for old, new in zip(_tensors_of(out), _tensors_of(again), strict=True):
                    if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


class Replayed:
    """Stands for CapturedStep: a few calls as they are, one recorded, the rest replays."""

    def __init__(self, step: Any, recordings: list[int]) -> None:
        self.step, self.recordings, self.calls, self.graph = step, recordings, 0, None

    def __call__(self) -> None:
        self.calls += 1
        if self.graph is not None:
            self.graph.replay()
        elif self.calls <= WARM_UP:
            self.step()
        else:
            with Recording() as graph:
                self.step()
            self.graph = graph
            self.recordings.append(self.calls)


def _tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor))


# fake CUDA tensors need a torch that was built for CUDA, though no device
FAKE_DEVICE = "cuda" if torch.backends.cuda.is_built() else "cpu"


class HostData(TorchDispatchMode):
    """Notes operations that bring data of the host to the device, which a capture does not allow: tensors made of
    Python numbers and, where fake tensors can be on CUDA, copies between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[str] = []
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        # tensors without dimensions are numbers, which travel as arguments of kernels
        self.seen.add(func)
        inputs = [t for t in _tensors_of((args, kwargs)) if t.dim()]
        made = func.overloadpacket in (torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy)
        if inputs and (made or len({t.device.type for t in (*inputs, *_tensors_of(out))}) > 1):
            self.moves.append(str(func))
        return out


def fake_step(decoder: Decoder, step: DeviceStep, mode: FakeTensorMode) -> DeviceStep:
    """The step over fake tensors: reading one raises."""

    def fake(tensor: torch.Tensor) -> FakeTensor:
        return FakeTensor(mode, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"),
                          torch.device(FAKE_DEVICE))  # fmt: skip

    with torch.inference_mode(False):
        model = copy.deepcopy(step.step.model)
        for module in [*model.modules(), *_networks(step)]:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(fake(parameter), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = fake(buffer)
    step.step.model, decoder.attention = model, caw_attention(model)
    choosing, texts = step.step.choosing, step.step.choosing.texts
    loop = [] if choosing.plan.loop is None else [copy.copy(choosing.plan.loop), texts.evidence]
    choosing.plan = dataclasses.replace(choosing.plan, loop=loop[0] if loop else None)
    owners = [step.state, texts, step.cache, step.ring, step.state.current, *step.state.history, *loop]
    owners += [choosing, step, step.step, *([] if texts.penalties is None else [texts.penalties])]
    for owner in (*owners, *_placed(choosing.watermark)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                vars(owner)[name] = fake(value)
    return step


def seen_by_fakes(decoder: Decoder, step: DeviceStep, calls: int = 1) -> set[Any]:
    """Call the step over fake tensors, where a read raises and data of the host is seen; return the operators used."""
    mode = FakeTensorMode()
    fake = fake_step(decoder, step, mode)
    with mode, HostData() as watched, decoder.attention:
        for _ in range(calls):
            fake()
    assert not watched.moves
    return watched.seen


def _placed(watermark: Any) -> list[Any]:
    """What holds the tables of a step's watermark: of formats without kernels they are the step's own."""
    if watermark is None or watermark.native is not None:
        return []
    scheme = getattr(watermark, "scheme", None)
    bits = getattr(scheme, "bits", None)
    return [owner for owner in (watermark, scheme, bits) if owner is not None]


def _networks(step: DeviceStep) -> list[torch.nn.Module]:
    choosing = step.step.choosing
    if choosing.evaluator is None:
        return []
    choosing.evaluator = copy.deepcopy(choosing.evaluator)
    return list(choosing.evaluator.modules())


def same_results(a: DeviceStep, b: DeviceStep) -> None:
    for one, other in zip(*(dataclasses.astuple(newest(step)) for step in (a, b)), strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0))


def replays_go_on_as(made: Sequence[tuple[Decoder, DeviceStep]], prompts: Sequence[list[int]] = ()) -> None:
    """Record the second step's first call and replay it: the first step's results. prompts: take the places later."""
    (decoder, plain), (other, recorded) = made
    before = addresses(recorded)
    with torch.inference_mode(), other.attention, Recording() as graph:
        recorded()
    with torch.inference_mode(), decoder.attention:
        plain()
    same_results(plain, recorded)
    for turn in range(2 if prompts else 1):
        for one in (decoder, other) if turn else ():
            one.rows = [None] * len(prompts)
            refill(one, list(prompts))
        for _ in range(ROUND + 2):  # past a round's end
            graph.replay()
            with torch.inference_mode(), decoder.attention:
                plain()
            same_results(plain, recorded)
    assert addresses(recorded) == before, "a graph reads and writes where it did"


def addresses(step: DeviceStep) -> dict[str, Any]:
    return {name: (t.data_ptr(), t.shape, t.stride()) for name, t in tensors(step).items()}


def by_replays(monkeypatch: pytest.MonkeyPatch, worth: int = 5) -> list[int]:
    """Decoders replay steps from now on, as on a GPU, where there are `worth` tokens to make; an entry a recording."""
    made: list[int] = []
    prepare = RunAhead._prepare

    def prepared(self: RunAhead) -> None:
        prepare(self)
        self.captured = Replayed(self.step, made)  # type: ignore[assignment]

    monkeypatch.setattr(RunAhead, "_prepare", prepared)
    monkeypatch.setattr(run_ahead, "WORTH_CAPTURING", worth)
    return made


def graphs_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    graphs: list[Any] = []
    record = CapturedStep._record
    monkeypatch.setattr(CapturedStep, "_record", lambda self: (graphs.append(record(self)), graphs[-1])[1])
    return graphs
