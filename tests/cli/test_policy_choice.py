"""`caw generate` marks by CAW where it can, and says what marked the texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.running import assert_refused, generate, run

import caw
from caw import defaults
from caw.cli.policy_choice import DISTORTS, UNIVERSAL_SERVES, choose_policy, what_marks

pytestmark = pytest.mark.usefixtures("environment")


@pytest.mark.parametrize(
    ("name", "options", "model", "marked", "expected"), [
        (None, {}, "smollm2-135m", True, ("capacity", "")),
        (None, {}, "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", True, ("capacity", "")),
        (None, {"theta": None}, "./other", True, ("capacity", UNIVERSAL_SERVES)),
        ("fixed", {}, "smollm2-135m", True, ("fixed", "")), (None, {}, "smollm2-135m", False, ("fixed", "")),
        (None, {"strength": 0.5}, "smollm2-135m", True, ("fixed", "")),
        (None, {"nats": 1.0, "strength": 0.5}, "smollm2-135m", True, ("entropy", "")),
        (None, {"gap": 1.0}, "smollm2-135m", True, ("logit-delta", "")),
        (None, {"theta": 0.5}, "./other", True, ("capacity", UNIVERSAL_SERVES)),
        (None, {"target": 0.01}, "./other", True, ("capacity", UNIVERSAL_SERVES)),
        (None, {"target": 0.01, "gap": 1.0}, "./other", True, ("logit-delta", "")),
        (None, {"target": 0.01, "theta": None}, "smollm2-135m", True, ("capacity", "")),
        (None, {"evaluator": "my.safetensors"}, "./other", True, ("capacity", "")),
    ],
)  # fmt: skip
def test_policy_where_none_is_named(name: Any, options: Any, model: str, marked: bool, expected: Any) -> None:
    assert choose_policy(name, options, model, marked=marked) == expected


@pytest.mark.parametrize(("options", "expected"), [
    ({}, "fixed"), ({"target": 0.01}, "fixed"), ({"theta": 0.5}, "capacity"), ({"nats": 1.0}, "entropy"),
])  # fmt: skip
def test_a_race_that_distorts_nothing_runs_at_full_strength(options: dict[str, float], expected: str) -> None:
    assert choose_policy(None, options, "smollm2-135m", marked=True, races=True)[0] == expected


def test_the_line_of_a_race_has_no_top_k_and_says_where_it_distorts() -> None:
    race = caw.EXP(1, strength="scale", free=2)
    line = what_marks(race, caw.FixedStrength())
    assert line == "marking with exp (strength scale, free 2), policy fixed (strength 1)"
    for policy in (caw.FixedStrength(0.5), caw.CapacityPolicy("smollm2-135m")):
        assert what_marks(race, policy).endswith(f": {DISTORTS}")
    assert what_marks(race, caw.EntropyThreshold(1.0)) == (
        "marking with exp (strength scale, free 2), policy entropy (nats 1, strength 1)"
    )
    with pytest.raises(ValueError, match="so it takes no target, got one in FixedStrength"):
        what_marks(race, caw.FixedStrength(target=1e-3))


def test_the_full_race_is_what_its_name_gives(model: str, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    race = ("--watermark", "exp", "--strength-exp", "scale", "--free", "2")
    done = generate(model, "--prompt", "the sky", "-o", str(output), *race, "--sample")
    assert done.exit_code == 0
    assert done.stderr == "caw: marking with exp (strength scale, free 2), policy fixed (strength 1)\n"
    assert json.loads(output.read_text())["policy"] == {"name": "fixed", "strength": 1.0}
    begun = generate(model, "--prompt", "the sky", *race)
    assert begun.exit_code == 2 and "got free=2 with a text that is not sampled; leave free out" in begun.stderr
    greedy = generate(model, "--prompt", "the sky", *race[:4])
    assert "warning: EXP(strength='scale') at full strength draws each token by the key's noise" in greedy.stderr
    for command in (("generate", "--prompt", "x", "--sample"), ("serve",)):
        name, *more = command
        refused = run(name, "--model", "no-such-model", *more, *race, "--target", "1e-3")
        assert_refused(refused, "so it takes no target, got one in FixedStrength")


def test_a_model_with_evaluator_is_marked_by_caw(
    model: str, evaluator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the lazy name first: it keeps what it finds in the module
    for place in ("caw.evaluator.shipped_for", "caw.evaluator.shelf.shipped_for"):
        monkeypatch.setattr(place, lambda name: evaluator)
    output = tmp_path / "out.jsonl"
    done = generate(model, "--prompt", "the sky", "-o", str(output), "--watermark", "kgw")
    numbers = {"theta": defaults.THETA, "beta": defaults.BETA}
    assert done.exit_code == 0 and "policy capacity" in done.stderr and "theta 0.9, beta 2" in done.stderr
    assert json.loads(output.read_text())["policy"] == {"name": "capacity", "evaluator": evaluator, **numbers}
    plain = generate(model, "--prompt", "the sky", "--policy", "fixed")
    assert plain.stderr == "caw: marking with kgw (delta 4), policy fixed (strength 1)\n"
