"""One set of defaults, said in caw/defaults.py and nowhere else.

theta was .5 in the library, .8 in the demo and README, .6 in the evaluation's example and .9 in the published runs.
"""

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import caw
from caw import defaults
from caw.cli import options as opt
from caw.evaluator import Evaluator
from caw_lab.cli.detection_weights_command import detection_weights
from caw_lab.cli.evaluate_run_command import evaluate_run_command

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


@pytest.mark.parametrize(
    ("evaluator", "beta"),
    [("smollm2-135m", 1.0), ("smollm2-135m-paper", 1.0), ("qwen2.5-coder-0.5b", 2.0), ("qwen2.5-coder-1.5b", 2.0)],
)
def test_beta_is_that_of_the_evaluators_model(evaluator: str, beta: float) -> None:
    assert caw.CapacityPolicy(evaluator).beta == caw.CapacityPolicy(Evaluator.load(evaluator)).beta == beta
    assert caw.CapacityPolicy(evaluator, beta=3).beta == 3
    assert beta == defaults.BETA_BY_MODEL.get(evaluator.removesuffix("-paper"), defaults.BETA)


@pytest.mark.parametrize(
    ("option", "number"),
    [("gamma", "gamma"), ("delta", "delta"), ("theta", "theta"), ("top_k_exp", "top_k"), ("strength", "value")],
)
def test_help_says_them(option: str, number: str) -> None:
    assert help_of(option).endswith(f"[{NUMBERS[number]:g}].")


def test_help_says_beta() -> None:
    assert help_of("beta").endswith(f"[{defaults.BETA:g}; 1 for smollm2-135m].")


def help_of(option: str) -> str:
    annotation, _ = {**opt.OF_TEST, **opt.OF_STRENGTH, **opt.OF_POLICY}[option]
    return str(annotation.__metadata__[0].help)


def test_the_example_of_a_config_is_them() -> None:
    example = evaluate_run_command.__doc__ or ""
    assert "smollm2: {source: smollm2-135m" in example
    beta = defaults.BETA_BY_MODEL["smollm2-135m"]
    assert f"theta: {defaults.THETA}, beta: {beta}, delta: {defaults.DELTA}" in example


def test_the_guide_says_them() -> None:
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/start.md")}
    pages["guide"] = guide = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    own = defaults.BETA_BY_MODEL["smollm2-135m"]
    said = ", ".join(f"{name} {NUMBERS[name]:g}" for name in ("gamma", "delta", "theta", "beta"))
    assert f"Defaults: {said} ({own:g} with\nevaluators of the demo model" in guide
    examples = [e for text in pages.values() for e in re.findall(r"```(?:python|bash)\n(.*?)```", text, re.DOTALL)]
    named = [found for e in examples for found in re.findall(r"(?:--)?(theta|beta|delta|gamma)[ =]([\d.]+)", e)]
    assert len(examples) > 5 and all(float(number) == NUMBERS[name] for name, number in named)


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
