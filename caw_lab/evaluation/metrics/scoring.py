"""Grade a run's texts, and test them for marks: each marked cell's texts, and its negatives under the same key.

Grades and scores depend on `Generation.text` alone, so both can be recomputed when grading improves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from caw.detection import Detector, TokenWeights
from caw.io.progress import watched
from caw.models import load_tokenizer
from caw.watermarks import Signature
from caw_lab.evaluation.answers import Answer, CellAnswers, current_scores
from caw_lab.evaluation.config import CellPlan, Config, ModelSpec
from caw_lab.evaluation.metrics.detectability import score_texts
from caw_lab.evaluation.store import Generation, Identity, Score, Store, Text, TextGroup
from caw_lab.evaluation.tasks import Question

MODEL, HUMAN = "model", "human"
ONE = np.ones(1, dtype=np.uint8)  # the smallest table of weights; asks whether a watermark takes any


@dataclass
class Scorer:
    """Grades a run's texts and tests them for the config's watermarks; missing tokenizers are loaded on need."""

    config: Config
    store: Store
    tokenizers: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def _questions(self) -> dict[str, dict[str, Question]]:
        return {}

    def questions(self, task: str) -> dict[str, Question]:
        """Return all questions of a task's split, by id."""
        if task not in self._questions:
            self._questions[task] = {q.id: q for q in self.config.tasks[task].everything}
        return self._questions[task]

    def generations(self, plan: CellPlan) -> list[Generation]:
        """Return a cell's texts with fresh grades, without those of questions that are no longer in the data."""
        task, known = self.config.tasks[plan.task], self.questions(plan.task)
        made = []
        for old in self.store.cell(plan.name).read():
            if old.id in known:
                graded = task.grade(old.text, known[old.id].gold)
                made.append(
                    replace(
                        old, answer=graded.answer, extraction=graded.extraction, correct=graded.correct,
                        truncated_text=graded.text,
                    )
                )  # fmt: skip
        return made

    def answers(self, plan: CellPlan) -> CellAnswers:
        """Implement `answers.Source`, with the next two."""
        made = self.generations(plan)
        runs = tuple(sorted({g.run for g in made}))
        return CellAnswers(self.store.cell(plan.name).manifest, runs, [Answer.of(g) for g in made])

    def every_score(self) -> list[Score]:
        return current_scores(self.store.read_scores())

    def command(self, run: str) -> str:
        return str(self.store.run(run).get("command", ""))

    def detector(self, plan: CellPlan) -> Detector:
        """Return the detector of a marked cell's watermark and key."""
        if plan.model not in self.tokenizers:
            self.tokenizers[plan.model] = load_tokenizer(self.config.models[plan.model].source)
        mark = self.config.watermark(plan)
        parameters = self.store.cell(plan.name).manifest.get("watermark_parameters", {})
        if mark.foreign and parameters.get("vocab_size"):
            mark = mark.with_vocabulary(parameters["vocab_size"])
        return Detector(self.tokenizers[plan.model], mark)

    def weighted(self, plan: CellPlan) -> Detector | None:
        """Return the detector with the model's token weights; None without them, or where unsupported."""
        weights = self.config.models[plan.model].weights
        detector = self.detector(plan)
        if weights is None or not takes_weights(detector.watermark):
            return None
        return replace(detector, weights=weights)

    def update(self, plans: Iterable[CellPlan], *, again: bool = False) -> None:
        """Score these cells and their negatives: texts without a score, and texts that changed; with `again`, all."""
        known = {} if again else {s.identity: s.of for s in self.store.read_scores() if not self._outdated(s)}
        fresh: dict[Identity, Score] = {}
        cells = list({plan.name: plan for plan in plans if plan.watermark is not None}.values())
        for plan in watched(cells, "scoring", "cells", announced=True):
            for score in self.scores(plan, known):
                fresh[score.identity] = score
                known[score.identity] = score.of
        if fresh:
            self.store.update_scores(fresh.values())

    def scores(self, plan: CellPlan, known: Mapping[Identity, str]) -> list[Score]:
        """Return new scores of a marked cell's texts and its negatives. known: `Score.of` by identity, of others."""
        groups = self.groups(plan)
        if not groups:
            return []
        detector, weighted, made = self.detector(plan), self.weighted(plan), list[Score]()
        for group, texts in groups:
            made += score_texts(detector, group.unscored(texts, known), group, weighted=weighted)
        return made

    def groups(self, plan: CellPlan) -> list[tuple[TextGroup, list[Text]]]:
        """Return the texts tested for a cell's mark: its own, unmarked answers, human ones; [] before it has texts."""
        assert plan.watermark is not None and plan.key is not None
        marked, unmarked = self.generations(plan), replace(plan, watermark=None, policy=None, key=None)
        if not marked:
            return []
        asked = self.questions(plan.task)
        own = TextGroup(plan.name, plan.watermark, plan.key, 1, MODEL)
        bare = replace(own, cell=unmarked.name, label=0)
        return [
            (own, [(g.id, g.truncated_text) for g in marked]),
            (bare, [(g.id, g.truncated_text) for g in self.generations(unmarked)]),
            (replace(bare, source=HUMAN), [(g.id, text) for g in marked if (text := asked[g.id].reference)]),
        ]

    def _outdated(self, score: Score) -> bool:
        """Return whether the config now has weights that it did not have when the text was scored."""
        model = self._model_of(score.cell)
        spec = self.config.watermarks.get(score.watermark)
        if model is None or model.weights is None or spec is None:
            return False
        return score.p_weighted is None and takes_weights(spec.build(0))

    def _model_of(self, cell: str) -> ModelSpec | None:
        """Return the model of a cell's name. Names may contain dots, so it is the longest matching prefix."""
        found = [name for name in self.config.models if cell.startswith(f"{name}.")]
        return self.config.models[max(found, key=len)] if found else None


def takes_weights(mark: Signature) -> bool:
    """Return whether detection of this watermark supports token weights."""
    try:
        for part in mark.parts:
            TokenWeights(ONE).check_for(part)
    except ValueError:
        return False
    return mark.code is None
