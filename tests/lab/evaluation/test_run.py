"""A whole run on a tiny random model: shared between processes, scored, and nothing twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.evaluation.tiny_run import CELLS, runner, texts

from caw.detectable.selection import Agreement
from caw.evaluator import Evaluator, FeatureSpec
from caw_lab.evaluation import manifest
from caw_lab.evaluation.attacks.attacker import Attacker
from caw_lab.evaluation.run import Shard
from caw_lab.evaluation.store import Store


def test_every_cell_has_every_question_and_says_how_it_was_made(whole: Path) -> None:
    store = Store(whole)
    assert sorted(cell.name for cell in store.cells()) == sorted(CELLS)
    for cell in store.cells():
        generations = cell.read()
        assert [g.id for g in generations] == [f"mine/{i}" for i in range(1, 10)]
        record = store.run(generations[0].run)
        assert record["command"] == "test" and record["versions"]["torch"] and record["batch_size"] == 3
        manifest = cell.manifest
        assert len(manifest["model_sha256"]) == len(manifest["data_sha256"]) == 64
        assert (manifest["key_id"] is None) == (manifest["watermark"] is None)
        assert ("evaluator_sha256" in manifest) == (manifest["policy"] == "caw")
    bare, hard = store.cell(CELLS[0]).read(), store.cell("tiny.mine.kgw.hard.0").read()
    assert all(g.marked == g.changed == 0 for g in bare) and all(g.marked == 1 for g in hard)
    assert sum(g.changed for g in hard) > 1


@pytest.mark.slow
def test_prompts_are_read_once_for_all_cells(
    made: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from caw_lab.evaluation import run as module

    caches = []
    original = module.stream_results
    monkeypatch.setattr(
        module,
        "stream_results",
        lambda *given, **options: (caches.append(options["prompt_cache"]), original(*given, **options))[1],
    )
    work = runner(made, tmp_path / "together")
    assert work.run() == 9 * len(CELLS)
    [kept] = set(caches)
    assert (len(kept), kept.found, kept.missed) == (9, 9 * (len(CELLS) - 1), 9)
    assert work.loaded is not None
    assert work.loaded.prompts is None, "after the last cell nobody needs them"
    assert texts(tmp_path / "together") == texts(whole)


def test_what_another_process_wrote_meanwhile_is_not_made_again(
    made: dict[str, Any], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had seen what was missing, loaded the model, and waited: then every question was there twice, for good."""
    name = CELLS[0]
    work = runner(made, tmp_path, only=(name,))
    load = work.load

    def slowly(model: str) -> Any:
        if work.loaded is None:
            assert runner(made, tmp_path, only=(name,)).run() == 9
        return load(model)

    monkeypatch.setattr(work, "load", slowly)
    assert work.run() == 0
    assert texts(tmp_path) == {name: texts(whole)[name]}


def test_scores_and_results(whole: Path) -> None:
    store = Store(whole)
    scores = store.read_scores()
    # 6 marked cells, unmarked texts and people's under 2 keys, 9 questions each
    assert len(scores) == (6 + 2 + 2) * 9 and len({s.identity for s in scores}) == len(scores)
    results = store.results
    rows = {(r["policy"], r["key_id"] == "all"): r for r in results["rows"]}
    assert len(results["rows"]) == 1 + 3 * 3 and ("none", True) not in rows
    hard, pooled = rows["hard", False], rows["hard", True]
    assert hard["n"] == pooled["n"] == 9 and pooled["texts"] == 18 and pooled["keys"] == 2
    assert hard["command"] == "test" and hard["watermark_parameters"]["delta"] == 20.0
    right = [g.correct for key in (0, 1) for g in store.cell(f"tiny.mine.kgw.hard.{key}").read()]
    assert pooled["accuracy"] == float(f"{sum(right) / 18:.6g}")
    by_key = [r["auroc"] for r in results["rows"] if r["policy"] == "hard" and r["key_id"] != "all"]
    assert pooled["sd_over_keys"]["auroc"] == pytest.approx(abs(by_key[0] - by_key[1]) / 2**0.5, abs=1e-5)
    assert "sd_over_keys" not in hard and pooled["auroc_human"] is not None
    assert pooled["z_mean"] > rows["soft", True]["z_mean"] > pooled["z_mean_unmarked"]
    pairs = {(c["a"], c["b"]) for c in results["comparisons"]}
    assert pairs == {
        ("soft", "none"),
        ("hard", "none"),
        ("caw", "none"),
        ("hard", "soft"),
        ("caw", "soft"),
        ("caw", "hard"),
    }
    plain = [r for r in results["equal_detection"] if not r["measure"].startswith("weighted")]
    assert [(r["policy"], r["curve"]) for r in plain] == [("caw", ["none", "soft", "hard"])] * 3


def test_the_same_again_makes_nothing_and_changes_nothing(made: dict[str, Any], whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*.json*")}
    work = runner(made, whole)
    assert work.run() == 0 and work.loaded is None  # the model is not even loaded
    work.score()
    work.score(again=True)
    assert {path: path.read_bytes() for path in whole.rglob("*.json*")} == before


def test_what_one_process_left_another_finishes(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    runner(made, tmp_path, shard=Shard(1, 3), only=("*.soft.*",)).run()
    path = tmp_path / "cells" / "tiny.mine.kgw.soft.0" / "generations.1.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # as a kill while a line is written
    assert runner(made, tmp_path).run() == 9 * len(CELLS) - 3 - 2
    assert texts(tmp_path) == texts(whole)


def test_policies_may_be_tested_each_in_its_own_way(made: dict[str, Any], tmp_path: Path) -> None:
    """One cell is made again until it is found, chosen by the answers that the task reads; the other is made once."""
    found = {"detectable_at": 0.05, "max_attempts": 3, "best_of": 2, "select": "answer"}
    policies = {**made["policies"], "soft": {**made["policies"]["soft"], "found": found}}
    other = {**made, "policies": policies, "generation": {**made["generation"], "max_new_tokens": 30}}
    work = runner(other, tmp_path, only=("*.none", "*.soft.0", "*.hard.0"))
    work.run()
    soft, hard = (Store(tmp_path).cell(f"tiny.mine.kgw.{name}.0") for name in ("soft", "hard"))
    assert {line.attempts for line in soft.read()} == {2, 3} and {line.attempts for line in hard.read()} == {1}
    assert {line.found for line in soft.read()} == {True, False} and {line.found for line in hard.read()} == {None}
    assert soft.manifest["generation"]["select"] == "answer" and "detectable_at" not in hard.manifest["generation"]
    soft_agreeing = {**policies["soft"], "found": {**found, "select": "unmarked-answer"}}
    agreeing = runner({**other, "policies": {**policies, "soft": soft_agreeing}}, tmp_path)
    plan = next(plan for plan in agreeing.config.plan() if plan.policy == "soft")
    assert manifest.tested(agreeing.config, plan)["select"] == "unmarked-answer"
    assert isinstance(agreeing.config.settings(plan).select, Agreement)
    work.score()
    rows = {row["policy"]: row for row in Store(tmp_path).results["rows"]}
    made_soft = soft.read()
    assert rows["soft"]["found"] == pytest.approx(np.mean([line.found for line in made_soft]), abs=1e-5)
    assert rows["soft"]["attempts"] == pytest.approx(np.mean([line.attempts for line in made_soft]), abs=1e-5)
    assert "attempts" not in rows["hard"]


def test_a_text_that_has_changed_is_scored_again(made: dict[str, Any], tmp_path: Path) -> None:
    """Its own score at the next run, those of attacks on it by the next attack; in between they do not count."""
    work = runner(made, tmp_path, limit=2, only=("*.none", "*.hard.0"))
    work.run()
    plans = [plan for plan in work.config.plan() if plan.name == "tiny.mine.kgw.hard.0"]
    assert Attacker(work.scorer).run(["word-d:0.5"], plans) == 6  # two marked, two unmarked, two of people
    work.score()
    first = work.store.read_scores()
    assert all(score.of for score in first)
    assert [row["attack"] for row in work.store.results["attacked"]] == ["word-d-0.5"]
    work.store.update_scores(replace(score, of="", z=99.0) for score in first)
    work.score()
    again = work.store.read_scores()
    assert [s for s in again if s.attack == "none"] == [s for s in first if s.attack == "none"]
    assert {s.z for s in again if s.attack != "none"} == {99.0}
    assert work.store.results["attacked"] == [], "attacks on other texts than are scored now"
    assert Attacker(work.scorer).run(["word-d:0.5"], plans) == 6
    work.score()
    assert work.store.read_scores() == first
    assert len(work.store.results["attacked"]) == 1


def test_texts_made_with_other_settings_are_never_scored(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    """Under another key the clearest mark is not there: refused also where nothing is left to generate."""
    for change, message in (
        ({"seed": 1}, r"soft.0 was made with key_id '\w{8}', this run has '\w{8}'; set CAW_KEY"),
        ({"watermarks": {"kgw": {"gamma": 0.25}}}, r"was made with watermark_parameters .*0.5"),
        ({"generation": {"max_new_tokens": 13}}, r"was made with generation"),
        ({"tasks": {"mine": {"kind": "jsonl", "path": "OTHER", "grade": "contains"}}}, r"was made with data_sha256"),
    ):
        other = tmp_path / "other.jsonl"
        other.write_text(json.dumps({"prompt": "small", "answer": "a"}) + "\n")
        text = json.dumps({**made, **change}).replace("OTHER", str(other))
        before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
        for work in (runner(json.loads(text), whole), runner(json.loads(text), whole, only=("*.none", "*.soft.0"))):
            with pytest.raises(ValueError, match=message):
                work.run()
            with pytest.raises(ValueError, match=message):
                work.score(again=True)
        assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_an_evaluator_is_its_digest_and_not_its_name(made: dict[str, Any], tmp_path: Path) -> None:
    runner(made, tmp_path, limit=1, only=("*.caw.0",)).run()
    old = Path(made["models"]["tiny"]["evaluator"])
    (tmp_path / "renamed.safetensors").write_bytes(old.read_bytes())
    tiny = {**made["models"]["tiny"], "evaluator": str(tmp_path / "renamed.safetensors")}
    assert runner({**made, "models": {"tiny": tiny}}, tmp_path, limit=2, only=("*.caw.0",)).run() == 1
    torch.manual_seed(4)
    Evaluator(FeatureSpec(), hidden=8).save(tmp_path / "renamed.safetensors")
    with pytest.raises(ValueError, match="was made with evaluator_sha256"):
        runner({**made, "models": {"tiny": tiny}}, tmp_path, limit=3, only=("*.caw.0",)).run()


def test_a_model_runs_out_of_room(made: dict[str, Any], tmp_path: Path) -> None:
    """A prompt that is too long counts as wrong and is counted; the others go on."""
    data = tmp_path / "long.jsonl"
    data.write_text(
        json.dumps({"prompt": "a " * 600, "answer": "a"}) + "\n" + json.dumps({"prompt": "a", "answer": "a"}) + "\n"
    )
    config = {**made, "tasks": {"mine": {"kind": "jsonl", "path": str(data), "grade": "contains"}}}
    work = runner(config, tmp_path / "out", only=("*.none", "*.hard.0"))
    said: list[str] = []
    work.say = said.append
    work.run()
    work.score()
    assert "1 prompts not continued" in said[0]
    [first, _] = Store(tmp_path / "out").cell("tiny.mine.none").read()
    assert first.finish_reason == "error" and first.error and first.answer is None and not first.correct
    row = next(r for r in Store(tmp_path / "out").results["rows"] if r["policy"] == "none")
    assert row["errors"] == 1 and row["unparsed"] >= 1 and row["n"] == 2
