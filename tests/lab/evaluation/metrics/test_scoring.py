"""The second reading of every text, with weights per token."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tiny import save_tiny

from caw.detection import TokenWeights, detect
from caw.models import load_tokenizer
from caw_lab.evaluation.config import Config, PolicySpec
from caw_lab.evaluation.config_file import config_of
from caw_lab.evaluation.manifest import planned_manifest
from caw_lab.evaluation.metrics.detectability import reweighted
from caw_lab.evaluation.metrics.scoring import Scorer
from caw_lab.evaluation.results import Results
from caw_lab.evaluation.store import Generation, Score, Store

QUESTIONS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weighted")
    save_tiny(folder / "tiny")
    size = len(load_tokenizer(str(folder / "tiny")))
    TokenWeights(np.arange(size) % 2 * 9, provenance={"key_ids": []}).save(folder / "table.safetensors")
    lines = [json.dumps({"prompt": f"question {i}", "answer": "3"}) for i in range(QUESTIONS)]
    (folder / "mine.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def config(folder: Path, weights: str | None) -> Config:
    model = {"source": str(folder / "tiny"), **({"weights": weights} if weights else {})}
    return config_of({
        "output": str(folder / "run"), "models": {"tiny-0.1b": model},
        "tasks": {"mine": {"kind": "jsonl", "path": str(folder / "mine.jsonl"), "grade": "number"}},
        "watermarks": {"kgw": {"kind": "kgw"}, "synth": {"kind": "synthid"}},
        "policies": {"hard": {"kind": "fixed"}},
    })  # fmt: skip


def stored(folder: Path, settings: Config) -> Store:
    store = Store(folder)
    for plan in settings.plan():
        cell = store.cell(plan.name)
        cell.begin(planned_manifest(settings, plan))
        with cell.writer() as writer:
            for i, question in enumerate(settings.tasks["mine"].questions()):
                text = f"the sky is blue because air scatters light {plan.name} {i} and more. The answer is 3."
                writer.write(asdict(Generation(question.id, (1,), text, "eos", "3", True, text, 0.0, 0.0)))
    return store


@pytest.mark.slow
def test_a_table_gives_every_text_a_second_reading(folder: Path, tmp_path: Path) -> None:
    table = str(folder / "table.safetensors")
    settings = config(folder, table)
    store = stored(tmp_path, settings)
    scorer = Scorer(settings, store)
    scorer.update(settings.plan())
    scores = store.read_scores()
    tokenizer = load_tokenizer(settings.models["tiny-0.1b"].source)
    plan = next(p for p in settings.plan() if p.watermark == "kgw")
    ours = [s for s in scores if s.watermark == "kgw" and s.label == 1]
    assert len(ours) == QUESTIONS
    texts = {g.id: g.truncated_text for g in scorer.generations(plan)}
    for score in ours:
        mark = settings.watermark(plan)
        assert score.p_value == detect(texts[score.id], tokenizer, mark).p_value
        assert score.p_weighted == detect(texts[score.id], tokenizer, mark, weights=table).p_value
    assert any(s.p_weighted != s.p_value for s in ours)
    assert all(s.p_weighted is None for s in scores if s.watermark == "synth")  # it has no weights

    rows = Results(scorer, settings.plan()).as_dict()["rows"]
    marked = next(r for r in rows if r["watermark"] == "kgw")
    again = np.array([s.p_weighted for s in ours])
    assert marked["weighted"]["tpr_at_fpr_1e2"] == pytest.approx((again <= 0.01).mean())
    assert marked["weighted"]["z_mean"] == pytest.approx(np.mean([s.z_weighted for s in ours]), rel=1e-5)
    assert "weighted" not in next(r for r in rows if r["watermark"] == "synth")


def test_a_table_named_later_scores_old_texts_again(folder: Path, tmp_path: Path) -> None:
    plain = config(folder, None)
    store = stored(tmp_path, plain)
    Scorer(plain, store).update(plain.plan())
    before = store.read_scores()
    assert all(s.p_weighted is None for s in before)
    weighted = config(folder, str(folder / "table.safetensors"))
    Scorer(weighted, store).update(weighted.plan())
    after = store.read_scores()
    assert [replace(s, p_weighted=None, z_weighted=None) for s in after] == before
    assert all((s.p_weighted is None) == (s.watermark == "synth") for s in after)


@pytest.mark.slow
def test_texts_without_a_score_are_left_out_of_equal_detection(folder: Path, tmp_path: Path) -> None:
    """They are not texts that were not found."""
    settings = config(folder, None)
    settings = replace(settings, policies={**settings.policies, "rule": PolicySpec("entropy", {"nats": 0.5})})
    store = stored(tmp_path, settings)
    scorer = Scorer(settings, store)
    scorer.update(settings.plan())
    whole = {row["n"] for row in Results(scorer, settings.plan()).equal_detection()}
    assert whole == {QUESTIONS}
    first = settings.tasks["mine"].questions()[0].id
    kept = [s for s in store.read_scores() if not (s.id == first and s.cell.endswith("kgw.rule.0"))]
    (tmp_path / "scores.jsonl").unlink()
    store.update_scores(kept)
    found = {(row["watermark"], row["n"]) for row in Results(scorer, settings.plan()).equal_detection()}
    assert found == {("kgw", QUESTIONS - 1), ("synth", QUESTIONS)}


def test_reweighted_needs_every_text() -> None:
    score = Score("cell", "t/0", "kgw", 0, "none", 1, "model", 0.5, 0.1, 3, 3)
    assert reweighted([]) is None and reweighted([score]) is None
    read = replace(score, p_weighted=0.01, z_weighted=2.0)
    assert reweighted([read, score]) is None
    assert reweighted([read]) == [replace(read, p_value=0.01, z=2.0)]
