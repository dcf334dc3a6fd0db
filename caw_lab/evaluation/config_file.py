"""The YAML file of `caw evaluate run`. Names are checked before a model is loaded; an error lists the known."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from caw.checks import require_int
from caw.detectable.efforts import refuse_idle
from caw.io.inputs import read_text
from caw.policies.names import POLICIES
from caw.requirements import require
from caw.settings import Sampling, Settings
from caw.watermarks.names import WATERMARKS, watermark_arguments
from caw_lab.evaluation.config import (
    ANY,
    BATCH,
    NONE,
    WEIGHTS,
    Config,
    ModelSpec,
    PolicySpec,
    RunSpec,
    WatermarkSpec,
)
from caw_lab.evaluation.tasks import KINDS, PromptsTask, Task

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
TASK_FIELDS = {"reference": "reference_field", "grade": "grade_by", "stop": "stops"}  # in the file -> in the class
FOUND = "found"  # of a policy: how its texts are tested and made again
OF_TEST = ("detectable_at", "max_attempts", "best_of", "select", "edits", "guard")
# the fields of `Settings` that a config may set; how the tree is run and traced is the evaluation's own choice
GENERATION = (*(each.name for each in fields(Sampling)), "batch_size", "chat", "mark_eos", *OF_TEST)
OF_TASK = tuple(name for name in GENERATION if name != "batch_size")


def read_config(path: str | Path) -> Config:
    """Read the config in a YAML file. ImportError without pyyaml, OSError, or ValueError for invalid content."""
    return parse_config(read_text(path, translate=True), str(path))


def parse_config(text: str, where: str = "config") -> Config:
    """Parse a config from YAML text; `where` names it in messages. Raises as `read_config`."""
    require("pyyaml", "reading a config")
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{where} is not valid YAML: {problem}; fix it") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply; reduce the nesting") from None
    config = config_of(value, where)
    config.check()
    return replace(config, text=text)


def config_of(value: Any, where: str = "config") -> Config:
    """Build a mapping's config. ValueError for unknown and missing names; `Config.check` checks parameters."""
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
            raise ValueError(f"the name {NONE} is reserved for unmarked texts; rename the entry")
    runs = top.get("runs", "all")
    if runs != "all" and not isinstance(runs, list):
        raise ValueError(f"runs must be all or a list, got {type(runs).__name__}; write a list of entries")
    require_int("keys", top.get("keys", 1), 1, 10000)
    require_int("seed", top.get("seed", 0), 0, (1 << 64) - 1)
    known = {"model": models, "task": tasks, "watermark": {**marks, NONE: None}, "policy": policies}
    return Config(
        str(top["output"]), models, tasks, marks, policies, top.get("keys", 1),
        (RunSpec(),) if runs == "all" else tuple(_run(v, f"runs[{i}]", known) for i, v in enumerate(runs)),
        _generation(top.get("generation") or {}), top.get("seed", 0),
    )  # fmt: skip


def _generation(value: Any) -> Settings:
    given = _mapping(value, "generation")
    _only(given, "generation", GENERATION)
    try:
        settings = Settings(**{"batch_size": BATCH, **given})
        refuse_idle(settings)
        return settings
    except (TypeError, ValueError) as error:  # begins with the setting's name
        raise ValueError(f"generation.{error}") from None


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
    if issubclass(KINDS[kind], PromptsTask):
        names = {k: v for k, v in names.items() if k not in ("data", "split", "shots", "prompt")}
    _only(value, where, ["kind", *names])
    arguments = {names[k]: v for k, v in value.items()}
    for text in ("data", "split", "prompt", "path", "subject"):
        if arguments.get(text) is not None and not isinstance(arguments[text], str):
            raise ValueError(f"{where}.{text} must be text, got {arguments[text]!r}; put it in quotes")
    if "generation" in arguments:
        arguments["generation"] = _mapping(value["generation"], f"{where}.generation")
        _only(arguments["generation"], f"{where}.generation", OF_TASK)
    if "stops" in arguments:
        stops = arguments["stops"]
        arguments["stops"] = (stops,) if isinstance(stops, str) else tuple(stops)
    return KINDS[kind](name=name, **arguments)


def _watermark(value: dict[str, Any], where: str) -> WatermarkSpec:
    kind = _kind(value, where, WATERMARKS)
    parameters = {k: v for k, v in value.items() if k != "kind"}
    if "key" in parameters:
        raise ValueError(
            f"{where} must not contain a key, because configs are copied to results; set CAW_KEY, or `seed`"
        )
    _only(parameters, where, watermark_arguments(kind))
    return WatermarkSpec(kind, parameters)


def _policy(value: dict[str, Any], where: str, marks: Mapping[str, WatermarkSpec]) -> PolicySpec:
    kind = _kind(value, where, POLICIES)
    own = list(POLICIES[kind].parameters)
    strengths = sorted({name for mark in marks.values() for name in WATERMARKS[mark.kind].strength})
    by_watermark = {}
    for name in marks:
        if isinstance(value.get(name), Mapping):
            by_watermark[name] = dict(value[name])
            _only(by_watermark[name], f"{where}.{name}", [*own, *WATERMARKS[marks[name].kind].strength])
    found = _mapping(value.get(FOUND) or {}, f"{where}.{FOUND}")
    _only(found, f"{where}.{FOUND}", [*OF_TEST, WEIGHTS])
    if not isinstance(found.get(WEIGHTS, False), bool):
        raise ValueError(f"{where}.{FOUND}.{WEIGHTS} must be true or false, got {found[WEIGHTS]!r}; leave it out")
    parameters = {k: v for k, v in value.items() if k not in ("kind", FOUND) and k not in by_watermark}
    _only(parameters, where, [*own, *strengths, *marks])
    return PolicySpec(kind, parameters, by_watermark, found)


def _kind(value: Mapping[str, Any], where: str, known: Mapping[str, Any]) -> str:
    kind = value.get("kind", where.split(".", 1)[1])
    if kind not in known:
        raise ValueError(f"{where}.kind must be one of {', '.join(known)}, got {kind!r}; choose one")
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
