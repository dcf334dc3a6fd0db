"""results.json: a row per key, a row over all keys, comparisons of policies, and accuracy at equal detection."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np

from caw.watermarks.names import WATERMARKS
from caw_lab.evaluation.answers import Answer, CellAnswers, Source
from caw_lab.evaluation.config import NONE, CellPlan, PolicySpec, WatermarkSpec
from caw_lab.evaluation.metrics import accuracy
from caw_lab.evaluation.metrics.accuracy import Outcomes
from caw_lab.evaluation.metrics.detectability import FPRS, metrics, reweighted
from caw_lab.evaluation.metrics.scoring import HUMAN, MODEL
from caw_lab.evaluation.metrics.style import REPEATED_SIZE, SIZES, Style
from caw_lab.evaluation.store import Score

Group = tuple[str, str, str | None, str | None]  # model, task, watermark, policy
DIGITS = 6
REPEATED = ("accuracy", "auroc", "f1", *(f"tpr_at_fpr_{suffix}" for suffix in FPRS))


@dataclass
class Results:
    """Builds results.json from graded answers and scores.

    Args:
        source: a run (`Scorer`) or a copy of it (`Published`). plans: the cells; those without texts are left out.

    A group is all keys of one model, task, watermark and policy.
    """

    source: Source
    plans: Sequence[CellPlan]
    cells: dict[str, CellAnswers] = field(init=False)
    scores: dict[tuple[str, str, int, str, str], list[Score]] = field(init=False)

    def __post_init__(self) -> None:
        every = {plan.name: plan for plan in self.plans}
        for plan in list(every.values()):
            bare = replace(plan, watermark=None, policy=None, key=None)
            every.setdefault(bare.name, bare)
        self.cells = {name: self.source.answers(plan) for name, plan in every.items()}
        self.groups: dict[Group, list[CellPlan]] = defaultdict(list)
        for name, plan in every.items():
            if self.cells[name].answers:
                self.groups[plan.model, plan.task, plan.watermark, plan.policy].append(plan)
        self.scores = defaultdict(list)
        for score in self.source.every_score():
            self.scores[score.cell, score.watermark, score.key, score.attack, score.source].append(score)

    def as_dict(self) -> dict[str, Any]:
        """Return the whole file, with numbers of 6 digits."""
        return {
            "rows": [_rounded(row) for group in self.groups for row in self.rows(group)],
            "attacked": [_rounded(row) for group in self.groups for row in self.attacked(group)],
            "comparisons": [_rounded(row) for row in self.comparisons()],
            "equal_detection": [_rounded(row) for row in self.equal_detection()],
        }

    def answers(self, plan: CellPlan) -> Sequence[Answer]:
        return self.cells[plan.name].answers

    def rows(self, group: Group) -> Iterator[dict[str, Any]]:
        """Return a row per key, and one over all keys if there are several."""
        plans = self.groups[group]
        single = [self.row(group, [plan]) for plan in plans]
        yield from single
        if len(plans) > 1:
            yield {**self.row(group, plans), "sd_over_keys": _spread(single)}

    def row(self, group: Group, plans: Sequence[CellPlan]) -> dict[str, Any]:
        """Return the row of a group's cells: accuracy, lengths and, for marked texts, detection."""
        cells = [self.cells[plan.name] for plan in plans]
        manifest, made = cells[0].manifest, [g for cell in cells for g in cell.answers]
        lengths, runs = [g.tokens for g in made], sorted({run for cell in cells for run in cell.runs})
        graded = [g for g in made if g.correct is not None]
        row: dict[str, Any] = {
            **_named(group),
            "n": len({g.id for g in made}),
            "texts": len(made),
            "key_id": manifest.get("key_id") if len(plans) == 1 else "all",
            "keys": sum(plan.key is not None for plan in plans),
            "policy_parameters": manifest.get("policy_parameters"),
            "watermark_parameters": manifest.get("watermark_parameters"),
            "accuracy": _share(bool(g.correct) for g in graded),
            "accuracy_ci": self.accuracy_interval(plans) if graded else None,
            "accuracy_stated": _share(bool(g.correct) and g.extraction == "stated" for g in graded),
            "unparsed": sum(g.unparsed for g in graded) if graded else None,
            "stated": _share(g.extraction == "stated" for g in graded),
            "tokens": sum(lengths),
            "tokens_median": float(np.median(lengths)),
            "ended": _share(g.finish_reason in ("eos", "stop") for g in made),
            "errors": sum(g.finish_reason == "error" for g in made),
            "marked": float(np.mean([g.marked for g in made])),
            "changed": float(np.mean([g.changed for g in made])),
        }
        if styles := [g.style for g in made if g.style is not None]:
            row["style"] = _style(styles)
        if group[2] is not None:
            row |= self.detection(plans, "none")
        tested = [g.found for g in made if g.found is not None]
        if tested:
            row |= {"found": _share(tested), "attempts": float(np.mean([g.attempts for g in made]))}
        row["command"] = "; ".join(dict.fromkeys(map(self.source.command, runs)))
        row["runs"] = runs
        return row

    def accuracy_interval(self, plans: Sequence[CellPlan]) -> list[float]:
        """Return Wilson's interval; over several keys, for the number of independent answers, see `share_interval`."""
        right, total = defaultdict[str, int](int), defaultdict[str, int](int)
        for plan in plans:
            for g in self.answers(plan):
                right[g.id] += bool(g.correct)
                total[g.id] += 1
        return list(accuracy.share_interval(np.array([right[name] for name in total]), np.array([*total.values()])))

    def detection(self, plans: Sequence[CellPlan], attack: str) -> dict[str, Any]:
        """Return metrics of the marked texts of these cells against their negatives; {} if nothing is scored."""
        positives, negatives, people = (
            [s for plan in plans for s in self.scores[self._place(plan, attack, marked, source)]]
            for marked, source in ((True, MODEL), (False, MODEL), (False, HUMAN))
        )
        if not positives:
            return {}
        found = _read(positives, negatives, people)
        again = reweighted(positives)
        if again is not None:
            found["weighted"] = _read(again, reweighted(negatives) or [], reweighted(people) or [])
        return found

    def _place(self, plan: CellPlan, attack: str, marked: bool, source: str) -> tuple[str, str, int, str, str]:
        assert plan.watermark is not None and plan.key is not None
        cell = plan.name if marked else f"{plan.model}.{plan.task}.{NONE}"
        return cell, plan.watermark, plan.key, attack, source

    def attacked(self, group: Group) -> Iterator[dict[str, Any]]:
        """Return a row per attack, over all keys that were attacked. `rows` has the texts without attack."""
        plans = self.groups[group]
        if group[2] is None:
            return
        names = {plan.name for plan in plans}
        attacks = sorted({place[3] for place, found in self.scores.items() if place[0] in names and found} - {"none"})
        for attack in attacks:
            hit = [plan for plan in plans if self.scores[self._place(plan, attack, True, MODEL)]]
            scores = [s for plan in hit for s in self.scores[self._place(plan, attack, True, MODEL)]]
            yield {
                **_named(group),
                "attack": attack,
                "n": len({s.id for s in scores}),
                "texts": len(scores),
                "keys": len(hit),
                "edit_rate": float(np.mean([s.edit_rate for s in scores])),
                **self.detection(hit, attack),
            }

    def outcomes(self, group: Group, ids: Sequence[str], keys: Sequence[int]) -> Outcomes:
        """Return a group's outcomes at these questions under these keys; unmarked texts take [] for `keys`."""
        plans = [plan for plan in self.groups[group] if plan.key is None or plan.key in keys]
        place = {name: i for i, name in enumerate(ids)}
        correct = np.zeros((len(ids), len(plans)))
        measures: dict[str, np.ndarray] = {}
        for column, plan in enumerate(plans):
            for g in self.answers(plan):
                if g.id in place:
                    correct[place[g.id], column] = bool(g.correct)
        if group[2] is not None:
            measures = self._measures([self._place(plan, "none", True, MODEL) for plan in plans], place)
        return Outcomes(group[3] or NONE, correct, measures, self.strength(group))

    def _measures(self, places: Sequence[tuple[str, str, int, str, str]], ids: Mapping[str, int]) -> dict[str, Any]:
        found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((len(ids), len(places))))
        every = [[s for s in self.scores[place] if s.id in ids] for place in places]
        readings = [("", every)]
        weighted = [reweighted(scores) for scores in every]
        if all(scores is not None for scores in weighted):
            readings.append(("weighted_", [scores or [] for scores in weighted]))
        for prefix, reading in readings:
            for column, scores in enumerate(reading):
                for score in scores:
                    for suffix, fpr in FPRS.items():
                        found[f"{prefix}tpr_at_fpr_{suffix}"][ids[score.id], column] = score.p_value <= fpr
                    found[f"{prefix}z_mean"][ids[score.id], column] = score.z
        return dict(found)

    def strength(self, group: Group) -> float | None:
        """Return a fixed policy's strength, which orders the curve: 0 for unmarked texts, None for other policies."""
        _, _, watermark, policy = group
        if watermark is None or policy is None:
            return 0.0
        manifest = self.cells[self.groups[group][0].name].manifest
        kind, parameters = _kind(manifest["policy_parameters"])
        if kind != "fixed":
            return None
        mark_kind, mark = _kind(manifest["watermark_parameters"])
        names, built = WATERMARKS[mark_kind].strength, WatermarkSpec(mark_kind, mark).build(key=1)
        fixed = PolicySpec(kind).build(parameters, None)
        return float(fixed.max_strength * (getattr(built, names[0]) if names else 1.0))

    def families(self) -> Iterator[tuple[Group, list[Group]]]:
        """Yield, for each model, task with right answers, and watermark: the unmarked group and the marked groups."""
        families: dict[tuple[str, str, str], list[Group]] = defaultdict(list)
        for group in self.groups:
            if group[2] is not None and self.graded(group):
                families[group[0], group[1], group[2]].append(group)
        for (model, task, _), groups in families.items():
            yield (model, task, None, None), groups

    def graded(self, group: Group) -> bool:
        return any(g.correct is not None for plan in self.groups[group] for g in self.answers(plan))

    def shared(self, groups: Sequence[Group]) -> tuple[list[str], list[int]]:
        """Return the questions that all groups answered under all the keys they share, and these keys."""
        keys = set.intersection(*({p.key for p in self.groups[g] if p.key is not None} for g in groups if g[2]))
        ids = [
            {g.id for g in self.answers(plan)}
            for group in groups
            for plan in self.groups[group]
            if plan.key is None or plan.key in keys
        ]
        return sorted(set.intersection(*ids)) if keys and ids else [], sorted(keys)

    def scored(self, groups: Sequence[Group], marked: Group, ids: Sequence[str], keys: Sequence[int]) -> list[str]:
        """Return the questions whose texts are all scored; an interrupted run leaves some without a score."""
        kept = set(ids)
        for group in groups:
            for plan in self.groups[group if group[2] else marked]:
                if plan.key in keys:
                    kept &= {s.id for s in self.scores[self._place(plan, "none", bool(group[2]), MODEL)]}
        return sorted(kept)

    def comparisons(self) -> Iterator[dict[str, Any]]:
        """Compare every two policies of a watermark, and each with unmarked texts: the first minus the second."""
        for bare, groups in self.families():
            pairs = [(g, bare) for g in groups if bare in self.groups] + [(b, a) for a, b in combinations(groups, 2)]
            for a, b in pairs:
                ids, keys = self.shared([a, b])
                if ids:
                    row = accuracy.compare(self.outcomes(a, ids, keys), self.outcomes(b, ids, keys))
                    yield {**_family(groups[0]), "keys": len(keys), **row}

    def equal_detection(self) -> Iterator[dict[str, Any]]:
        """Compare each policy that is not fixed with the fixed strength of the same detection rate."""
        for bare, groups in self.families():
            fixed = [g for g in [bare, *groups] if g in self.groups and self.strength(g) is not None]
            for group in groups:
                if group in fixed or not any(g[2] for g in fixed):
                    continue
                ids, keys = self.shared([group, *fixed])
                ids = self.scored([group, *fixed], groups[0], ids, keys)
                if not ids:
                    continue
                curve = [self._with_null(g, groups[0], ids, keys) for g in fixed]
                for measure in accuracy.MEASURES:
                    row = accuracy.equal_detection(self.outcomes(group, ids, keys), curve, measure)
                    if row:
                        yield {**_family(group), "keys": len(keys), **row}

    def _with_null(self, group: Group, marked: Group, ids: Sequence[str], keys: Sequence[int]) -> Outcomes:
        """Return outcomes at a point of the curve. Unmarked texts get their scores under the keys of `marked`."""
        outcomes = self.outcomes(group, ids, keys)
        if group[2] is not None:
            return outcomes
        places = [self._place(plan, "none", False, MODEL) for plan in self.groups[marked] if plan.key in keys]
        return replace(outcomes, measures=self._measures(places, {name: i for i, name in enumerate(ids)}))


def _read(positives: Sequence[Score], negatives: Sequence[Score], people: Sequence[Score]) -> dict[str, Any]:
    """Return metrics of one reading of the texts: with equal weights, or with token weights."""
    return {
        **metrics(positives, negatives, people),
        "z_mean": float(np.mean([s.z for s in positives])),
        "z_mean_unmarked": float(np.mean([s.z for s in negatives])) if negatives else None,
        "num_scored_mean": float(np.mean([s.num_scored for s in positives])),
    }


def _spread(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the standard deviation between keys of numbers that all keys have; intervals do not show it."""
    found = {name: [row[name] for row in rows if row.get(name) is not None] for name in REPEATED}
    return {name: float(np.std(values, ddof=1)) for name, values in found.items() if len(values) == len(rows)}


def _kind(parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return (kind, the rest) of a manifest's parameters."""
    return parameters["kind"], {name: value for name, value in parameters.items() if name != "kind"}


def _named(group: Group) -> dict[str, Any]:
    return {"model": group[0], "task": group[1], "watermark": group[2] or NONE, "policy": group[3] or NONE}


def _family(group: Group) -> dict[str, Any]:
    return {"model": group[0], "task": group[1], "watermark": group[2]}


def _style(styles: Sequence[Style]) -> dict[str, float]:
    """Return means over texts, and the median number of words."""
    return {
        "words_median": float(np.median([s.words for s in styles])),
        **{f"distinct_{n}": float(np.mean([s.distinct[n - 1] for s in styles])) for n in SIZES},
        f"repeated_{REPEATED_SIZE}": float(np.mean([s.repeated for s in styles])),
    }


def _share(values: Iterable[bool]) -> float | None:
    known = list(values)
    return float(np.mean(known)) if known else None


def _rounded(value: Any) -> Any:
    """Numbers rounded to 6 significant digits; further ones are noise and differ between machines."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return value
