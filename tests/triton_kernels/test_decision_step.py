"""From records to results in one launch, against its reference, step after step."""

import copy

import pytest
import torch

from caw.evaluator import Evaluator, FeatureSpec
from caw.evaluator.token_classes import CLASSES
from caw.op_indices import BROKEN, NOT_EMITTED, RULES, TRANSFORMS
from caw.testing import assert_close
from caw.triton_kernels.decision_step import decision_step
from caw.triton_kernels.decision_step_ref import decision_step_ref

NAMES = ("tokens", "choice", "chosen", "shown", "strength", "capacity", "emitted", "moved", "broken")
EVALUATED, GIVEN, PLAIN = "evaluated", "given", "plain"


def network(positions, k, hidden, transform, classes):
    spec = FeatureSpec(positions - 1, 0, k, transform, classes=classes)
    table = torch.arange(97, dtype=torch.uint8) % len(CLASSES) if classes else None
    evaluator = Evaluator(spec, hidden, token_class=table)
    evaluator.mean.normal_()
    evaluator.scale.uniform_(0.5, 2)
    with torch.no_grad():
        evaluator.layer3.weight.mul_(5)  # capacities spread over (0, 1), so that strengths differ
    return evaluator.requires_grad_(False)


def record(batch, k, strided):
    """Ids beyond the table of classes and padding among them; strided: every second row of more."""
    rows = 2 * batch if strided else batch
    probs = torch.softmax(torch.randn(rows, k) * 3, 1).sort(descending=True).values
    ids = torch.randint(0, 120, (rows, k))
    probs[:, k // 2 + 1 :], ids[:, k // 2 + 1 :] = 0.0, -1
    return [x.view(batch, -1, k)[:, 0] for x in (probs, ids)]


def inputs(kind, *, batch=5, rungs=7, positions=3, k=100, hidden=33, transform="log", classes=11, rule="top_k", slots=2,
           trace=True, ends=2, strided=True):  # fmt: skip
    """Arguments by name: some rows wait, some rest, some have logits that are not finite, some end."""
    window, new = 2, 9
    windows = [record(batch, k, strided and i == positions - 1) for i in range(positions)]
    evaluator = network(positions, k, hidden, transform, classes)
    needs = torch.stack([torch.randperm(19)[:rungs].sort().values + 1.0 for _ in range(batch)])
    rows = torch.arange(batch)
    state = {
        "pending": [torch.where(rows % 3 == 1, 3, -1), torch.rand(batch), torch.rand(batch)],
        "factor": torch.rand(batch) + 0.5,
        "given": torch.rand(batch) if kind == GIVEN else None,
        "logsumexp": torch.where(rows == batch - 1, torch.nan, torch.randn(batch)),
        "padded": torch.full((batch, window + new), -1), "tally": rows % new, "budgets": rows % new + 1 + rows % 2 * 4,
        "ends": torch.randint(0, 9, (batch, ends)), "active": rows % 4 != 2,
        "ring": torch.full((3, batch, 3 + rungs if trace else 1), 99), "cursor": torch.tensor([2]),
        "floats": torch.full((3, batch, 2), 9.0) if trace else None,
    }  # fmt: skip
    evaluated = kind == EVALUATED
    ladder = {"candidates": torch.stack([torch.randperm(50)[:rungs] for _ in range(batch)]),
              "needs": needs if rule != "scale" else torch.rand(batch, rungs).sort().values,
              "counts": None if kind == PLAIN else torch.randint(1, rungs + 1, (batch,))}  # fmt: skip
    return {
        "probs": [p for p, _ in windows] if evaluated else [], "ids": [i for _, i in windows] if evaluated else [],
        "weights": evaluator.weights() if evaluated else [],
        "table": evaluator.token_class if evaluated and classes else None, **ladder, **state,
        "slots": slots, "window": window, "k": k, "transform": TRANSFORMS.index(transform),
        "classes": classes if evaluated else 0, "theta": 0.9 if evaluated else 0.4, "beta": 1.5,
        "rule": RULES.index(rule), "full": 10.0,
    }  # fmt: skip


def moved_to(device, arguments):
    def move(x):
        return [move(y) for y in x] if isinstance(x, list) else x.to(device) if isinstance(x, torch.Tensor) else x

    return {name: move(x) for name, x in arguments.items()}


def compare(device, arguments, steps=1):
    """Results, everything mutated, and that the rest is left alone; over several steps of the same rows."""
    mine = moved_to(device, copy.deepcopy(arguments))
    for _ in range(steps):
        actual, expected = decision_step(**mine), decision_step_ref(**arguments)
        for name, a, e in zip(NAMES, actual, expected, strict=True):
            same(a, e, name)
        if not arguments["probs"]:  # a comparison and one product
            place = NAMES.index("strength")
            assert torch.equal(actual[place].cpu(), expected[place])
        for name, e in arguments.items():
            if isinstance(e, torch.Tensor) or name == "pending":
                for x, y in zip(*((t if isinstance(t, list) else [t]) for t in (mine[name], e)), strict=True):
                    same(x, y, name)
    return dict(zip(NAMES, expected, strict=True))


def same(actual, expected, name):
    if expected.is_floating_point():
        assert_close(actual, expected, "evaluator")
    else:
        assert torch.equal(actual.cpu(), expected), name


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("positions", "k", "hidden", "classes"), [(3, 100, 128, 11), (1, 1, 1, 0), (4, 37, 33, 11), (2, 100, 16, 0)]
)
def test_equals_the_reference(device, positions, k, hidden, classes, transform):
    found = compare(
        device, inputs(EVALUATED, positions=positions, k=k, hidden=hidden, classes=classes, transform=transform)
    )
    assert bool(found["broken"].any()) and not bool(found["emitted"].all())


def test_each_row_may_have_carried_another_number(device):
    """What was chosen and not carried waits."""
    arguments = inputs(EVALUATED, batch=41, slots=7, classes=0)
    arguments |= {"factor": torch.full((41,), 3.0), "counts": torch.full((41,), 7), "active": torch.ones(41) > 0}
    arguments["needs"] = torch.arange(1.0, 8.0).repeat(41, 1)
    arguments["carried"] = torch.arange(41) % 7 + 1
    waited = arguments["pending"][0] >= 0
    found = compare(device, arguments)
    beyond = found["choice"] >= arguments["carried"]
    assert torch.equal(found["emitted"], ~beyond | waited)
    assert bool((beyond & ~waited).any()) and bool((~beyond & (found["choice"] > 0)).any())


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("kind", "rungs"), [(EVALUATED, 2), (GIVEN, 7), (GIVEN, 1), (PLAIN, 1)])
def test_strengths_from_anywhere(device, kind, rungs, rule):
    arguments = inputs(kind, batch=11, rungs=rungs, rule=rule, positions=2, hidden=16, trace=rungs > 1, slots=rungs)
    given, theta = arguments["given"], torch.tensor(0.4)
    if given is not None:  # a tie and what lies beside it, and what is no number
        infinite, not_a_number = torch.tensor(torch.inf), torch.tensor(torch.nan)
        edges = [theta, theta.nextafter(infinite), theta.nextafter(-infinite), not_a_number, infinite, -infinite]
        given[:6] = torch.stack(edges)
    found = compare(device, arguments)
    assert bool(found["emitted"].any()) and bool((found["shown"] == 1).all()) == (rungs == 1)
    if kind != EVALUATED:
        passed = torch.ones(11) > 0 if given is None else given > theta
        assert given is None or passed[:6].tolist() == [False, True, False, False, True, False]
        assert torch.equal(found["strength"], torch.where(passed, 1.5 * arguments["factor"], 0.0))
        assert bool(passed.all()) == (given is None)


def test_a_choice_beyond_what_was_forwarded_waits_and_is_then_emitted(device):
    """Four steps of the same rows: the ring goes round, budgets and ends stop texts, what waits comes next."""
    arguments = inputs(GIVEN, batch=13, slots=1, ends=0)
    arguments["pending"][0][:], arguments["given"][:] = -1, 1.5  # the reference writes where the kernel does
    first = compare(device, arguments)
    waits = arguments["pending"][0] >= 0
    assert bool(waits.any()) and not bool((waits & first["emitted"]).any())
    assert torch.equal(arguments["pending"][0][waits], first["tokens"][waits])
    assert torch.equal(arguments["ring"][2, :, 0] == NOT_EMITTED, ~first["emitted"] & ~first["broken"])
    assert torch.equal(arguments["ring"][2, :, 0] == BROKEN, first["broken"])
    second = compare(device, arguments)
    assert torch.equal(second["tokens"][waits], first["tokens"][waits]) and bool(second["emitted"][waits].all())
    compare(device, arguments, steps=2)
    assert arguments["cursor"].item() == 0 and not bool(arguments["active"][arguments["budgets"] == 1].any())


def test_nan_goes_through_the_class_masses(device):
    arguments = inputs(EVALUATED)
    arguments["probs"][0][0, 3] = torch.nan
    found = compare(device, arguments)
    assert found["capacity"][0].isnan() and not found["capacity"][3].isnan()
