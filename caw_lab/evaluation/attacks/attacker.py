"""Attack a run's texts, once each, in attacked/ATTACK/CELL.SOURCE.jsonl, and test them under the same keys."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from caw.io.json_files import read_json, write_json
from caw.io.jsonl import JsonlWriter
from caw.io.progress import Bar
from caw_lab.evaluation.attacks import Attack, Attacked, AttackError, AttackSetup, parse_attack
from caw_lab.evaluation.attacks.base import NeedsError
from caw_lab.evaluation.attacks.copy_paste import CopyPaste
from caw_lab.evaluation.config import CellPlan
from caw_lab.evaluation.metrics.detectability import score_texts
from caw_lab.evaluation.metrics.scoring import HUMAN, Scorer
from caw_lab.evaluation.packed_files import read_lines
from caw_lab.evaluation.preflight import require_for
from caw_lab.evaluation.store import Identity, Score, Store, Text, TextGroup, text_digest

FLUSH_SECONDS = 30.0
ATTACKS_FILE = "attacks.json"
MADE_BY = "caw evaluate attack"


def attack_texts(
    store: Store,
    attack: Attack,
    cell: str,
    source: str,
    texts: Sequence[Text],
    workers: int = 1,
    failed: Callable[[str, AttackError], None] = lambda text_id, error: None,
) -> dict[str, Attacked]:
    """Return attacked texts by id, stored ones if unchanged. failed: called for each that the attack cannot change."""
    path = store.path / "attacked" / attack.name / f"{cell}.{source}.jsonl"
    wanted = {text_id: (text, text_digest(text)) for text_id, text in texts}
    found = _kept(path, wanted)
    if len(found) < len(wanted):
        path.parent.mkdir(parents=True, exist_ok=True)
        # an id may be there twice: a text that has changed is attacked again
        with JsonlWriter(path, resume=True, made_by=MADE_BY, keep=bool, unique=None) as writer:
            found = _kept(path, wanted)  # another process may have written some until this one held the file
            todo = [(text_id, text) for text_id, text in texts if text_id not in found]
            for text_id, made in _made(attack, todo, workers):
                if isinstance(made, AttackError):
                    failed(text_id, made)
                    continue
                line = {"id": text_id, "text": made.text, "edited": made.edited, "words": made.words}
                writer.write({**line, "of": wanted[text_id][1]})
                found[text_id] = made
    return found


def _kept(path: Path, wanted: Mapping[str, tuple[str, str]]) -> dict[str, Attacked]:
    """Return the attacked texts of a file, by id, that were made from these texts. wanted: text and digest by id."""
    found: dict[str, Attacked] = {}
    for line in read_lines(path, missing_ok=True):
        if line["id"] in wanted and line["of"] == wanted[line["id"]][1]:
            found[line["id"]] = Attacked(line["text"], line["edited"], line["words"])
    return found


def _made(attack: Attack, texts: Sequence[Text], workers: int) -> Iterator[tuple[str, Attacked | AttackError]]:
    def one(item: Text) -> Attacked | AttackError:
        try:
            return attack(item[1], item[0])
        except AttackError as error:
            return error

    if not attack.parallel or workers < 2:
        yield from ((item[0], one(item)) for item in texts)
        return
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from zip((text_id for text_id, _ in texts), pool.map(one, texts), strict=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass
class Attacker:
    """Scores a run's texts under attacks.

    Args:
        scorer: of the run. setup: what attacks need; without human texts copy-paste hides texts in reference answers.
        limit: maximum questions per cell. human: attack human answers too.
        workers: threads, for attacks that gain from them. say: called with a line for people after each cell.

    `failures` counts the texts that an attack could not change, `left_out` the attacks with missing requirements.
    """

    scorer: Scorer
    setup: AttackSetup = field(default_factory=AttackSetup)
    limit: int | None = None
    human: bool = True
    workers: int = 8
    say: Callable[[str], None] = lambda line: None
    failures: int = 0
    left_out: int = 0

    def run(self, specs: Sequence[str], plans: Sequence[CellPlan]) -> int:
        """Score the texts of marked cells, and of their negatives under the same keys, for each attack ("word-d:0.1").

        Texts that have not changed since their score are skipped. Returns the number of new scores, which are written
        every half minute and at the end, also after an interrupt.

        Raises ValueError for attacks that cannot be made, and for a key other than the one a cell was generated with.
        """
        marked = list({plan.name: plan for plan in plans if plan.watermark is not None}.values())
        require_for(self.scorer.config, plans)
        cell_of = {plan.task: plan.name for plan in reversed(marked)}  # the first of each task
        attacks = self._attacks(specs, cell_of)
        self._keep_provenance(attack for by_task in attacks for attack in by_task.values())
        known = {score.identity: score.of for score in self.scorer.store.read_scores()}
        fresh: list[Score] = []
        written, flushed = 0, time.monotonic()
        try:
            with Bar(len(attacks) * len(marked), "attacking", "cells", announced=True) as bar:
                for plan, attack in ((plan, by_task[plan.task]) for by_task in attacks for plan in marked):
                    bar.begin(f"{attack.name}, {plan.name}")
                    new = self._scores(plan, attack, known)
                    bar()
                    known |= {score.identity: score.of for score in new}
                    fresh += new
                    if time.monotonic() - flushed > FLUSH_SECONDS:
                        self.scorer.store.update_scores(fresh)
                        written, fresh, flushed = written + len(fresh), [], time.monotonic()
        finally:
            if fresh:
                self.scorer.store.update_scores(fresh)
        return written + len(fresh)

    def _attacks(self, specs: Sequence[str], cell_of: Mapping[str, str]) -> list[dict[str, Attack]]:
        """Return each attack by task. Of several, one without human texts for a task is reported and skipped. Raises
        errors of the attacks themselves, and what is missing if none remains.
        """
        made, missing = list[dict[str, Attack]](), list[NeedsError]()
        for spec in specs:
            try:
                made.append({task: self._attack(spec, task, cell) for task, cell in cell_of.items()})
            except NeedsError as error:
                missing.append(error)
                self.say(f"{spec} is left out: {error}")
        if missing and not made:
            raise missing[0]
        self.left_out = len(missing)
        return made

    def _attack(self, spec: str, task: str, cell: str) -> Attack:
        if spec.partition(":")[0] != CopyPaste.kind or self.setup.human:
            return parse_attack(spec, self.setup)
        people = tuple(q.reference for q in self.scorer.questions(task).values() if q.reference)
        try:
            return parse_attack(spec, replace(self.setup, human=people))
        except ValueError as error:
            raise type(error)(f"cell {cell}, task {task}: {error}") from None

    def _keep_provenance(self, attacks: Iterable[Attack]) -> None:
        """Write attacks.json, parameters by name. ValueError if scores of a name were made with others."""
        path = self.scorer.store.path / ATTACKS_FILE
        known: dict[str, Any] = read_json(path) or {}
        for attack in attacks:
            about = {name: value for name, value in attack.describe().items() if name != "human_texts"}
            if known.setdefault(attack.name, about) != about:
                raise ValueError(
                    f"attack {attack.name} was made with {known[attack.name]}, this run has {about}; use the same "
                    f"settings, or remove attacked/{attack.name} and its lines in scores.jsonl and {ATTACKS_FILE}"
                )
        write_json(path, known)

    def _scores(self, plan: CellPlan, attack: Attack, known: Mapping[Identity, str]) -> list[Score]:
        scorer, made = self.scorer, list[Score]()
        groups = self._groups(plan)
        if not groups:
            return made
        detector, weighted = scorer.detector(plan), scorer.weighted(plan)
        expected = scorer.store.cell(plan.name).manifest.get("key_id")
        if expected != detector.watermark.key_id:
            raise ValueError(
                f"cell {plan.name} was generated with key {expected}, the config now gives "
                f"{detector.watermark.key_id}; set CAW_KEY to the original key"
            )
        for group, texts in ((replace(group, attack=attack.name), texts) for group, texts in groups):
            new, failed = group.unscored(texts, known), partial(self._failed, group.cell)
            attacked = attack_texts(scorer.store, attack, group.cell, group.source, new, self.workers, failed)
            usable = [(i, attacked[i].text) for i, _ in new if i in attacked]
            rates, before = [attacked[i].edit_rate for i, _ in usable], [t for i, t in new if i in attacked]
            made += score_texts(detector, usable, group, weighted=weighted, edit_rates=rates, originals=before)
        if made:
            self.say(f"{attack.name}, {plan.name}: {len(made)} scores")
        return made

    def _groups(self, plan: CellPlan) -> list[tuple[TextGroup, list[Text]]]:
        """Return the texts to attack, of a cell and its negatives: the same questions in each group."""
        groups = self.scorer.groups(plan)
        ids = {text_id for _, texts in groups[:1] for text_id, _ in texts[: self.limit]}
        return [
            (group, [(text_id, text) for text_id, text in texts if text_id in ids])
            for group, texts in groups
            if self.human or group.source != HUMAN
        ]

    def _failed(self, cell: str, text_id: str, error: AttackError) -> None:
        self.failures += 1
        self.say(f"cell {cell}, {text_id}: {error}")
