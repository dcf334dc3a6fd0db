"""Generation for millions of prompts on a cluster: a Ray Data pool of actors, one per GPU, each with the model in
memory.

Prompts are assigned to shards by a hash of their id. Each shard is one file of lines:

    OUTPUT/shard-00017-of-00256.jsonl     {"id": ..., "text": ..., "tokens": [...], "finish_reason": ..., "key_id": ...}

Each line is written whole as soon as its text is finished, so a restarted run (or an actor that Ray restarts) continues
inside each shard; nothing is lost or generated twice. A complete shard is sorted by id, so in float32 its bytes do not
depend on how often the run was killed. OUTPUT must be a folder that all machines share. `python -c "import caw.ray"`
requires `pip install 'caw-watermark[ray]'`.
"""

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import caw
from caw.decoding.plan_defaults import marks_eos
from caw.decoding.prompts import accepted_for, prompt_digest
from caw.detectable.attempts import UndetectedError
from caw.detectable.efforts import check_early, refuse_idle
from caw.detection import Detector, TokenWeights
from caw.entrance import stream_results
from caw.guard import read_guard
from caw.io.json_files import read_json, read_lines, write_json
from caw.io.jsonl import JsonlWriter
from caw.models import load_model
from caw.models.arithmetic import Arithmetic, model_digest
from caw.models.conversations import is_conversation
from caw.models.fingerprint import state_sha256
from caw.models.quantization import check_name, usual_device
from caw.policies import Policy
from caw.requirements import require
from caw.settings import Settings
from caw.watermarks import Signature

LOG = logging.getLogger("caw.ray")
MADE_BY = "caw.ray"
SHARD = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.jsonl")
SHARD_COLUMN = "caw_shard"
UNLABELLED = ("batch_size", "mark_eos")  # options that texts do not depend on, or that stand apart


@dataclass(frozen=True)
class RayRun:
    """Settings for every actor. The watermark's key travels to the actors inside Ray and is never written to a file.

    output: folder. model, device, dtype: as in `caw.load_model`. options: of `Settings`; no traces by default. weights:
    token weights for the tests. quantization: as in `caw.load_model`; a file's own blocks put the model on a CPU.
    Raises TypeError or ValueError for an unknown or invalid option.
    """

    output: str
    shards: int
    model: str
    watermark: Signature | None = None
    policy: Policy | None = None
    prompt_field: str = "prompt"
    id_field: str = "id"
    device: str | None = None
    dtype: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: TokenWeights | None = None
    quantization: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.options.get("select", ""), str):
            raise ValueError(
                "select must be a name in caw.ray, because runs can be continued, got a function; use a name"
            )
        guard = read_guard(self.options.get("guard"))
        if guard is not None and not isinstance(guard.keeps, str):
            raise ValueError(
                "guard must keep what has a name in caw.ray, because runs can be continued, got a function; use a name"
            )
        if self.quantization is not None:
            check_name(self.quantization, "quantization")  # the rest depends on the actors' machines
        check_early(self.settings, self.watermark, self.policy)  # before anything is started
        if self.weights is not None:
            refuse_idle(self.settings, "weights")
            assert self.watermark is not None
            for part in self.watermark.parts:
                self.weights.check_for(part)

    @property
    def settings(self) -> Settings:
        return Settings(**{"return_trace": False, **self.options})

    @property
    def label(self) -> dict[str, Any]:
        """What the lines of a folder share; stored in it, and compared when the run is restarted."""
        mark, network, settings = self.watermark, getattr(self.policy, "network", None), self.settings
        ends = None if mark is None else marks_eos(settings.mark_eos, mark.part_for(settings), self.policy)
        return {
            "model": Path(self.model).name,
            "quantization": self.quantization,
            "dtype": str(self.dtype),
            "version": caw.__version__,
            "shards": self.shards,
            "watermark": repr(mark),  # repr never shows the key
            "policy": repr(self.policy),
            "key_id": mark.key_id if mark is not None else None,
            "options": {name: repr(value) for name, value in sorted(self.options.items()) if name not in UNLABELLED},
            **({} if ends is None else {"mark_eos": ends}),
            **({"weights": self.weights.digest} if self.weights is not None else {}),
            **({"evaluator_digest": state_sha256(network.state_dict())} if network is not None else {}),
        }


@dataclass(frozen=True)
class Summary:
    """Counts of a run.

    written: texts generated by this run. total: lines in the folder. errors: prompts that this run could not continue.
    repeated: rows skipped because another row of their shard has the same id.
    """

    written: int
    total: int
    errors: int
    repeated: int


def generate_dataset(
    prompts: Any,
    output: str | Path,
    *,
    model: str | Path,
    watermark: Signature | None = None,
    policy: Policy | None = None,
    prompt_field: str = "prompt",
    id_field: str = "id",
    shards: int = 256,
    actors: int | None = None,
    device: str | None = None,
    dtype: str = "auto",
    weights: TokenWeights | str | Path | None = None,
    quantization: str | None = None,
    **options: Any,
) -> Summary:
    """Generate a text for every row of a data set and write it to `output`.

    Args:
        prompts: a ray.data.Dataset, a sequence of mappings, or the path (or paths) of JSONL or Parquet files. A row
            has a unique id (text or an integer) and a prompt: a text, or with chat=True a list of messages.
        output: folder that all machines share; created if missing. An existing run is continued if the model,
            the watermark with its key, the policy, the number of shards and the options are the same, otherwise it is
            an error.
        model, device, dtype: as in `caw.load_model`; every actor loads it once.
        watermark, policy: as in `caw.generate`.
        prompt_field, id_field: names of a row's prompt and id.
        shards: number of output files. One actor holds a shard's prompts in memory; aim for 1,000 to 10,000 prompts
            each.
        actors: number of actors; None = the number of GPUs in the cluster, or one if it has none.
        quantization: as of `caw.load_model`, as --quantization of commands; those of a file put the model on a CPU.
        weights: of texts that are tested, the token weights (or their name or file).
        options: settings of `caw.iter_generate`: max_new_tokens, batch_size, stop, do_sample, ...

    Returns the summary. A prompt that cannot be continued is a line with finish_reason "error".
    Raises ImportError without Ray, ValueError for rows without id or prompt and for a folder of another run.
    """
    ray = _ray()
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= 99999:
        raise ValueError(f"shards must be an integer in [1, 99999], got {shards!r}; give e.g. 256")
    table = weights if weights is None or isinstance(weights, TokenWeights) else TokenWeights.load(weights)
    run = RayRun(
        str(Path(output).resolve()), shards, str(model), watermark, policy, prompt_field, id_field, device, dtype,
        options, table, quantization,
    )  # fmt: skip
    begin(run)
    done = run_shards(ray, dataset_of(prompts), run, actors)
    return Summary(
        sum(row["written"] for row in done), sum(1 for _ in read_output(output)), sum(row["errors"] for row in done),
        sum(row["repeated"] for row in done),
    )  # fmt: skip


def run_shards(ray: Any, data: Any, run: RayRun, actors: int | None) -> list[dict[str, Any]]:
    """Process every shard of a Ray data set with a pool of actors; return their counts."""
    fields, names = (run.id_field, run.prompt_field), data.schema().names
    for name in fields:
        if name not in names:
            raise ValueError(
                f"rows must have a field {name!r}, found {', '.join(names)}; add it or choose another field"
            )
    gpus = int(ray.cluster_resources().get("GPU", 0))
    pool = ray.data.ActorPoolStrategy(size=actors or max(1, gpus))
    keyed = data.select_columns(list(dict.fromkeys(fields))).map_batches(
        add_shards, batch_format="pandas", fn_kwargs={"id_field": run.id_field, "shards": run.shards}
    )
    made = keyed.groupby(SHARD_COLUMN).map_groups(
        ShardActor, fn_constructor_args=(run,), compute=pool, num_gpus=1 if gpus else 0, batch_format="pandas"
    )
    return list(made.take_all())


def dataset_of(prompts: Any) -> Any:
    """Return the Ray data set for any input that `generate_dataset` accepts."""
    data = _ray().data
    if isinstance(prompts, data.Dataset):
        return prompts
    if isinstance(prompts, (str, Path)):
        prompts = [str(prompts)]
    if not isinstance(prompts, Sequence) or not prompts:
        raise ValueError(f"prompts must be a data set, rows or paths, got {type(prompts).__name__}; give a path")
    if isinstance(prompts[0], Mapping):
        return data.from_items([dict(row) for row in prompts])
    paths = [str(path) for path in prompts]
    kinds = {Path(path).suffix for path in paths}
    if kinds == {".parquet"}:
        return data.read_parquet(paths)
    if kinds <= {".jsonl", ".json"}:
        return data.read_json(paths, lines=True)
    raise ValueError(f"prompts must be .jsonl or .parquet files, got {', '.join(sorted(kinds))}; convert them")


def read_output(output: str | Path) -> Iterator[dict[str, Any]]:
    """Read all lines of a run's folder, shard by shard."""
    for path in sorted(Path(output).iterdir()):
        if SHARD.fullmatch(path.name):
            yield from read_lines(path, MADE_BY)


def begin(run: RayRun) -> None:
    """Create the folder, or check that it belongs to this run."""
    path = Path(run.output) / "run.json"
    known = read_json(path)
    if known is None:
        write_json(path, run.label)
        return
    for name, value in run.label.items():
        if known.get(name) != value:
            raise ValueError(
                f"{run.output} was made with {name} {known.get(name)}, this run has {value}; "
                "use the same settings or another folder"
            )


def shard_of(row_id: Any, shards: int) -> int:
    """Return the shard of an id: the same on every machine and in every run."""
    digest = hashlib.sha256(f"caw/shard/{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards


def add_shards(batch: Any, *, id_field: str, shards: int) -> Any:
    """Add a shard column to a pandas frame of rows."""
    batch[SHARD_COLUMN] = [shard_of(row_id, shards) for row_id in batch[id_field]]
    return batch


class ShardActor:
    """Holds a model; called with the rows of one shard, it writes the missing lines of the shard's file."""

    def __init__(self, run: RayRun) -> None:
        self.run = run
        self.model, self.tokenizer = load_model(
            run.model, device=usual_device(run.quantization, run.device), dtype=run.dtype, quantization=run.quantization
        )

    def __call__(self, rows: Any) -> dict[str, list[int]]:
        """Return the counts of one shard. rows: pandas frame of ids, prompts and the shard's number."""
        s = self.run
        number = int(rows[SHARD_COLUMN].iloc[0])
        path = Path(s.output) / f"shard-{number:05}-of-{s.shards:05}.jsonl"
        counts = write_shard(self.model, self.tokenizer, s, path, rows[s.id_field], rows[s.prompt_field])
        return {name: [count] for name, count in {"shard": number, **counts}.items()}


def write_shard(
    model: Any, tokenizer: Any, run: RayRun, path: Path, ids: Sequence[Any], prompts: Sequence[Any]
) -> dict[str, int]:
    """Write the missing lines of a shard's file. Return the numbers of lines written, errors, and repeated ids.

    Waits while another actor, which Ray may have given up on, still writes the shard. Raises ValueError naming the text
    if one that must be detected is not, or if an existing line answers another prompt or has other settings.
    """
    written = errors = 0
    mark, made = run.watermark, _made(model, tokenizer, run)
    rows, repeated = _rows(tokenizer, run, ids, prompts)
    keep = partial(_known, path, rows, made)
    with JsonlWriter(path, resume=True, made_by=MADE_BY, keep=keep, wait=True) as writer:
        done = set(writer.existing)
        names = [name for name in rows if name not in done]
        detector = Detector(tokenizer, mark, weights=run.weights) if run.weights is not None and mark else None
        prompts, occurrences = [rows[name].prompt for name in names], [rows[name].occurrence for name in names]
        accepted = accepted_for(model, tokenizer, prompts, run.settings, occurrences)
        results = stream_results(model, tokenizer, accepted, mark, run.policy, run.settings, detector=detector)
        try:
            for result in results:
                name = names[result.index]
                line = {"id": name, "text": result.text, "tokens": result.tokens}
                line |= {"finish_reason": result.finish_reason, "key_id": mark.key_id if mark is not None else None}
                line |= {} if result.receipt is None else {"receipt": result.receipt.as_dict()}
                line |= {"prompt_digest": rows[name].digest, "made": made}
                writer.write({**line, "error": result.error} if result.error else line)
                written += 1
                errors += bool(result.error)
        except UndetectedError as error:  # its index is among the texts that were still to be made
            raise ValueError(error.of(f"text {names[error.index]!r}")) from None
        # by id: Ray does not hand out rows in the same order every time; a line without id has None
        if unordered := writer.close_in_order(sorted({*done, *rows} - {None}, key=_by_kind)):
            LOG.warning(unordered)
    return {"written": written, "errors": errors, "repeated": repeated}


@dataclass(frozen=True)
class _Row:
    """A prompt. digest: as the model reads it. occurrence: number of equal prompts in the shard before it, by id."""

    prompt: Any
    digest: str = ""
    occurrence: int = 0


def _rows(tokenizer: Any, run: RayRun, ids: Sequence[Any], prompts: Sequence[Any]) -> tuple[dict[Any, _Row], int]:
    """Return (rows by id, in the order given; number of rows skipped because another row has the same id)."""
    given = dict[Any, Any]()
    for row_id, prompt in zip(ids, prompts, strict=True):
        name = row_id if isinstance(row_id, str) else int(row_id)  # Arrow's integers are no JSON
        given.setdefault(name, _prompt_of(prompt))
    rows, seen = {name: _Row(prompt) for name, prompt in given.items()}, Counter[str]()
    for name in sorted(given, key=_by_kind):
        digest = prompt_digest(tokenizer, given[name], chat=run.settings.chat)
        rows[name] = _Row(given[name], digest, seen[digest])
        seen[digest] += 1
    return rows, len(ids) - len(given)


def _by_kind(name: Any) -> tuple[bool, Any]:
    """Sort key: numbers before texts."""
    return isinstance(name, str), name


def _made(model: Any, tokenizer: Any, run: RayRun) -> dict[str, Any]:
    """Return what determines a text besides its prompt and the folder's label."""
    here = Arithmetic.of(run.model, model.device, run.dtype, run.quantization)
    return {**here.as_dict(), "model_digest": model_digest(model, tokenizer)}


def _known(path: Path, rows: Mapping[Any, _Row], made: Mapping[str, Any], line: Mapping[str, Any]) -> Any:
    """Return the id of an earlier line. ValueError if it answers another prompt or has other settings."""
    name, then = line.get("id"), line.get("made") or {}
    if name is None:
        return None
    for setting, now in made.items():
        if then.get(setting) != now:
            raise ValueError(
                f"{path}, text {name!r} was made with {setting} {then.get(setting)}, this run has {now}; use the same "
                "settings or another folder"
            )
    if name in rows and rows[name].digest != line.get("prompt_digest"):
        raise ValueError(
            f"{path}, text {name!r} answers another prompt than the row with that id; restore the prompt, change the "
            "id, or use another folder"
        )
    return name


def _prompt_of(value: Any) -> Any:
    """Return the prompt in a cell: a text, or messages, which Arrow stores as an array; None for an invalid one."""
    prompt = _plain(value)
    return prompt if isinstance(prompt, str) or is_conversation(prompt) else None


def _plain(value: Any) -> Any:
    """Convert a cell to lists and dictionaries, without the fields that Arrow adds for other rows."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return [_plain(one) for one in value] if isinstance(value, (list, np.ndarray)) else value


def _ray() -> Any:
    """Import Ray with its data sets; otherwise say in one sentence what to install."""
    require("ray", "caw.ray")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(
            f"caw.ray requires a complete installation of Ray, found a partial one ({error}); run `pip install "
            "'caw-watermark[ray]'`"
        ) from error
    return ray
