"""Config of an evaluation, by name. Keys are derived from `seed` or CAW_KEY, and never written to a file."""

import fnmatch
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caw.checks import require_number
from caw.defaults import THETA
from caw.detectable.efforts import refuse_idle
from caw.detectable.selection import Agreement, Consensus
from caw.evaluator import default_beta
from caw.models.quantization import usual_device
from caw.policies import Policy
from caw.policies.names import POLICIES, make_policy
from caw.policies.target import read_target
from caw.settings import Settings
from caw.watermarks import Signature
from caw.watermarks.keys import key_text
from caw.watermarks.names import WATERMARKS, watermark_class
from caw_lab.evaluation.tasks import Task

NONE, ANY = "none", "*"
WEIGHTS = "weights"  # of a policy's `found`
BY_ANSWER = {"answer": Consensus, "unmarked-answer": Agreement}  # its `select`, beside those of `caw.Settings`
BATCH = 8  # sequences decoded at once unless the config says otherwise


@dataclass(frozen=True)
class ModelSpec:
    """A model of the config.

    source, dtype, device: as in `caw.load_model`. evaluator: for capacity policies, by name or file.
    weights: a table of weights per token, by name or file; every text is tested with it too, see `Score.p_weighted`.
    quantized: `weights` of `caw.load_model`; those of a file put the model on a CPU.
    """

    source: str
    evaluator: str | None = None
    weights: str | None = None
    dtype: str = "auto"
    device: str | None = None
    quantization: str | None = None

    def place(self, usual: str | None) -> str | None:
        """Return its device; `usual` if it may run anywhere."""
        return usual_device(self.quantization, self.device) or usual


@dataclass(frozen=True)
class WatermarkSpec:
    """kind: one of WATERMARKS. parameters: its arguments without the key."""

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def build(self, key: int, overrides: Mapping[str, Any] | None = None) -> Signature:
        return watermark_class(self.kind)(key=key, **{**self.parameters, **(overrides or {})})


@dataclass(frozen=True)
class PolicySpec:
    """kind: one of POLICIES. parameters: its own and the watermark's strength. by_watermark: those of one watermark.

    found: how its texts are tested and made again, instead of what the config's `generation` says; settings of
    `caw.Settings` from detectable_at on. `select: answer` and `unmarked-answer` are `Consensus` and `Agreement` about
    the answers that the task reads; `weights: true` tests with the model's weights per token.
    """

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)
    by_watermark: dict[str, dict[str, Any]] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    def for_watermark(self, name: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (parameters, strength) for this watermark. ValueError if only others' strengths are set."""
        own = self.by_watermark.get(name, {})
        merged = {**self.parameters, **own}
        known, strengths = POLICIES[self.kind].parameters, WATERMARKS[kind].strength
        policy = {k: v for k, v in merged.items() if k in known}
        strength = {k: v for k, v in merged.items() if k in strengths}
        sets_others = any(k not in known for k in merged) or any(
            k not in known for other in self.by_watermark.values() for k in other
        )
        if sets_others and not strength and strengths:
            raise ValueError(
                f"sets the strength of other watermarks, but not of {name}; add `{name}: {{{strengths[0]}: ...}}`"
            )
        return policy, strength

    def build(self, parameters: Mapping[str, Any], evaluator: str | None) -> Policy:
        default = {"evaluator": evaluator} if self.kind == "capacity" else {}
        return make_policy(self.kind, **{**default, **parameters})


@dataclass(frozen=True)
class RunSpec:
    """An entry of `runs`.

    model, task, watermark, policy: a name, or "*" for all; watermark "none" means unmarked texts only. keys: how many,
    or which; None = the config's. count: only the first this many questions; None = all.
    """

    model: str = ANY
    task: str = ANY
    watermark: str = ANY
    policy: str = ANY
    keys: int | tuple[int, ...] | None = None
    count: int | None = None


@dataclass(frozen=True)
class CellPlan:
    """A model, task, watermark, policy and key number, three None if unmarked. count: questions, None = all."""

    model: str
    task: str
    watermark: str | None = None
    policy: str | None = None
    key: int | None = None
    count: int | None = None

    @property
    def name(self) -> str:
        if self.watermark is None:
            return f"{self.model}.{self.task}.{NONE}"
        return f"{self.model}.{self.task}.{self.watermark}.{self.policy}.{self.key}"


@dataclass(frozen=True)
class Config:
    """A whole evaluation; `config_file.read_config` makes one from a YAML file.

    output: the run's folder. models, tasks, watermarks, policies: by name. keys: how many for each watermark, unless an
    entry of `runs` says otherwise. runs: which combinations to run. generation: settings of every text whose task and
    policy say nothing else. seed: keys are derived from it where CAW_KEY is not set. text: the file's own text, ""
    without one.
    """

    output: str
    models: dict[str, ModelSpec]
    tasks: dict[str, Task]
    watermarks: dict[str, WatermarkSpec]
    policies: dict[str, PolicySpec]
    keys: int = 1
    runs: tuple[RunSpec, ...] = (RunSpec(),)
    generation: Settings = field(default_factory=lambda: Settings(batch_size=BATCH))
    seed: int = 0
    text: str = field(default="", repr=False, compare=False)

    def key(self, number: int) -> int:
        """Return the key with this number, below 2^64, secret only if of CAW_KEY (ValueError if blank or not UTF-8)."""
        secret = os.environ.get("CAW_KEY")
        root = f"key:{key_text(secret)}" if secret else f"seed:{self.seed}"
        return int.from_bytes(hashlib.sha256(f"caw/evaluate/{root}/{number}".encode()).digest()[:8], "big")

    def watermark(self, plan: CellPlan) -> Signature:
        """Return the watermark of a marked cell, with the strength that its policy sets."""
        assert plan.watermark is not None and plan.policy is not None and plan.key is not None
        spec = self.watermarks[plan.watermark]
        _, strength = self.policies[plan.policy].for_watermark(plan.watermark, spec.kind)
        return spec.build(self.key(plan.key), strength)

    def policy_parameters(self, plan: CellPlan) -> dict[str, Any]:
        """Return a marked cell's policy parameters, a capacity policy's complete, so that defaults may change."""
        assert plan.watermark is not None and plan.policy is not None
        spec = self.policies[plan.policy]
        parameters, _ = spec.for_watermark(plan.watermark, self.watermarks[plan.watermark].kind)
        if spec.kind == "capacity":
            parameters = {"theta": THETA, "evaluator": self.models[plan.model].evaluator, **parameters}
            if "beta" not in parameters and parameters["evaluator"]:
                parameters["beta"] = default_beta(parameters["evaluator"])
        return parameters

    def policy(self, plan: CellPlan) -> Policy:
        """Return the policy of a marked cell. Raises what its class raises, e.g. for a missing evaluator."""
        assert plan.policy is not None
        parameters = self.policy_parameters(plan)
        return self.policies[plan.policy].build(parameters, parameters.get("evaluator"))

    def settings(self, plan: CellPlan) -> Settings:
        """Return a cell's settings: the config's, then its task's; unmarked texts are not tested. Type-, ValueError."""
        task = self.tasks[plan.task]
        asked = replace(self.generation, **task.generation)
        if plan.policy is None:
            return asked.untested()
        given = {name: value for name, value in self.policies[plan.policy].found.items() if name != WEIGHTS}
        select = given.get("select")
        if isinstance(select, str) and select in BY_ANSWER:
            if not task.graded:
                raise ValueError(f"select must not be {select}, task {plan.task} has no answers; leave it out")
            given["select"] = BY_ANSWER[select](lambda text: task.grade(text, "").answer)
        settings = replace(asked, **given)
        refuse_idle(settings)
        return settings

    def tested_with(self, plan: CellPlan) -> str | None:
        """Return the token weights with which a cell's texts are tested during generation; None = none."""
        weighted = plan.policy is not None and self.policies[plan.policy].found.get(WEIGHTS)
        return self.models[plan.model].weights if weighted else None

    def plan(self) -> list[CellPlan]:
        """Cells in the order of `runs`; unmarked texts come before the first marked ones they are compared with.

        A cell is listed again where a later entry asks for more of its questions.
        """
        planned: list[CellPlan] = []
        counts: dict[str, float] = {}

        def add(cell: CellPlan) -> None:
            count = float("inf") if cell.count is None else cell.count
            if count > counts.get(cell.name, 0):
                counts[cell.name] = count
                planned.append(cell)

        for run in self.runs:
            watermarks = [] if run.watermark == NONE else _select(run.watermark, self.watermarks)
            for model in _select(run.model, self.models):
                for task in _select(run.task, self.tasks):
                    add(CellPlan(model, task, count=run.count))
                    for watermark in watermarks:
                        for key in self._key_numbers(run):
                            for policy in _select(run.policy, self.policies):
                                add(CellPlan(model, task, watermark, policy, key, run.count))
        return planned

    def _key_numbers(self, run: RunSpec) -> Sequence[int]:
        if run.keys is None:
            return range(self.keys)
        return range(run.keys) if isinstance(run.keys, int) else run.keys

    def check(self) -> None:
        """Build every planned watermark and check every policy. ValueError naming the invalid entry."""
        for plan in self.plan():
            if plan.policy is None:
                self._check_task(plan)
                continue
            try:
                parameters, spec = self.policy_parameters(plan), self.policies[plan.policy]
                mark = self.watermark(plan).part_for(self.settings(plan))
                if spec.found.get(WEIGHTS) and self.models[plan.model].weights is None:
                    raise ValueError(f"found.weights needs the weights of model {plan.model}, got none; name its table")
                if spec.kind == "capacity":
                    if not parameters.get("evaluator"):
                        raise ValueError(f"requires an evaluator for model {plan.model}, got none; name one")
                    require_number("theta", parameters["theta"], 0, 1, closed=True)
                    require_number("beta", parameters["beta"], 0, 100, closed=True)
                    read_target(parameters.get("target"))
                    mark.check_strength(float(parameters["beta"]))
                else:
                    mark.check_strength(spec.build(parameters, None).max_strength)
            except (ValueError, TypeError) as error:
                raise ValueError(f"policy {plan.policy} with watermark {plan.watermark}: {error}") from None

    def _check_task(self, plan: CellPlan) -> None:
        try:
            self.settings(plan)
        except (ValueError, TypeError) as error:  # begins with the setting's name
            raise ValueError(f"tasks.{plan.task}.generation.{error}") from None


def _select(name: str, known: Mapping[str, Any]) -> list[str]:
    return list(known) if name == ANY else [name]


def choose_plans(plans: Sequence[CellPlan], only: Sequence[str]) -> list[CellPlan]:
    """The cells whose name matches one of the globs; all of them for no globs. Raises ValueError if none is left."""
    chosen = [plan for plan in plans if not only or any(fnmatch.fnmatchcase(plan.name, glob) for glob in only)]
    if not chosen:
        names = ", ".join(list(dict.fromkeys(plan.name for plan in plans))[:4])
        raise ValueError(f"--only must match a cell, {' '.join(only)} matches none of {names}, ...")
    return chosen
