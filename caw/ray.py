"""Millions of prompts over a cluster: a Ray Data pool of actors, one per GPU, each with the model in memory.

Prompts go to shards by a hash of their id, and a shard is one file of lines:

    OUTPUT/shard-00017-of-00256.jsonl     {"id": ..., "text": ..., "tokens": [...], "finish_reason": ..., "key_id": ...}

A line is written whole as soon as its text is finished, so a run that is started again (or an actor that Ray starts
again) goes on inside each shard where it was: nothing is lost and nothing made twice. A shard whose texts are all made
is put in the order of their ids, so that in float32 its bytes are the same however often the run was killed. OUTPUT
must be a folder that all machines see. `python -c "import caw.ray"` needs `pip install 'caw[ray]'`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caw.decoding.plan_defaults import marks_eos
from caw.detection import Detector, TokenWeights
from caw.evaluation.bulk import generate_every
from caw.found.attempts import UnfoundError
from caw.found.early import check_early, refuse_idle
from caw.io.json_files import read_json, read_lines, write_json
from caw.io.jsonl import JsonlWriter, line_id
from caw.models import load_model
from caw.models.quantised_choice import check_name, usual_device
from caw.policies import Policy
from caw.requirements import require
from caw.settings import Settings
from caw.watermarks import Watermark

LOG = logging.getLogger("caw.ray")
MADE_BY = "caw.ray"
SHARD = re.compile(r"shard-([0-9]+)-of-([0-9]+)\.jsonl")
SHARD_COLUMN = "caw_shard"
UNLABELLED = ("batch_size", "mark_eos")  # options that texts do not depend on, or that stand apart


@dataclass(frozen=True)
class Job:
    """What every actor is told; the watermark's key travels to the actors inside Ray and is written nowhere.

    output: folder. model, device, dtype: as in `caw.load_model`. options: of `Settings`; no traces unless asked for.
    weights: per token, with which texts are tested before they leave.
    quantised: `weights` of `caw.load_model`; those of a file put the model on a CPU.
    Raises TypeError or ValueError for an option that does not exist or cannot be.
    """

    output: str
    shards: int
    model: str
    watermark: Watermark | None = None
    policy: Policy | None = None
    prompt_field: str = "prompt"
    id_field: str = "id"
    device: str | None = None
    dtype: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: TokenWeights | None = None
    quantised: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.options.get("select", ""), str):
            raise ValueError("select must be a name in caw.ray, where runs are continued, got a function; name one")
        if self.quantised is not None:
            check_name(self.quantised, "quantised")  # the rest depends on the actors' machines
        check_early(self.settings, self.watermark, self.policy)  # before anything is started
        if self.weights is not None:
            refuse_idle(self.settings, "weights")
            assert self.watermark is not None
            self.weights.check_for(self.watermark)

    @property
    def settings(self) -> Settings:
        return Settings(**{"return_trace": False, **self.options})

    @property
    def label(self) -> dict[str, Any]:
        """What a folder's lines share; kept in it, and compared when the run is started again."""
        mark = self.watermark
        return {
            "model": Path(self.model).name,
            "quantised": self.quantised,
            "shards": self.shards,
            "watermark": repr(mark),  # repr never shows the key
            "policy": repr(self.policy),
            "key_id": mark.key_id if mark is not None else None,
            "options": {name: repr(value) for name, value in sorted(self.options.items()) if name not in UNLABELLED},
            **({"mark_eos": marks_eos(self.options.get("mark_eos"), mark)} if mark is not None else {}),
            **({"weights": self.weights.digest} if self.weights is not None else {}),
        }


@dataclass(frozen=True)
class Summary:
    """What a run did.

    written: texts made by this run. total: lines in the folder. errors: prompts that this run could not continue.
    repeated: rows left out because another row of their shard had the same id.
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
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    prompt_field: str = "prompt",
    id_field: str = "id",
    shards: int = 256,
    actors: int | None = None,
    device: str | None = None,
    dtype: str = "auto",
    weights: TokenWeights | str | Path | None = None,
    quantised: str | None = None,
    **options: Any,
) -> Summary:
    """Generate a text for every row of a data set, and keep them in `output`.

    Args:
        prompts: a ray.data.Dataset, a sequence of mappings, or the path (or paths) of JSONL or Parquet files. A row
            has a unique id (text or an integer) and a prompt.
        output: folder that all machines see; made if it is not there. Another run's folder is continued if the model,
            the watermark with its key, the policy, the number of shards and the options are the same, else refused.
        model, device, dtype: as in `caw.load_model`; every actor loads it once.
        watermark, policy: as in `caw.generate`.
        prompt_field, id_field: names of a row's prompt and id.
        shards: files of the output. A shard's prompts lie in one actor's memory: about 1000 to 10,000 are a good size.
        actors: how many work at once; None = the cluster's GPUs, or one where it has none.
        quantised: `weights` of `caw.load_model`, as --quantised of commands; those of a file put the model on a CPU.
        weights: with found_at, the weights per token (or their name or file) with which texts will be tested.
        options: settings of `caw.iter_generate`: max_new_tokens, batch_size, stop, do_sample, ...

    Returns the summary. A prompt that cannot be continued is a line with finish_reason "error".
    Raises ImportError without Ray, ValueError for rows without id or prompt and for a folder of another run.
    """
    ray = _ray()
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= 99999:
        raise ValueError(f"shards must be an integer in [1, 99999], got {shards!r}; give e.g. 256")
    table = weights if weights is None or isinstance(weights, TokenWeights) else TokenWeights.load(weights)
    job = Job(
        str(Path(output).resolve()), shards, str(model), watermark, policy, prompt_field, id_field, device, dtype,
        options, table, quantised,
    )  # fmt: skip
    begin(job)
    done = run_shards(ray, dataset_of(prompts), job, actors)
    return Summary(
        sum(row["written"] for row in done), sum(1 for _ in read_output(output)), sum(row["errors"] for row in done),
        sum(row["repeated"] for row in done),
    )  # fmt: skip


def run_shards(ray: Any, data: Any, job: Job, actors: int | None) -> list[dict[str, Any]]:
    """Counts of every shard of a Ray data set, made by a pool of actors."""
    fields, names = (job.id_field, job.prompt_field), data.schema().names
    for name in fields:
        if name not in names:
            raise ValueError(f"rows must have a field {name!r}, found {', '.join(names)}; add it or name another")
    gpus = int(ray.cluster_resources().get("GPU", 0))
    pool = ray.data.ActorPoolStrategy(size=actors or max(1, gpus))
    keyed = data.select_columns(list(dict.fromkeys(fields))).map_batches(
        add_shards, batch_format="pandas", fn_kwargs={"id_field": job.id_field, "shards": job.shards}
    )
    made = keyed.groupby(SHARD_COLUMN).map_groups(
        ShardActor, fn_constructor_args=(job,), compute=pool, num_gpus=1 if gpus else 0, batch_format="pandas"
    )
    return list(made.take_all())


def dataset_of(prompts: Any) -> Any:
    """The Ray data set of what `generate_dataset` takes."""
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
    """All lines of a run's folder, shard by shard."""
    for path in sorted(Path(output).iterdir()):
        if SHARD.fullmatch(path.name):
            yield from read_lines(path, MADE_BY)


def begin(job: Job) -> None:
    """Make the folder, or see that it is this run's."""
    path = Path(job.output) / "run.json"
    known = read_json(path)
    if known is None:
        write_json(path, job.label)
        return
    known = {"mark_eos": True, **known}  # folders from before the choice
    for name, value in job.label.items():
        if known.get(name) != value:
            raise ValueError(
                f"{job.output} was made with {name} {known.get(name)}, this run has {value}; "
                "go back to that, or name another folder"
            )


def shard_of(row_id: Any, shards: int) -> int:
    """The shard of an id: the same on every machine and in every run."""
    digest = hashlib.sha256(f"caw/shard/{row_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % shards


def add_shards(batch: Any, *, id_field: str, shards: int) -> Any:
    """A pandas frame of rows with the column of their shards."""
    batch[SHARD_COLUMN] = [shard_of(row_id, shards) for row_id in batch[id_field]]
    return batch


class ShardActor:
    """Keeps a model; called with the rows of one shard, writes what its file lacks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model, self.tokenizer = load_model(
            job.model, device=usual_device(job.quantised, job.device), dtype=job.dtype, weights=job.quantised
        )

    def __call__(self, rows: Any) -> dict[str, list[int]]:
        """Counts of one shard; rows: a pandas frame of ids, prompts and the shard's number."""
        s = self.job
        number = int(rows[SHARD_COLUMN].iloc[0])
        path = Path(s.output) / f"shard-{number:05}-of-{s.shards:05}.jsonl"
        counts = write_shard(self.model, self.tokenizer, s, path, rows[s.id_field], rows[s.prompt_field])
        return {name: [count] for name, count in {"shard": number, **counts}.items()}


def write_shard(
    model: Any, tokenizer: Any, job: Job, path: Path, ids: Sequence[Any], prompts: Sequence[Any]
) -> dict[str, int]:
    """Write the lines that a shard's file lacks; returns how many were written, in error, and repeated ids.

    Waits while another actor, which Ray may have given up, still writes the shard. Raises ValueError with the name of a
    text that had to be found and is not.
    """
    written = errors = repeated = 0
    mark = job.watermark
    with JsonlWriter(path, resume=True, made_by=MADE_BY, keep=line_id, wait=True) as writer:
        done, todo, seen = set(writer.existing), dict[Any, str](), set[Any]()
        for row_id, prompt in zip(ids, prompts, strict=True):
            name = row_id if isinstance(row_id, str) else int(row_id)  # Arrow's integers are no JSON
            repeated += name in seen
            seen.add(name)
            if name not in done:
                todo.setdefault(name, prompt if isinstance(prompt, str) else "")
        names = list(todo)
        detector = Detector(tokenizer, mark, weights=job.weights) if job.weights is not None and mark else None
        results = generate_every(
            model, tokenizer, list(todo.values()), job.settings, watermark=mark, policy=job.policy, detector=detector
        )
        try:
            for result in results:
                line = {"id": names[result.index], "text": result.text, "tokens": result.tokens}
                line |= {"finish_reason": result.finish_reason, "key_id": mark.key_id if mark is not None else None}
                line |= {} if result.receipt is None else {"receipt": result.receipt.as_dict()}
                writer.write({**line, "error": result.error} if result.error else line)
                written += 1
                errors += bool(result.error)
        except UnfoundError as error:  # its index is among the texts that were still to be made
            raise ValueError(error.of(f"text {names[error.index]!r}")) from None
        # by id: Ray does not hand out rows in the same order every time; a line without id has None
        order = sorted({*done, *seen} - {None}, key=lambda name: (isinstance(name, str), name))
        if unordered := writer.close_in_order(order):
            LOG.warning(unordered)
    return {"written": written, "errors": errors, "repeated": repeated}


def _ray() -> Any:
    """Ray with its data sets; without any, one sentence that says what to install."""
    require("ray", "caw.ray")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"caw.ray needs all of Ray, found a part ({error}); run `pip install 'caw[ray]'`") from error
    return ray
