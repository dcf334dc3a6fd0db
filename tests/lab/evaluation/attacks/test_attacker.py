"""Attacks on a whole run's texts: what is scored, under which key, once, and after a kill."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from stand_in_endpoint import completion, serve
from tiny import save_tiny
from typer.testing import CliRunner

from caw.cli import app
from caw.detection import Detector
from caw.models import load_model, load_tokenizer
from caw.testing import assert_close
from caw_lab.evaluation.attacks import AttackSetup
from caw_lab.evaluation.attacks.attacker import Attacker
from caw_lab.evaluation.attacks.words import WordD
from caw_lab.evaluation.config import Config, choose_plans
from caw_lab.evaluation.config_file import read_config
from caw_lab.evaluation.metrics.judge import Judge
from caw_lab.evaluation.metrics.perplexity import perplexities
from caw_lab.evaluation.metrics.scoring import Scorer
from caw_lab.evaluation.run import Runner
from caw_lab.evaluation.store import Store

QUESTIONS = 3
HUMAN = "The sky is blue because air scatters blue light more than red light, says person {}."


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked")
    with open(folder / "q.jsonl", "w") as file:
        for i in range(QUESTIONS):
            value = {"prompt": f"one\n\nthe sky {i}", "answer": "blue", "human": HUMAN.format(i)}
            file.write(json.dumps(value) + "\n")
    config = {
        "output": str(folder / "run"), "keys": 2, "generation": {"max_new_tokens": 60, "min_new_tokens": 60},
        "models": {"tiny": {"source": str(save_tiny(folder / "tiny")), "dtype": "float32"}},
        "tasks": {
            "mine": {"kind": "jsonl", "path": str(folder / "q.jsonl"), "grade": "contains", "reference": "human"},
        },
        "watermarks": {"kgw": {"kind": "kgw", "gamma": 0.25}}, "policies": {"hard": {"kind": "fixed", "delta": 8.0}},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(config))
    runner = Runner(read_config(folder / "config.yaml"), Store(folder / "run"), say=lambda line: None)
    runner.run()
    runner.score()
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def attacker(folder: Path, **options: Any) -> tuple[Config, Attacker]:
    config = read_config(folder / "config.yaml")
    return config, Attacker(Scorer(config, Store(folder)), **options)


def test_scores_are_of_the_attacked_text_under_its_key(run: Path) -> None:
    config, at_work = attacker(run)
    before = at_work.scorer.store.read_scores()
    assert {s.attack for s in before} == {"none"} and len(before) == 2 * 3 * QUESTIONS
    plans = config.plan()
    # two keys x (marked, unmarked, people's) x questions
    assert at_work.run(["word-d:0.2"], plans) == 2 * 3 * QUESTIONS
    after = at_work.scorer.store.read_scores()
    assert [s for s in after if s.attack == "none"] == before
    new = [s for s in after if s.attack != "none"]
    assert {(s.attack, s.label, s.source) for s in new} == {
        ("word-d-0.2", 1, "model"), ("word-d-0.2", 0, "model"), ("word-d-0.2", 0, "human"),
    }  # fmt: skip
    tokenizer = load_tokenizer(config.models["tiny"].source)
    for plan in (p for p in plans if p.watermark is not None):
        detector = Detector(tokenizer, config.watermark(plan))
        for g in at_work.scorer.generations(plan):
            attacked = WordD(0.2)(g.truncated_text, g.id)
            (score,) = [s for s in new if s.cell == plan.name and s.id == g.id]
            assert score.p_value == detector(attacked.text).p_value
            assert score.edit_rate == pytest.approx(attacked.edit_rate, abs=1e-6)
    people = [s for s in new if s.source == "human" and s.key == 1]
    asked = at_work.scorer.questions("mine")
    assert {s.id for s in people} == set(asked) and people[0].cell == "tiny.mine.none"
    expected = detector(WordD(0.2)(asked[people[0].id].reference, people[0].id).text).p_value
    assert people[0].p_value == expected


def test_nothing_is_done_twice(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, at_work = attacker(run, limit=2, human=False)
    assert at_work.run(["word-d:0.2"], config.plan()) == 2 * 2 * 2
    calls: list[str] = []
    real = WordD.apply
    monkeypatch.setattr(WordD, "apply", lambda self, text, rng: (calls.append(text), real(self, text, rng))[1])
    assert at_work.run(["word-d:0.2"], config.plan()) == 0 and not calls
    at_work.limit = 3
    assert at_work.run(["word-d:0.2"], config.plan()) == 2 * 2 * 1
    assert len(calls) == 3  # the unmarked text once for both keys


def test_other_settings_under_the_same_name_are_refused(run: Path) -> None:
    config, at_work = attacker(run, limit=1)
    at_work.run(["word-d:0.2"], config.plan())
    about = json.loads((run / "attacks.json").read_text())
    assert about == {"word-d-0.2": {"kind": "word-d", "rate": 0.2, "seed": 0}}
    _, other = attacker(run, setup=AttackSetup(seed=1))
    with pytest.raises(ValueError, match=r"attack word-d-0\.2 was made with"):
        other.run(["word-d:0.2"], config.plan())


def test_another_key_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_KEY", "not the run's")
    config, at_work = attacker(run)
    with pytest.raises(ValueError, match="set CAW_KEY to the original key"):
        at_work.run(["word-d:0.2"], config.plan())


def test_copy_paste_takes_other_peoples_answers(run: Path) -> None:
    config, at_work = attacker(run, limit=1)
    at_work.run(["copy-paste:0.5"], config.plan())
    (line,) = [json.loads(li) for li in (run / "attacked/copy-paste-0.5/tiny.mine.none.human.jsonl").open()]
    own = at_work.scorer.questions("mine")[line["id"]].reference
    assert own in line["text"] and "says person" in line["text"].replace(own, "")


def test_paraphrases_from_an_endpoint(run: Path) -> None:
    """Each text is asked for once, however many keys; one that is refused is left out, counted, and asked for again."""
    asked: list[str] = []

    def script(body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(body["messages"][1]["content"])
        return completion(None, refusal="no") if "person 0" in asked[-1] else completion("other words")

    with serve(script) as endpoint:
        arguments = ["evaluate", "attack", str(run), "--attack", "paraphrase", "--paraphrase-model", "writer",
                     "--base-url", endpoint.url]  # fmt: skip
        environment = {"OPENAI_API_KEY": "secret", "CAW_TRACEBACK": ""}
        done = CliRunner().invoke(app, arguments, env=environment)
        first = len(asked)
        again = CliRunner().invoke(app, arguments, env=environment)
    assert done.exit_code == 1, done.output
    # marked under two keys, unmarked, people's; the refused one under both keys
    assert first == 4 * QUESTIONS + 1 and len(asked) == first + 2 and again.exit_code == 1
    assert "refused" in done.stderr and "2 texts could not be attacked" in done.stderr
    scores = [s for s in Store(run).read_scores() if s.attack == "paraphrase-writer"]
    assert len(scores) == 2 * (3 * QUESTIONS - 1)
    assert "secret" not in (run / "attacks.json").read_text() + done.output


def test_command_and_report(run: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", "attack", str(run), "--attack", "word-d:0.3", "--only", "*.hard.0", "--threads", "1"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert f"{3 * QUESTIONS} new scores" in done.stderr and "word-d-0.3" in done.stdout
    (row,) = Store(run).results["attacked"]
    assert row["attack"] == "word-d-0.3" and row["texts"] == QUESTIONS and row["keys"] == 1
    done = CliRunner().invoke(app, ["evaluate", "report", str(run), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert "word-d-0.3" in (tmp_path / "report" / "report.md").read_text()


def test_perplexities_of_a_run(run: Path, tmp_path: Path) -> None:
    config = read_config(run / "config.yaml")
    source = config.models["tiny"].source
    arguments = ["evaluate", "perplexity", str(run), "--model", source, "--dtype", "float32"]
    done = CliRunner().invoke(app, [*arguments, "--limit", "2"])
    assert done.exit_code == 0 and "6 texts read" in done.stderr, done.output
    done = CliRunner().invoke(app, arguments)
    assert "3 texts read" in done.stderr  # the rest: unmarked and two keys, one question each
    lines = [json.loads(line) for line in (run / "perplexity.jsonl").open()]
    assert len({(line["cell"], line["id"]) for line in lines}) == len(lines) == 3 * QUESTIONS
    model, tokenizer = load_model(source, "cpu", "float32")
    (plain,) = choose_plans(config.plan(), ["*.none"])
    first = Scorer(config, Store(run)).generations(plain)[0]
    line = next(li for li in lines if (li["cell"], li["id"]) == (plain.name, first.id))
    number = int(first.id.split("/")[1]) - 1
    (expected,) = perplexities(model, tokenizer, [first.truncated_text], [f"the sky {number}"])  # without the shot
    assert_close([line["given_prompt"], line["alone"]], [expected.given_prompt, expected.alone], "forward")
    done = CliRunner().invoke(app, [*arguments, "--given", "prompt"], env={"CAW_TRACEBACK": ""})
    assert done.exit_code == 2 and "given the question, and cannot be continued" in done.stderr
    with pytest.raises(ValueError, match="must be one of question, prompt, nothing"):
        Judge(Scorer(config, Store(run)), model, tokenizer, "x", "all")  # type: ignore[arg-type]


def test_of_several_attacks_one_that_cannot_be_made_is_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--attack word-d:0.1 --attack copy-paste:0.25` made neither where a task has no texts of people."""
    said: list[str] = []
    _, made = attacker(run, human=False, say=said.append)
    monkeypatch.setattr(made.scorer, "questions", lambda task: {})
    plans = made.scorer.config.plan()
    with pytest.raises(ValueError, match=r"^cell tiny\.mine\.kgw\.hard\.0, task mine: copy-paste requires human texts"):
        made.run(["copy-paste:0.25"], plans)
    monkeypatch.setattr(made, "_groups", lambda plan: [])
    assert made.run(["word-d:0.1", "copy-paste:0.25"], plans) == 0 and made.left_out == 1
    assert any(line.startswith("copy-paste:0.25 is left out: cell ") for line in said)
    with pytest.raises(ValueError, match="an attack must be one of"):
        made.run(["word-d:0.1", "word-x:1"], plans)
