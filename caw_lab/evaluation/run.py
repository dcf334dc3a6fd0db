"""Generate the texts of an evaluation, cell by cell; a run may be killed at any moment and continued.

A question is done if and only if the store holds a line of it, in any process's file. Processes of one run share the
questions by number (modulo the world size), so no two of them take the same one. Started again with fewer processes, a
run also does what the others had left.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import accepted_for
from caw.detection import Detector
from caw.entrance import GenerationResult, stream_results
from caw.io.progress import Bar
from caw.models import load_model
from caw.models.facts import vocabulary_size
from caw.models.fingerprint import state_sha256
from caw.policies import CapacityPolicy, Policy
from caw.settings import Settings
from caw.watermarks import Signature
from caw_lab.evaluation import provenance
from caw_lab.evaluation.config import CellPlan, Config, choose_plans
from caw_lab.evaluation.manifest import planned_manifest
from caw_lab.evaluation.metrics.scoring import Scorer
from caw_lab.evaluation.preflight import check_cells, require_for
from caw_lab.evaluation.results import Results
from caw_lab.evaluation.store import Cell, Generation, Store
from caw_lab.evaluation.tasks import Question, Task

RESULTS_EVERY = 300.0  # seconds; results of many cells take seconds to resample


@dataclass(frozen=True)
class Shard:
    """The questions of this process: those whose number is `rank` modulo `world_size`."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be in [0, world size), got rank {self.rank} of {self.world_size}; number processes from 0"
            )

    def device(self) -> str | None:
        """Return a GPU of its own for each of several processes on a machine; None = the default device."""
        if self.world_size == 1 or not torch.cuda.is_available():
            return None
        return f"cuda:{int(os.environ.get('LOCAL_RANK', self.rank)) % torch.cuda.device_count()}"

    def of(self, questions: Sequence[Question]) -> list[Question]:
        return list(questions[self.rank :: self.world_size])


@dataclass
class Loaded:
    """The model in memory, and the SHA-256 of its weights. prompts: a task, and the cache of its prompts."""

    name: str
    model: Any
    tokenizer: Any
    sha256: str
    prompts: tuple[str, PromptCache] | None = None


@dataclass
class Runner:
    """One process of a run.

    Args:
        config, store: what to do and where it is kept. shard: this process's share.
        limit: maximum questions per cell. only: globs of cells' names; () = all.
        say: called with a line for people when a cell is finished. progress: show a bar with the remaining time.
        command: how the run was started; "" = this process's command line.

    loaded: the model in memory. results_at: when results.json was last written, as `time.monotonic` tells it.
    """

    config: Config
    store: Store
    shard: Shard = field(default_factory=Shard)
    limit: int | None = None
    only: tuple[str, ...] = ()
    say: Callable[[str], None] = print
    progress: bool = True
    command: str = ""
    loaded: Loaded | None = field(default=None, init=False, repr=False)
    results_at: float = field(default=0.0, init=False, repr=False)

    def plan(self) -> list[CellPlan]:
        """Return cells in order. ValueError if `only` leaves none."""
        return choose_plans(self.config.plan(), self.only)

    def questions(self, plan: CellPlan) -> list[Question]:
        """Return the questions of a cell, for all processes."""
        counts = [count for count in (plan.count, self.limit) if count is not None]
        return self.config.tasks[plan.task].questions(min(counts, default=None))

    def todo(self, plan: CellPlan) -> list[Question]:
        """Return this process's questions that have no answer in any file."""
        done = self.store.cell(plan.name).done()
        return [question for question in self.shard.of(self.questions(plan)) if question.id not in done]

    def run(self) -> int:
        """Generate the missing texts; return their number. An interrupt loses nothing that is finished.

        Raises ValueError, before anything is written, if earlier texts do not match the config.
        """
        plans = self.plan()
        check_cells(self.config, self.store, self.config.plan())
        require_for(self.config, plans, models=True)
        left = {plan: len(self.todo(plan)) for plan in _widest(plans)}
        total, made = sum(left.values()), 0
        self.store.write_config(self.config.text)
        with Bar(total, "evaluating", "texts", enabled=self.progress, announced=True) as bar:
            for i, plan in enumerate(plans):
                same = (p for p in plans[i + 1 :] if (p.model, p.task) == (plan.model, plan.task))
                made += self.run_cell(plan, bar, again=any(left.get(p, 0) for p in same if p.name != plan.name))
        return made

    def run_cell(self, plan: CellPlan, bar: Bar, *, again: bool) -> int:
        """Generate the missing texts of one cell; again: whether a later cell has the same prompts."""
        todo = self.todo(plan)
        if not todo:
            return 0
        started, tokens = time.perf_counter(), 0
        loaded = self.load(plan.model)
        mark = self.config.watermark(plan) if plan.watermark else None
        policy = self.config.policy(plan) if plan.watermark else None
        task, cell = self.config.tasks[plan.task], self.store.cell(plan.name)
        cell.begin(self.manifest(plan, loaded, mark, policy))
        run = self.store.keep_run(self.record(loaded, self.config.settings(plan)))
        bar.begin(plan.name)
        with cell.writer(self.shard.rank) as writer:
            todo = self.todo(plan)  # another process may have written some until this one held the file
            prompts = self.prompts(loaded, plan.task, again)
            for result in self.results(plan, todo, loaded, mark, policy, bar, prompts) if todo else ():
                line = asdict(answer_of(todo[result.index], result, task, run))
                writer.write(line)
                tokens += len(result.tokens)
                bar(len(result.tokens))
        self.report(cell, len(todo), tokens, time.perf_counter() - started)
        self.scorer.tokenizers[plan.model] = loaded.tokenizer
        self.scorer.update([plan])
        if time.monotonic() - self.results_at > RESULTS_EVERY:
            self.write_results()
        return len(todo)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.config, self.store)

    def score(self, *, again: bool = False) -> None:
        """Score every cell with texts, write results.json; `again` replaces scores. ValueError for another config."""
        plans = self.plan()
        check_cells(self.config, self.store, self.config.plan())
        require_for(self.config, plans)
        self.scorer.update(plans, again=again)
        if self.config.text:  # attacks and perplexities read it from the run's folder
            self.store.write_config(self.config.text)
        self.write_results()

    def write_results(self) -> None:
        """Compute results.json from the current contents of the store, for all cells of the config."""
        with self.store.results_lock():
            self.store.write_results(Results(self.scorer, self.config.plan()).as_dict())
        self.results_at = time.monotonic()

    def results(
        self,
        plan: CellPlan,
        todo: Sequence[Question],
        loaded: Loaded,
        mark: Signature | None,
        policy: Policy | None,
        bar: Bar,
        prompts: PromptCache | None,
    ) -> Iterator[GenerationResult]:
        """Generate answers to all questions in one call, which reads the shared examples of their prompts once."""
        stop = self.config.tasks[plan.task].stop or None
        settings = replace(self.config.settings(plan), stop=stop, return_trace=mark is not None)
        weights = self.config.tested_with(plan)
        detector = Detector(loaded.tokenizer, mark, weights=weights) if mark is not None and weights else None
        model, tokenizer = loaded.model, loaded.tokenizer
        accepted = accepted_for(model, tokenizer, [question.prompt for question in todo], settings)
        return stream_results(
            model, tokenizer, accepted, mark, policy, settings, report=bar.note, prompt_cache=prompts, detector=detector
        )

    def prompts(self, loaded: Loaded, task: str, again: bool) -> PromptCache | None:
        """Return the prompt cache of this task; kept as long as a later cell needs it."""
        name, kept = loaded.prompts or ("", None)
        if name != task or kept is None:
            kept = PromptCache(0.25 / self.shard.world_size) if again else None  # processes may share a machine
        loaded.prompts = (task, kept) if again and kept is not None else None
        return kept

    def load(self, name: str) -> Loaded:
        """Return the model of that name; loaded only if it is not in memory."""
        if self.loaded is None or self.loaded.name != name:
            self.loaded = None  # frees the other one first
            spec = self.config.models[name]
            model, tokenizer = load_model(
                spec.source, device=spec.place(self.shard.device()), dtype=spec.dtype, quantization=spec.quantization
            )
            self.loaded = Loaded(name, model, tokenizer, provenance.weights_sha256(spec.source, model))
        return self.loaded

    def manifest(self, plan: CellPlan, loaded: Loaded, mark: Signature | None, policy: Policy | None) -> dict[str, Any]:
        """Return what every text of a cell depends on, without a key; all its processes and runs agree on it."""
        made = planned_manifest(self.config, plan)
        made |= {"model_sha256": loaded.sha256, "dtype": str(loaded.model.dtype).removeprefix("torch.")}
        if mark is not None and mark.foreign:  # its lists cover the vocabulary; the detector must know how large it is
            made["watermark_parameters"]["vocab_size"] = vocabulary_size(loaded.model)
        if isinstance(policy, CapacityPolicy):
            made["evaluator_sha256"] = state_sha256(policy.network.state_dict())
        return made

    def record(self, loaded: Loaded, settings: Settings) -> dict[str, Any]:
        """Return the provenance of this process's lines. `config` is the id of its stored config."""
        return provenance.run_record(
            self.command,
            batch_size=settings.batch_size,
            device=str(loaded.model.device),
            config=self.store.write_config(self.config.text),
            seed=self.config.seed,
            keys_from="CAW_KEY" if os.environ.get("CAW_KEY") else "seed",
        )

    def report(self, cell: Cell, new: int, tokens: int, seconds: float) -> None:
        made = cell.read()
        right = [g.correct for g in made if g.correct is not None]
        errors = sum(bool(g.error) for g in made)
        grades = f"{sum(len(g.tokens) for g in made) / len(made):.0f} tokens each"
        if right:
            grades = f"accuracy {sum(right) / len(right):.3f}, {sum(g.answer is None for g in made)} unparsed"
        self.say(
            f"{cell.name}: {len(made)} texts, {grades}{f', {errors} prompts not continued' * bool(errors)}; "
            f"{new} new in {seconds:.0f} s, "
            f"{tokens / max(seconds, 1e-9):.1f} tokens/s"
        )


def _widest(plans: Sequence[CellPlan]) -> list[CellPlan]:
    """Return the last entry for each cell, which has the most questions."""
    return list({plan.name: plan for plan in plans}.values())


def answer_of(question: Question, result: GenerationResult, task: Task, run: str) -> Generation:
    """Return the line of one finished sequence."""
    graded, trace = task.grade(result.text, question.gold), result.trace
    length = len(trace) if trace is not None else 0
    marked = sum(s > 0 for s in trace.strength) / length if trace is not None and length else 0.0
    changed = sum(c > 0 for c in trace.choice) / length if trace is not None and length else 0.0
    receipt = result.receipt
    return Generation(
        question.id, tuple(result.tokens), result.text, result.finish_reason, graded.answer, graded.correct,
        graded.text, round(marked, 6), round(changed, 6), graded.extraction, run, result.error,
        *((receipt.attempts, receipt.detected) if receipt is not None else ()),
    )  # fmt: skip
