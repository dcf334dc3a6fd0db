"""A whole run on a tiny random model: killed, shared between processes, scored, published; and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from evaluation.small_run import content_of
from tiny import save_tiny
from typer.testing import CliRunner

from caw.cli import app
from caw.evaluation.attacks.attacker import Attacker
from caw.evaluation.config import Config
from caw.evaluation.config_file import config_of
from caw.evaluation.publishing import Published
from caw.evaluation.results import Results
from caw.evaluation.run import Runner, Shard
from caw.evaluation.store import Store
from caw.evaluator import Evaluator, FeatureSpec
from caw.io.json_files import read_lines

CELLS = ["tiny.mine.none", *(f"tiny.mine.kgw.{policy}.{key}" for key in (0, 1) for policy in ("soft", "hard", "caw"))]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A config as a mapping: a tiny model, an evaluator, nine questions."""
    folder = tmp_path_factory.mktemp("run")
    save_tiny(folder / "model")
    torch.manual_seed(3)
    Evaluator(FeatureSpec(), hidden=8).save(folder / "tiny.safetensors")
    rows = [{"prompt": f"small text {i}, a", "answer": "a", "person": "the sky is blue"} for i in range(9)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "output": str(folder / "unused"),
        "models": {
            "tiny": {
                "source": str(folder / "model"), "evaluator": str(folder / "tiny.safetensors"), "dtype": "float32",
            }
        },
        "tasks": {
            "mine": {
                "kind": "jsonl", "path": str(folder / "mine.jsonl"), "grade": "contains", "reference": "person",
            }
        },
        "watermarks": {"kgw": {"gamma": 0.5}},
        "policies": {
            "soft": {"kind": "fixed", "delta": 1.0},
            "hard": {"kind": "fixed", "delta": 20.0},
            "caw": {"kind": "capacity", "theta": 1.0, "delta": 20.0},
        },
        "keys": 2,
        "generation": {"max_new_tokens": 12, "batch_size": 3},
    }  # fmt: skip


def runner(made: dict[str, Any], folder: Path, **options: Any) -> Runner:
    config: Config = config_of({**made, "output": str(folder)})
    return Runner(config, Store(folder), say=lambda line: None, progress=False, command="test", **options)


def texts(folder: Path) -> dict[str, dict[str, str]]:
    return {cell.name: {g.id: g.text for g in cell.read()} for cell in Store(folder).cells()}


@pytest.fixture(scope="module")
def whole(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    work = runner(made, folder)
    assert work.run() == 9 * len(CELLS)
    work.score()
    return folder


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
    from caw.evaluation import run as module

    caches = []
    original = module.generate_every
    monkeypatch.setattr(
        module,
        "generate_every",
        lambda *given, **options: (caches.append(options["prompt_cache"]), original(*given, **options))[1],
    )
    for name in CELLS:  # each cell by itself: nobody else asks for its prompts
        assert runner(made, tmp_path / "alone", only=(name,)).run() == 9
    assert caches == [None] * len(CELLS)
    assert texts(whole) == texts(tmp_path / "alone")
    work = runner(made, tmp_path / "together")
    assert work.run() == 9 * len(CELLS)
    [kept] = set(caches[len(CELLS) :])
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


def test_a_run_whose_lines_hold_an_id_twice_is_refused(made: dict[str, Any], tmp_path: Path) -> None:
    name = CELLS[0]
    assert runner(made, tmp_path, only=(name,), limit=2).run() == 2
    path = tmp_path / "cells" / name / "generations.0.jsonl"
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(ValueError, match="must hold each id once"):
        runner(made, tmp_path, only=(name,)).run()


def test_a_run_does_not_replace_what_it_reads(made: dict[str, Any], tmp_path: Path) -> None:
    """Questions by the name of a result: the run would end by writing over them."""
    questions, folder = tmp_path / "mine.jsonl", tmp_path / "run"
    questions.write_bytes(Path(made["tasks"]["mine"]["path"]).read_bytes())
    folder.mkdir()
    (folder / "scores.jsonl").hardlink_to(questions)
    config = {**made, "tasks": {"mine": {**made["tasks"]["mine"], "path": str(questions)}}, "output": str(folder)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    result = CliRunner().invoke(app, ["evaluate", "run", "--config", str(tmp_path / "config.yaml"), "--limit", "1"])
    assert result.exit_code == 2 and "must be another file than tasks.mine" in result.stderr
    assert os.listdir(folder) == ["scores.jsonl"]


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


@pytest.mark.slow
def test_processes_share_the_questions_and_make_the_same_texts(
    made: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    for rank in (1, 0):
        work = runner(made, tmp_path, shard=Shard(rank, 2))
        work.run()
        work.score()
    assert texts(tmp_path) == texts(whole)
    assert len(read_lines(tmp_path / "cells" / CELLS[0] / "generations.1.jsonl")) == 4
    assert {**Store(tmp_path).results, "rows": []} == {**Store(whole).results, "rows": []}


def test_what_one_process_left_another_finishes(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    runner(made, tmp_path, shard=Shard(1, 3), only=("*.soft.*",)).run()
    path = tmp_path / "cells" / "tiny.mine.kgw.soft.0" / "generations.1.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # as a kill while a line is written
    assert runner(made, tmp_path).run() == 9 * len(CELLS) - 3 - 2
    assert texts(tmp_path) == texts(whole)


def test_limits_and_globs(made: dict[str, Any], tmp_path: Path) -> None:
    assert runner(made, tmp_path, limit=2, only=("*.none", "*.hard.1")).run() == 4
    assert {name: len(found) for name, found in texts(tmp_path).items()} == {
        "tiny.mine.none": 2, "tiny.mine.kgw.hard.1": 2
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"--only must match a cell, q\* matches none of tiny.mine.none"):
        runner(made, tmp_path, only=("q*",)).run()


def test_other_settings_are_refused_by_cells_made_before(made: dict[str, Any], tmp_path: Path) -> None:
    runner(made, tmp_path, limit=1, only=("*.hard.0",)).run()
    other = {**made, "generation": {**made["generation"], "max_new_tokens": 13}}
    with pytest.raises(ValueError, match=r"cell tiny.mine.kgw.hard.0 was made with generation .*13"):
        runner(other, tmp_path, only=("*.hard.0",)).run()
    runner({**made, "generation": {**made["generation"], "batch_size": 5}}, tmp_path, only=("*.hard.0",)).run()


def test_texts_from_before_ends_were_kept_count_as_marked_at_their_ends(made: dict[str, Any], tmp_path: Path) -> None:
    runner(made, tmp_path, limit=1, only=("*.none", "*.hard.0")).run()
    for name, expected in (("tiny.mine.none", None), ("tiny.mine.kgw.hard.0", False)):
        path = Store(tmp_path).cell(name).folder / "cell.json"
        manifest = json.loads(path.read_text())
        assert manifest["generation"].pop("mark_eos", None) is expected
        path.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"hard.0 was made with generation .*'mark_eos': True.*'mark_eos': False"):
        runner(made, tmp_path, only=("*.none", "*.hard.0")).run()
    earlier = {**made, "generation": {**made["generation"], "mark_eos": True}}
    work = runner(earlier, tmp_path, limit=2, only=("*.none", "*.hard.0"))
    assert work.run() == 2
    work.config = replace(work.config, text="now")
    work.score(again=True)
    assert (tmp_path / "config.yaml").read_text() == "now", "results belong to the config they were made by"


def test_a_text_that_is_read_otherwise_now_is_scored_anew(made: dict[str, Any], tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, r"soft.0 was made with key_id '\w{8}', this run has '\w{8}'; set CAW_KEY"),
        ({"watermarks": {"kgw": {"gamma": 0.25}}}, r"was made with watermark_parameters .*0.5"),
        ({"generation": {"max_new_tokens": 13}}, r"was made with generation"),
        ({"tasks": {"mine": {"kind": "jsonl", "path": "OTHER", "grade": "contains"}}}, r"was made with data_sha256"),
    ],
)
def test_texts_are_never_scored_as_if_made_otherwise(
    made: dict[str, Any], whole: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Under another key the clearest mark is not there: refused also where nothing is left to generate."""
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


def command(made: dict[str, Any], folder: Path, *options: str) -> list[str]:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**made, "output": str(folder / "out")}, sort_keys=False))
    return [sys.executable, "-m", "caw.cli", "evaluate", "run", "--config", str(path), "--threads", "1", *options]


@pytest.mark.slow(seconds=20)
def test_killed_at_any_moment_nothing_is_lost_or_doubled(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    """SIGKILL after the first lines, and again; then to the end. Finished lines stay as they were."""
    out, kept = tmp_path / "out", dict[str, dict[str, str]]()
    for _ in range(2):
        before = sum(map(len, kept.values()))
        process = subprocess.Popen(command(made, tmp_path), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while sum(map(len, texts(out).values())) < before + 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        now = texts(out)
        assert all(now[cell].items() >= found.items() for cell, found in kept.items())
        kept = now
    assert 0 < sum(map(len, kept.values())) < 9 * len(CELLS)
    last = invoke(*command(made, tmp_path)[5:])
    assert last.exit_code == 0, last.output
    assert texts(out) == texts(whole)
    assert Store(out).results["comparisons"] == Store(whole).results["comparisons"]


@pytest.mark.slow(seconds=25)
def test_two_processes_at_once_as_torchrun_starts_them(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            command(made, tmp_path), env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}, stderr=subprocess.DEVNULL
        )
        for rank in (0, 1)
    ]
    assert [process.wait(timeout=500) for process in processes] == [0, 0]
    assert texts(tmp_path / "out") == texts(whole)
    assert Store(tmp_path / "out").results["comparisons"] == Store(whole).results["comparisons"]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["evaluate", "run", *arguments])


def test_command_line(made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_KEY", "correct horse battery staple")
    config = command(made, tmp_path)[6]
    result = invoke(
        "-c", config, "--limit", "2", "--only", "*.none", "--only", "*.soft.0", "--publish", str(tmp_path / "p")
    )
    assert result.exit_code == 0, result.output
    assert "4 new texts" in result.output and "published 4 answers" in result.output
    again = invoke("-c", config, "--scores-only", "--only", "*.soft.0")
    assert again.exit_code == 0 and "0 new texts" in again.output
    store = Store(tmp_path / "out")
    record = store.run(store.cell("tiny.mine.kgw.soft.0").read()[0].run)
    assert (record["seed"], record["keys_from"]) == (0, "CAW_KEY")
    assert (store.path / "configs" / f"{record['config']}.yaml").read_text() == Path(config).read_text()
    everything = content_of(tmp_path)
    number = str(config_of(made).key(0))
    assert "correct horse" not in everything and number not in everything


def test_published_folders_hold_no_texts(made: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    from caw.evaluation.publishing import publish

    work = runner(made, whole)
    assert publish(work.scorer, work.config.plan(), tmp_path / "p") == 9 * len(CELLS)
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {"answers.jsonl.xz", "scores.jsonl.xz", "cells.json", "config.yaml", "results.json"}
    content = content_of(tmp_path / "p")
    for found in texts(whole).values():
        assert not any(text and json.dumps(text)[1:-1] in content for text in found.values())
    assert "the sky is blue" not in content and "small text" not in content
    [line, *_] = read_lines(tmp_path / "p" / "answers.jsonl")
    assert line.keys() == {
        "cell", "id", "answer", "extraction", "correct", "finish_reason", "tokens", "marked", "changed"
    }  # fmt: skip
    copy = Published(tmp_path / "p")
    assert copy.plans() == [replace(plan, count=None) for plan in dict.fromkeys(work.config.plan())]
    assert Results(copy, copy.plans()).as_dict() == Results(work.scorer, work.config.plan()).as_dict()
    assert (tmp_path / "p" / "config.yaml").read_text() == (whole / "config.yaml").read_text()
    with pytest.raises(ValueError, match="another folder"):
        publish(work.scorer, work.config.plan(), whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rank", "2", "--world-size", "2"], "rank must be in [0, world size)"),
        (["--only", "nothing"], "--only must match a cell"),
        (["-o", "FILE"], "is a file"),
    ],
)
def test_bad_usage(made: dict[str, Any], tmp_path: Path, options: list[str], message: str) -> None:
    config = command(made, tmp_path)[6]
    (tmp_path / "file").write_text("")
    result = invoke("-c", config, *(str(tmp_path / "file") if part == "FILE" else part for part in options))
    assert result.exit_code == 2 and message in result.output


def test_bad_config_files(tmp_path: Path) -> None:
    assert invoke("-c", str(tmp_path / "none.yaml")).exit_code == 2
    (tmp_path / "x.yaml").write_text("output: x\nmodels: {}\ntasks: {other: {}}\n")
    result = invoke("-c", str(tmp_path / "x.yaml"))
    assert result.exit_code == 2 and "gsm8k, mmlu, jsonl" in result.output
