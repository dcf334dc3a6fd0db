"""`caw evaluate run`: models x tasks x watermarks x policies x keys, from a YAML file. May be interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, kept_on_interrupt, user_errors
from caw.cli.place import set_threads
from caw.io.files import check_paths
from caw.requirements import require

if TYPE_CHECKING:
    from caw_lab.evaluation.config import Config


def evaluate_run_command(
    config: Annotated[Path, typer.Option("--config", "-c", help="Config, a YAML file; see above.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output folder; overrides the config's.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum questions per cell.", min=1)] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Glob of the cells to run, e.g. '*.kgw.soft.0'; repeatable.")
    ] = None,
    rank: Annotated[
        int, typer.Option(envvar="RANK", help="Index of this process, from 0; torchrun sets it.", min=0)
    ] = 0,
    world_size: Annotated[
        int,
        typer.Option("--world-size", envvar="WORLD_SIZE", help="Number of processes that share the questions.", min=1),
    ] = 1,
    scores_only: Annotated[
        bool, typer.Option("--scores-only", help="Do not generate; grade and score the texts again.")
    ] = False,
    publish_to: Annotated[
        Path | None,
        typer.Option(
            "--publish", help="Folder to copy config, ids, answers, scores and results to, without the texts."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads [all cores].", min=1)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.", callback=opt.quieten)] = False,
) -> None:
    """Generate answers with and without watermarks, grade them, and run detection on them.

    A cell is a model, a task, a watermark, a policy and a key. Its name joins them with dots; unmarked cells end with
    "none". Each answer is written as soon as it is finished, so after an interruption the same command continues the
    run. results.json has the accuracy and detection of each cell, comparisons on the same questions, and accuracy at
    equal detection. Several processes (--rank and --world-size, or torchrun) share the questions.

    Example config:

        output: runs/first
        models:
          smollm2: {source: smollm2-135m, evaluator: smollm2-135m}
        tasks:
          gsm8k: {data: data, count: 100}
        watermarks:
          kgw: {kind: kgw, gamma: 0.25}
        policies:
          soft: {kind: fixed, delta: 2.0}
          mid: {kind: fixed, delta: 4.0}
          caw: {kind: capacity, theta: 0.9, beta: 1.0, delta: 4.0}

    Examples:

    - caw evaluate run --config first.yaml --limit 4
    - torchrun --nproc-per-node 2 -m caw.cli evaluate run --config first.yaml
    """
    with user_errors():
        require("pyyaml", "--config")
        from caw_lab.evaluation.config_file import read_config
        from caw_lab.evaluation.publishing import publish
        from caw_lab.evaluation.run import Runner, Shard
        from caw_lab.evaluation.store import Store

        settings = read_config(config)
        shard = Shard(rank, world_size)
        set_threads(threads)
        folder = output or Path(settings.output)
        _check_files(config, settings, folder, publish_to)
        store = Store(folder)
        runner = Runner(replace(settings, output=str(folder)), store, shard, limit, tuple(only or ()), say=complain)
        with kept_on_interrupt(folder):
            made = 0 if scores_only else runner.run()
            runner.score(again=scores_only)
        complain(f"{made} new texts in {folder}, results in {folder / 'results.json'}")
        if publish_to is not None:
            count = publish(runner.scorer, runner.config.plan(), publish_to)
            complain(f"published {count} answers in {publish_to}")


def _check_files(given: Path, config: Config, folder: Path, publish_to: Path | None) -> None:
    """Refuse to overwrite a file that the run reads."""
    from caw_lab.evaluation.publishing import PUBLISHED

    read: dict[str, Path | str | None] = {"--config": given}
    read |= {f"tasks.{name}": getattr(task, "path", None) for name, task in config.tasks.items()}
    read |= {f"models.{name}": spec.source for name, spec in config.models.items()}
    places: list[tuple[Path, tuple[str, ...]]] = [(folder, ("results.json", "scores.jsonl"))]
    places += [(publish_to, PUBLISHED)] if publish_to is not None else []
    written = {str(place / name): place / name for place, names in places for name in names}
    check_paths(read, {name: path for name, path in written.items() if path.exists()})
