"""The YAML file of `caw evaluate run`: models, tasks, watermarks, policies, and which of their combinations to run.

Every name is checked before a model is loaded; unknown ones are answered with the known ones. Keys of watermarks are
derived from `seed`, or from the environment variable CAW_KEY, and never written down.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from caw.defaults import THETA
from caw.evaluation.generation_spec import GenerationSpec
from caw.evaluation.old_names import kind_now, names_now
from caw.evaluation.tasks import KINDS, JsonlTask, Task
from caw.evaluator import default_beta
from caw.io.inputs import read_text
from caw.io.unicode import is_unicode
from caw.policies import CapacityPolicy, EntropyThreshold, FixedStrength, LogitDeltaThreshold, Policy
from caw.requirements import require
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark
from caw.watermarks.base import require_int, require_number

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
NONE, ANY = "none", "*"

WATERMARKS: dict[str, type[Watermark]] = {"kgw": KGW, "unigram": Unigram, "exp": EXP, "synthid": SynthID}
# what a policy may set anew, because detection does not read it
STRENGTHS = {"kgw": ("delta",), "unigram": ("delta",), "exp": ("top_k",), "synthid": ()}
# parameters in the file -> arguments of the policy
POLICIES: dict[str, tuple[type[Any], dict[str, str]]] = {
    "fixed": (FixedStrength, {"strength": "value"}),
    "entropy": (EntropyThreshold, {"nats": "nats", "strength": "value"}),
    "logit-delta": (LogitDeltaThreshold, {"gap": "gap", "strength": "value"}),
    "capacity": (CapacityPolicy, {"theta": "theta", "beta": "beta", "evaluator": "evaluator"}),
}
TASK_FIELDS = {"reference": "reference_field", "grade": "grade_by", "stop": "stops"}  # names in the file


@dataclass(frozen=True)
class ModelSpec:
    """source: what `caw.load_model` takes. evaluator: of capacity policies, by name or file. dtype, device.
    weights: a table of weights per token for a second reading of every text, by name or file."""

    source: str
    evaluator: str | None = None
    weights: str | None = None
    dtype: str = "auto"
    device: str | None = None


@dataclass(frozen=True)
class WatermarkSpec:
    """kind: of WATERMARKS. parameters: its arguments but the key."""

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def build(self, key: int, overrides: Mapping[str, Any] | None = None) -> Watermark:
        return WATERMARKS[self.kind](key=key, **{**self.parameters, **(overrides or {})})


@dataclass(frozen=True)
class PolicySpec:
    """kind: of POLICIES. parameters: its own and the watermark's strength. by_watermark: the same for one of them."""

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)
    by_watermark: dict[str, dict[str, Any]] = field(default_factory=dict)

    def for_watermark(self, name: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the policy's parameters, the watermark's strength) where it is used with this watermark.

        Raises ValueError if the policy sets the strength of others but not of this one: soft and hard would be alike.
        """
        own = self.by_watermark.get(name, {})
        merged = {**self.parameters, **own}
        known = POLICIES[self.kind][1]
        policy = {k: v for k, v in merged.items() if k in known}
        strength = {k: v for k, v in merged.items() if k in STRENGTHS[kind]}
        sets_others = any(k not in known for k in merged) or any(
            k not in known for other in self.by_watermark.values() for k in other
        )
        if sets_others and not strength and STRENGTHS[kind]:
            raise ValueError(
                f"sets the strength of other watermarks, but not of {name}; add `{name}: {{{STRENGTHS[kind][0]}: ...}}`"
            )
        return policy, strength

    def build(self, parameters: Mapping[str, Any], evaluator: str | None) -> Policy:
        kind, names = POLICIES[self.kind]
        arguments = {names[k]: v for k, v in parameters.items()}
        if kind is CapacityPolicy:
            arguments.setdefault("evaluator", evaluator)
        policy = kind(**arguments)
        assert isinstance(policy, Policy)
        return policy


@dataclass(frozen=True)
class RunSpec:
    """Names, or "*" for all. keys: how many, or which. count: at most so many questions (the first ones)."""

    model: str = ANY
    task: str = ANY
    watermark: str = ANY
    policy: str = ANY
    keys: int | tuple[int, ...] | None = None
    count: int | None = None


@dataclass(frozen=True)
class CellPlan:
    """One cell to run. watermark, policy, key are None for unmarked texts. count: questions, None = all of the task."""

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
    """A whole evaluation; see `read_config` for where it comes from."""

    output: str
    models: dict[str, ModelSpec]
    tasks: dict[str, Task]
    watermarks: dict[str, WatermarkSpec]
    policies: dict[str, PolicySpec]
    keys: int = 1
    runs: tuple[RunSpec, ...] = (RunSpec(),)
    generation: GenerationSpec = field(default_factory=GenerationSpec)
    seed: int = 0
    text: str = field(default="", repr=False, compare=False)

    def key(self, number: int) -> int:
        """The secret key of that number, below 2^64: of CAW_KEY where it is set, else of `seed` (then anyone's)."""
        secret = os.environ.get("CAW_KEY")
        if secret and not is_unicode(secret):  # Python's own error would show a character of it
            raise ValueError("CAW_KEY must be UTF-8 text, got other bytes; set it anew")
        root = f"key:{secret}" if secret else f"seed:{self.seed}"
        return int.from_bytes(hashlib.sha256(f"caw/evaluate/{root}/{number}".encode()).digest()[:8], "big")

    def watermark(self, plan: CellPlan) -> Watermark:
        """The watermark of a marked cell, at its policy's strength."""
        assert plan.watermark is not None and plan.policy is not None and plan.key is not None
        spec = self.watermarks[plan.watermark]
        _, strength = self.policies[plan.policy].for_watermark(plan.watermark, spec.kind)
        return spec.build(self.key(plan.key), strength)

    def policy_parameters(self, plan: CellPlan) -> dict[str, Any]:
        assert plan.watermark is not None and plan.policy is not None
        spec = self.policies[plan.policy]
        parameters, _ = spec.for_watermark(plan.watermark, self.watermarks[plan.watermark].kind)
        if spec.kind == "capacity":  # in full, for a cell to say how its texts were made whatever the defaults become
            parameters = {"theta": THETA, "evaluator": self.models[plan.model].evaluator, **parameters}
            if "beta" not in parameters and parameters["evaluator"]:
                parameters["beta"] = default_beta(parameters["evaluator"])
        return parameters

    def policy(self, plan: CellPlan) -> Policy:
        """The policy of a marked cell. Raises what the policy raises, e.g. for evaluators that do not exist."""
        assert plan.policy is not None
        parameters = self.policy_parameters(plan)
        return self.policies[plan.policy].build(parameters, parameters.get("evaluator"))

    def plan(self) -> list[CellPlan]:
        """Cells in the order of `runs`, each unmarked cell before the first that is compared with it.

        A cell comes again where a later entry asks for more of its questions.
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
        """Build every planned watermark and policy once; raises ValueError naming the entry that is wrong."""
        for plan in self.plan():
            if plan.policy is None:
                continue
            try:
                mark, parameters = self.watermark(plan), self.policy_parameters(plan)
                spec = self.policies[plan.policy]
                if spec.kind == "capacity":
                    if not parameters.get("evaluator"):
                        raise ValueError(f"needs an evaluator for model {plan.model}, got none; name its weights")
                    require_number("theta", parameters["theta"], 0, 1, closed=True)
                    require_number("beta", parameters["beta"], 0, 100, closed=True)
                    mark.check_strength(float(parameters["beta"]))
                else:
                    mark.check_strength(spec.build(parameters, None).max_strength)
            except (ValueError, TypeError) as error:
                raise ValueError(f"policy {plan.policy} with watermark {plan.watermark}: {error}") from None


def _select(name: str, known: Mapping[str, Any]) -> list[str]:
    return list(known) if name == ANY else [name]


def read_config(path: str | Path) -> Config:
    """The config of a YAML file; ImportError without pyyaml, OSError or ValueError for a file that is none."""
    return parse_config(read_text(path, translate=True), str(path))


def parse_config(text: str, where: str = "config") -> Config:
    """The config in YAML text; `where` names it in messages. See `read_config`."""
    require("pyyaml", "reading a config")
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{where} must be YAML, found {problem}; repair that place") from None
    config = config_of(value, where)
    config.check()
    return replace(config, text=text)


def config_of(value: Any, where: str = "config") -> Config:
    """The config that a mapping describes; names are checked, parameters of watermarks and policies by `Config.check`.

    Raises ValueError.
    """
    top = _mapping(value, where)
    _only(top, where, [f.name for f in fields(Config) if f.name != "text"])
    for name in ("output", "models", "tasks"):
        if name not in top:
            raise ValueError(f"{where} must have {name}, found {', '.join(top) or 'nothing'}; add it")
    models = {n: _record(ModelSpec, v, f"models.{n}") for n, v in _named(top, "models").items()}
    tasks = {n: _task(n, v) for n, v in _named(top, "tasks").items()}
    marks = {n: _watermark(v, f"watermarks.{n}") for n, v in _named(top, "watermarks").items()}
    policies = {n: _policy(v, f"policies.{n}", marks) for n, v in _named(top, "policies").items()}
    for group in (marks, policies):
        if NONE in group:
            raise ValueError(f"the name {NONE} means unmarked texts, found it as a name of something else; rename it")
    runs = top.get("runs", "all")
    if runs != "all" and not isinstance(runs, list):
        raise ValueError(f"runs must be all or a list, got {type(runs).__name__}; write a list of entries")
    require_int("keys", top.get("keys", 1), 1, 10000)
    require_int("seed", top.get("seed", 0), 0, (1 << 64) - 1)
    known = {"model": models, "task": tasks, "watermark": {**marks, NONE: None}, "policy": policies}
    return Config(
        str(top["output"]), models, tasks, marks, policies, top.get("keys", 1),
        (RunSpec(),) if runs == "all" else tuple(_run(v, f"runs[{i}]", known) for i, v in enumerate(runs)),
        _record(GenerationSpec, top.get("generation") or {}, "generation"), top.get("seed", 0),
    )  # fmt: skip


def _named(top: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    entries = _mapping(top.get(name) or {}, name)
    for entry in entries:
        if not NAME.fullmatch(entry):
            raise ValueError(f"a name in {name} must be letters, digits and . _ + -, got {entry!r}; rename it")
    return {entry: _mapping(value or {}, f"{name}.{entry}") for entry, value in entries.items()}


def _task(name: str, value: dict[str, Any]) -> Task:
    where = f"tasks.{name}"
    kind = value.pop("kind", "mmlu" if name.startswith("mmlu-") else name)
    if kind not in KINDS:
        raise ValueError(
            f"{where}.kind must be one of {', '.join(KINDS)}, got {kind!r}; gsm8k and mmlu-SUBJECT have one"
        )
    to_file = {argument: shown for shown, argument in TASK_FIELDS.items()}
    names = {to_file.get(f.name, f.name): f.name for f in fields(KINDS[kind]) if f.name != "name"}
    if KINDS[kind] is JsonlTask:
        names = {k: v for k, v in names.items() if k not in ("data", "split", "shots", "prompt")}
    _only(value, where, ["kind", *names])
    arguments = {names[k]: v for k, v in value.items()}
    for text in ("data", "split", "prompt", "path", "subject"):
        if arguments.get(text) is not None and not isinstance(arguments[text], str):
            raise ValueError(f"{where}.{text} must be text, got {arguments[text]!r}; put it in quotes")
    if "stops" in arguments:
        stops = arguments["stops"]
        arguments["stops"] = (stops,) if isinstance(stops, str) else tuple(stops)
    return KINDS[kind](name=name, **arguments)


def _watermark(value: dict[str, Any], where: str) -> WatermarkSpec:
    kind = _kind(value, where, WATERMARKS)
    names = [f.name for f in fields(WATERMARKS[kind]) if f.init and f.name != "key"]
    parameters = {k: v for k, v in value.items() if k != "kind"}
    if "key" in parameters:
        raise ValueError(f"{where} must not hold a key, which would end up in files; set CAW_KEY, or `seed`")
    _only(parameters, where, names)
    return WatermarkSpec(kind, parameters)


def _policy(value: dict[str, Any], where: str, marks: Mapping[str, WatermarkSpec]) -> PolicySpec:
    if "kind" in value:
        value = {**value, "kind": kind_now(value["kind"])}
    kind = _kind(value, where, POLICIES)
    value = names_now(kind, value, where)
    own = list(POLICIES[kind][1])
    strengths = sorted({name for mark in marks.values() for name in STRENGTHS[mark.kind]})
    by_watermark = {}
    for name in marks:
        if isinstance(value.get(name), Mapping):
            by_watermark[name] = names_now(kind, value[name], f"{where}.{name}")
            _only(by_watermark[name], f"{where}.{name}", [*own, *STRENGTHS[marks[name].kind]])
    parameters = {k: v for k, v in value.items() if k != "kind" and k not in by_watermark}
    _only(parameters, where, [*own, *strengths, *marks])
    return PolicySpec(kind, parameters, by_watermark)


def _kind(value: Mapping[str, Any], where: str, known: Mapping[str, Any]) -> str:
    kind = value.get("kind", kind_now(where.split(".", 1)[1]))
    if kind not in known:
        raise ValueError(f"{where}.kind must be one of {', '.join(known)}, got {kind!r}; choose one of these")
    return str(kind)


def _run(value: Any, where: str, known: Mapping[str, Mapping[str, Any]]) -> RunSpec:
    run: RunSpec = _record(RunSpec, value, where)
    for part, names in known.items():
        given = getattr(run, part)
        if given != ANY and given not in names:
            raise ValueError(
                f"{where}.{part} must be one of {', '.join(names) or 'none'} or *, got {given!r}; choose one"
            )
    keys = run.keys
    numbers = [] if keys is None else [keys] if isinstance(keys, int) else list(keys)
    for number in numbers:
        require_int(f"{where}.keys", number, 1 if isinstance(keys, int) else 0, 10000)
    if run.count is not None:
        require_int(f"{where}.count", run.count, 1, 1 << 31)
    return replace(run, keys=tuple(numbers)) if isinstance(keys, list) else run


def _record(kind: type[Any], value: Any, where: str) -> Any:
    given = _mapping(value, where)
    _only(given, where, [f.name for f in fields(kind)])
    try:
        return kind(**given)
    except TypeError as error:
        missing = [f.name for f in fields(kind) if f.name not in given]
        raise ValueError(f"{where} must have {missing[0]}, found {', '.join(given) or 'nothing'} ({error})") from None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or any(not isinstance(name, str) for name in value):
        raise ValueError(f"{where} must be a mapping of names, found {type(value).__name__}; write `name: value` lines")
    return dict(value)


def _only(given: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where} has an unknown field {name!r}; known: {', '.join(known)}")
