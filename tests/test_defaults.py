"""One set of defaults, said in caw/defaults.py and nowhere else.

theta was .5 in the library, .8 in the demo and README, .6 in the evaluation's example and .9 in the published runs.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from decoding.architectures import build, prompt, spread_evaluator, tokenizer

import caw
from caw import defaults
from caw.benchmark import BenchmarkSettings, modes
from caw.cli import options as opt
from caw.cli.benchmark_command import benchmark
from caw.cli.demo_command import demo
from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.cli.detection_weights_command import detection_weights
from caw_lab.cli.evaluate_run_command import evaluate_run_command
from caw_lab.evaluation.config_file import config_of, read_config

ROOT = Path(__file__).parents[1]
PUBLISHED = sorted((ROOT / "benchmarks" / "evaluation").glob("*.yaml"))
RESULTS = ROOT / "benchmarks" / "results"
NUMBERS = {
    "gamma": defaults.GAMMA, "delta": defaults.DELTA, "theta": defaults.THETA, "beta": defaults.BETA,
    "top_k": defaults.TOP_K_EXP, "value": defaults.STRENGTH,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    [caw.KGW, caw.Unigram, caw.EXP, caw.CapacityPolicy, caw.FixedStrength, caw.EntropyThreshold,
     caw.LogitDeltaThreshold, BenchmarkSettings],
)  # fmt: skip
def test_the_library_takes_them(kind: Any) -> None:
    own = {field.name: field.default for field in fields(kind) if field.name in NUMBERS}
    assert own and own == {name: None if name == "beta" else NUMBERS[name] for name in own}


@pytest.mark.parametrize("command", [demo, detection_weights, benchmark])
def test_commands_take_them(command: Any) -> None:
    own = {name: p.default for name, p in inspect.signature(command).parameters.items() if name in NUMBERS}
    assert own and own == {name: None if name == "beta" else NUMBERS[name] for name in own}


@pytest.mark.parametrize(
    ("evaluator", "beta"),
    [("smollm2-135m", 1.0), ("smollm2-135m-paper", 1.0), ("qwen2.5-coder-0.5b", 2.0), ("qwen2.5-coder-1.5b", 2.0)],
)
def test_beta_is_that_of_the_evaluators_model(evaluator: str, beta: float) -> None:
    assert caw.CapacityPolicy(evaluator).beta == caw.CapacityPolicy(Evaluator.load(evaluator)).beta == beta
    assert caw.CapacityPolicy(evaluator, beta=3).beta == 3
    assert beta == defaults.BETA_BY_MODEL.get(evaluator.removesuffix("-paper"), defaults.BETA)


def test_an_evaluator_of_another_model_takes_everybodys_beta() -> None:
    network = Evaluator(FeatureSpec(), hidden=2, provenance={"model": "some/Other-7B"})
    assert caw.CapacityPolicy(network).beta == caw.CapacityPolicy(Evaluator(FeatureSpec(), 2)).beta == defaults.BETA


@pytest.mark.parametrize(
    ("option", "number"),
    [(opt.Gamma, "gamma"), (opt.Delta, "delta"), (opt.Theta, "theta"), (opt.TopKExp, "top_k"),
     (opt.Strength, "value")],
)  # fmt: skip
def test_help_says_them(option: Any, number: str) -> None:
    assert option.__metadata__[0].help.endswith(f"[{NUMBERS[number]:g}].")


def test_help_says_beta() -> None:
    assert opt.Beta.__metadata__[0].help.endswith(f"[{defaults.BETA:g}; 1 for smollm2-135m].")


def test_configs_take_them() -> None:
    config = config_of({
        "output": "x", "models": {"m": {"source": "smollm2-135m", "evaluator": "smollm2-135m"}},
        "tasks": {"gsm8k": {"data": "data"}}, "watermarks": {"kgw": {}}, "policies": {"capacity": {}},
    })  # fmt: skip
    plan = config.plan()[-1]
    assert config.policy(plan) == caw.CapacityPolicy("smollm2-135m")
    assert config.policy_parameters(plan) == {
        "theta": defaults.THETA, "beta": defaults.BETA_BY_MODEL["smollm2-135m"], "evaluator": "smollm2-135m",
    }  # fmt: skip


def test_the_example_of_a_config_is_them() -> None:
    example = evaluate_run_command.__doc__ or ""
    assert "smollm2: {source: smollm2-135m" in example
    beta = defaults.BETA_BY_MODEL["smollm2-135m"]
    assert f"theta: {defaults.THETA}, beta: {beta}, delta: {defaults.DELTA}" in example


def test_the_guide_says_them() -> None:
    """Examples of README and the guide name no other numbers either."""
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/start.md")}
    pages["guide"] = guide = (ROOT / "docs" / "choosing-settings.md").read_text(encoding="utf-8")
    own = defaults.BETA_BY_MODEL["smollm2-135m"]
    said = ", ".join(f"{name} {NUMBERS[name]:g}" for name in ("gamma", "delta", "theta", "beta"))
    assert f"Defaults: {said}; beta {own:g} with evaluators of the demo model" in guide
    assert f"gives greedy text), theta {defaults.THETA:g}, beta {defaults.BETA:g} |" in guide
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


def test_they_are_the_setting_of_the_published_runs() -> None:
    """hard+caw had delta 8 and beta 1; half of the one and twice the other is the same strength, bit by bit."""
    config = read_config(ROOT / "benchmarks" / "evaluation" / "qwen05keys.yaml")
    [plan] = [p for p in config.plan() if p.policy == "hard+caw" and p.key == 0]
    mark, policy = config.watermark(plan), config.policy_parameters(plan)
    assert isinstance(mark, caw.KGW) and mark.gamma == defaults.GAMMA and policy["theta"] == defaults.THETA
    assert mark.delta * policy["beta"] == defaults.DELTA * defaults.BETA
    model = build("llama")
    network, texts = spread_evaluator(model), []
    for delta, beta in ((mark.delta, policy["beta"]), (defaults.DELTA, defaults.BETA)):
        out = caw.generate(
            model, tokenizer(), [prompt(9), prompt(5, seed=2)], watermark=caw.KGW(3, delta=delta),
            policy=caw.CapacityPolicy(network, beta=beta), max_new_tokens=24,
        )  # fmt: skip
        texts.append(out.sequences)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("mark", [caw.KGW(1), caw.Unigram(1), caw.EXP(1), caw.SynthID(1)])
def test_every_watermark_serves_them(mark: Any) -> None:
    mark.check_strength(caw.CapacityPolicy("smollm2-135m").max_strength)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_configs_lean_on_no_default(path: Path) -> None:
    """Whatever the defaults become, the configs mean what was run, and the cells that were run are theirs."""
    config = read_config(path)
    for plan in config.plan():
        if plan.policy is None or plan.watermark is None:
            continue
        parameters, strength = config.policies[plan.policy].for_watermark(
            plan.watermark, config.watermarks[plan.watermark].kind
        )
        assert strength
        if config.policies[plan.policy].kind == "capacity":
            assert {"theta", "beta"} <= parameters.keys()


@pytest.mark.parametrize(
    "path", [path for path in PUBLISHED if (RESULTS / f"evaluation_{path.stem}").is_dir()], ids=lambda path: path.stem
)
def test_published_cells_are_those_of_their_configs(path: Path) -> None:
    config = read_config(path)
    cells = json.loads((RESULTS / f"evaluation_{path.stem}" / "cells.json").read_text())["cells"]
    assert all(name in {plan.name for plan in config.plan()} for name in cells)
    seen = 0
    for plan in config.plan():
        if plan.name not in cells or plan.policy is None:
            continue
        kept = cells[plan.name]["manifest"]["policy_parameters"]
        planned = {"kind": config.policies[plan.policy].kind, **config.policy_parameters(plan)}
        assert {**kept, "evaluator": None} == {**planned, "evaluator": None}
        seen += 1
    assert seen or not config.policies


def test_what_benchmarks_mark_with() -> None:
    assert modes.make_watermark("kgw") == caw.KGW(modes.KEY) and modes.make_watermark("exp") == caw.EXP(modes.KEY)
