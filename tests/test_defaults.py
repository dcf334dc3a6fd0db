"""One set of defaults, said in caw/defaults.py and nowhere else: theta once was .5, .6, .8 and .9."""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import caw
from caw import defaults
from caw.evaluator import Evaluator
from caw_lab.cli.detection_weights_command import detection_weights

ROOT = Path(__file__).parents[1]
NUMBERS = {
    "gamma": defaults.GAMMA, "delta": defaults.DELTA, "theta": defaults.THETA, "beta": defaults.BETA,
    "top_k": defaults.TOP_K_EXP, "value": defaults.STRENGTH,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [caw.KGW, caw.Unigram, caw.EXP, caw.CapacityPolicy, caw.FixedStrength, caw.EntropyThreshold,
     caw.LogitDeltaThreshold],
)  # fmt: skip
def test_the_library_takes_them(kind: Any) -> None:
    own = {field.name: field.default for field in fields(kind) if field.name in NUMBERS}
    assert own and own == {name: None if name == "beta" else NUMBERS[name] for name in own}


def test_commands_take_them() -> None:
    own = {name: p.default for name, p in inspect.signature(detection_weights).parameters.items() if name in NUMBERS}
    assert own and own == {name: None if name == "beta" else NUMBERS[name] for name in own}


@pytest.mark.parametrize(("evaluator", "beta"), [
    ("smollm2-135m", 1.0), ("smollm2-135m-paper", 1.0), ("qwen2.5-coder-0.5b", 2.0), ("qwen2.5-coder-1.5b", 2.0),
])  # fmt: skip
def test_beta_is_that_of_the_evaluators_model(evaluator: str, beta: float) -> None:
    assert caw.CapacityPolicy(evaluator).beta == caw.CapacityPolicy(Evaluator.load(evaluator)).beta == beta
    assert caw.CapacityPolicy(evaluator, beta=3).beta == 3
    assert beta == defaults.BETA_BY_MODEL.get(evaluator.removesuffix("-paper"), defaults.BETA)


def test_no_number_is_said_twice() -> None:
    """A default that stands somewhere else, too, is one that will differ some day."""
    literal = re.compile(
        r"^[^#]*\b(theta|beta|gamma|delta|DELTA|GAMMA)\b(: float)? = \d|\.get\(\"(theta|beta|delta)\", \d"
    )
    hits = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "caw").rglob("*.py"))
        if path.name != "defaults.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if literal.search(line)
    ]
    assert not hits


@pytest.mark.parametrize("mark", [caw.KGW(1), caw.Unigram(1), caw.EXP(1), caw.SynthID(1)])
def test_every_watermark_serves_them(mark: Any) -> None:
    mark.check_strength(caw.CapacityPolicy("smollm2-135m").max_strength)
