"""The YAML of a run: what it becomes, and what it says of names it does not know."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import caw
from caw.settings import Settings
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.config_file import config_of, parse_config, read_config
from caw_lab.evaluation.manifest import planned_manifest
from caw_lab.evaluation.preflight import require_for

BASE: dict[str, Any] = {
    "output": "runs/x",
    "models": {"m": {"source": "smollm2-135m", "evaluator": "smollm2-135m"}, "n": {"source": "smollm2-135m"}},
    "tasks": {"gsm8k": {"data": "data", "count": 3}, "mine": {"kind": "jsonl", "path": "x.jsonl", "grade": "number"}},
    "watermarks": {"kgw": {"gamma": 0.5}, "race": {"kind": "exp"}},
    "policies": {
        "soft": {"kind": "fixed", "delta": 2.0, "race": {"top_k": 2}},
        "entropy": {"nats": 0.9},
        "caw": {"kind": "capacity", "theta": 0.6, "kgw": {"delta": 8.0, "beta": 2.0}, "race": {"top_k": 5}},
    },
    "keys": 2,
    "runs": [
        {"model": "m", "task": "gsm8k", "watermark": "kgw", "policy": "soft", "keys": 1, "count": 2},
        {"model": "m", "task": "gsm8k", "watermark": "*", "keys": [1]},
    ],
}


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(BASE)
    *folders, last = path.split("/")
    place = config
    for name in folders:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return config


def test_names_become_watermarks_and_policies(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(BASE))
    config = read_config(path)
    assert config.text == path.read_text() and config.tasks["gsm8k"].count == 3
    soft = CellPlan("m", "gsm8k", "kgw", "soft", 1)
    assert config.watermark(soft) == caw.KGW(key=config.key(1), gamma=0.5, delta=2.0)
    assert config.policy(soft) == caw.FixedStrength(1.0)
    race = CellPlan("m", "gsm8k", "race", "soft", 0)
    assert config.watermark(race) == caw.EXP(key=config.key(0), top_k=2)
    assert config.policy(CellPlan("m", "gsm8k", "kgw", "entropy", 0)) == caw.EntropyThreshold(0.9)
    policy = config.policy(CellPlan("m", "gsm8k", "kgw", "caw", 0))
    assert isinstance(policy, caw.CapacityPolicy) and (policy.theta, policy.beta) == (0.6, 2.0)
    assert config.watermark(CellPlan("m", "gsm8k", "kgw", "caw", 0)).full == 8.0
    assert config.policy(CellPlan("m", "gsm8k", "race", "caw", 0)) == caw.CapacityPolicy("smollm2-135m", 0.6)


def test_a_model_may_be_quantized_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    value = changed("models/m", {"source": str(tmp_path), "quantization": "file"})
    value["tasks"]["mine"]["path"] = str(tmp_path / "x.jsonl")
    config, plan = config_of(value), CellPlan("m", "mine")
    assert config.models["m"].place("cuda:1") == "cpu" and config.models["n"].place("cuda:1") == "cuda:1"
    assert planned_manifest(config, plan)["quantization"] == "file"
    assert "quantization" not in planned_manifest(config, CellPlan("n", "mine"))
    with pytest.raises(ValueError, match=r"^quantization='file' is for a \.gguf file, found another model"):
        require_for(config, [plan], models=True)


def test_cells_come_in_order_of_the_entries_with_unmarked_texts_first() -> None:
    names = [(plan.name, plan.count) for plan in config_of(BASE).plan()]
    assert names == [
        ("m.gsm8k.none", 2), ("m.gsm8k.kgw.soft.0", 2), ("m.gsm8k.none", None), ("m.gsm8k.kgw.soft.1", None),
        ("m.gsm8k.kgw.entropy.1", None), ("m.gsm8k.kgw.caw.1", None), ("m.gsm8k.race.soft.1", None),
        ("m.gsm8k.race.entropy.1", None), ("m.gsm8k.race.caw.1", None),
    ]  # fmt: skip


def test_all_is_every_combination_once() -> None:
    config = config_of({**BASE, "runs": "all"})
    names = [plan.name for plan in config.plan()]
    assert len(names) == len(set(names)) == 2 * 2 * (1 + 2 * 3 * 2)
    assert names[:3] == [
        "m.gsm8k.none",
        "m.gsm8k.kgw.soft.0",
        "m.gsm8k.kgw.entropy.0",
    ]  # all policies of a key together
    assert [p.name for p in config_of({**BASE, "runs": [{"watermark": "none", "model": "m"}]}).plan()] == [
        "m.gsm8k.none", "m.mine.none"
    ]  # fmt: skip


def test_keys_differ_by_number_and_seed_and_hide_behind_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAW_KEY", raising=False)
    config, other = config_of(BASE), config_of({**BASE, "seed": 1})
    keys = [config.key(0), config.key(1), other.key(0)]
    monkeypatch.setenv("CAW_KEY", "a secret")
    keys += [config.key(0), config.key(1)]
    assert len(set(keys)) == 5 and config.key(0) == other.key(0)
    assert "secret" not in repr(config) and str(config.key(0)) not in repr(config)
    monkeypatch.setenv("CAW_KEY", "secret\udcff")  # Python's own error would name a character of it and its place
    with pytest.raises(ValueError, match=r"key must be text that UTF-8 can encode, got other bytes"):
        config.key(0)
    monkeypatch.setenv("CAW_KEY", " \t")
    with pytest.raises(ValueError, match=r"key must have a visible character, got an empty or blank text"):
        config.key(0)


def test_refusals_name_the_place_and_what_is_known() -> None:
    for path, value, message in (
        ("foo", 1, "config has an unknown field 'foo'; known: output, models, tasks"),
        ("output", ..., "must have output"),
        ("models/m", {"evaluator": "x"}, "models.m must have source"),
        ("models/a b", {"source": "x"}, "name in models must be letters"),
        ("tasks/other", {}, "tasks.other.kind must be one of gsm8k, mmlu, jsonl, prompts, got 'other'"),
        ("tasks/free", {"kind": "prompts"}, "task free of kind prompts needs a `path`"),
        ("tasks/gsm8k/shot", 5, "tasks.gsm8k has an unknown field 'shot'; known: kind, data, split"),
        ("tasks/mine/grade", "best", "grade must be one of number, letter, exact, contains, got 'best'"),
        ("tasks/gsm8k/data", 7, "tasks.gsm8k.data must be text"),
        ("tasks/gsm8k/generation", {"batch_size": 5}, "tasks.gsm8k.generation has an unknown field 'batch_size'; kno"),
        ("tasks/gsm8k/generation", {"max_new_tokens": 0}, "tasks.gsm8k.generation.max_new_tokens must be an integer"),
        ("watermarks/kgw/kind", "kwg", "watermarks.kgw.kind must be one of recommended, kgw, .*, synthid, got 'kwg'"),
        ("watermarks/kgw/key", 5, "must not contain a key"),
        ("watermarks/none", {"kind": "kgw"}, "the name none is reserved for unmarked texts"),
        ("policies/soft/race", {"delta": 2}, "policies.soft.race has an unknown field 'delta'; known: strength, targ"),
        ("policies/soft", {"kind": "fixed", "delta": 2.0}, "soft with watermark race: sets the strength of others?"),
        ("policies/caw/theta", 2, "policy caw with watermark kgw: theta must be"),
        ("models/m/evaluator", ..., "policy caw with watermark kgw: requires an evaluator for model m"),
        ("policies/caw/race", {"top_k": 60, "beta": 2}, "strength . top_k must be at most 100"),
        ("runs/0/model", "q", "runs.0..model must be one of m, n or ., got 'q'"),
        ("runs/0/keys", 0, "runs.0..keys must be an integer in .1,"),
        ("runs", "some", "runs must be all or a list"),
        ("keys", 0, "keys must be an integer in .1,"),
        ("generation", {"max_new_tokens": 0}, "generation.max_new_tokens must be"),
        ("generation", {"best_of": 2}, "generation.best_of requires detectable_at"),
        ("policies/soft/found", {"chat": 1}, "policies.soft.found has an unknown field 'chat'; known: detectable_at, "),
        ("policies/soft/found", {"weights": 1}, "policies.soft.found.weights must be true or false, got 1"),
        (
            "policies/soft/found",
            {"detectable_at": 0.1, "weights": True},
            "policy soft with .*: found.weights needs the weights of model m, got none; name its table",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            config_of(changed(path, value)).check()


def test_text_that_is_no_config() -> None:
    with pytest.raises(ValueError, match="is not valid YAML:"):
        parse_config("a: [1,")
    with pytest.raises(ValueError, match="must be a mapping of names, found list"):
        parse_config("- 1")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)  # a library that some other test loads may have raised it
    try:
        with pytest.raises(ValueError, match="config is nested too deeply"):
            parse_config("[" * 1_000 + "]" * 1_000)
    finally:
        sys.setrecursionlimit(limit)


def test_settings_of_a_task_and_of_a_policy_hold_over_those_of_all() -> None:
    tasks = {
        **BASE["tasks"],
        "mine": {**BASE["tasks"]["mine"], "generation": {"max_new_tokens": 30, "detectable_at": 0.01}},
    }
    tested = {"detectable_at": 0.001, "edits": 0.1}
    policies = {**BASE["policies"], "found": {"kind": "fixed", "delta": 2.0, "race": {"top_k": 2}, "found": tested}}
    all_have = {"max_new_tokens": 90, "temperature": 0.7, "do_sample": True}
    config = config_of({**BASE, "tasks": tasks, "policies": policies, "generation": all_have})
    common = {**all_have, "batch_size": 8}
    assert config.settings(CellPlan("m", "gsm8k")) == Settings(**common)
    assert config.settings(CellPlan("m", "gsm8k", "kgw", "soft", 0)) == Settings(**common)
    assert config.settings(CellPlan("m", "gsm8k", "kgw", "found", 0)) == Settings(**common, **tested)
    short = {**common, "max_new_tokens": 30}
    assert config.settings(CellPlan("m", "mine")) == Settings(**short), "unmarked texts are not tested"
    assert config.settings(CellPlan("m", "mine", "kgw", "soft", 0)) == Settings(**short, detectable_at=0.01)
    assert config.settings(CellPlan("m", "mine", "kgw", "found", 0)) == Settings(**short, **tested)
    made = config.policy(CellPlan("m", "gsm8k", "kgw", "found", 0))
    assert made == caw.FixedStrength(1.0) and config.watermark(CellPlan("m", "gsm8k", "kgw", "found", 0)).full == 2.0
