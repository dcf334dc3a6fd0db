"""`caw evaluate attack`: attack the texts of a run and measure what is left of their marks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, complain, kept_on_interrupt, user_errors
from caw.cli.place import set_threads
from caw.requirements import require

if TYPE_CHECKING:
    from caw_lab.evaluation.config import Config

RESOURCES, ENDPOINT, RUNNING = "What attacks need", "Paraphrase", "Running"


def evaluate_attack_command(
    run_folder: Annotated[Path, typer.Argument(help="Output of `caw evaluate run`.")],
    attack: Annotated[list[str], typer.Option(help="Attack as KIND:STRENGTH, see above; repeatable.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Glob of the cells to attack, e.g. '*.kgw.caw.0'; repeatable.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum questions per cell.", min=1)] = None,
    human: Annotated[bool, typer.Option("--human/--no-human", help="Also attack the human answers.")] = True,
    seed: Annotated[int, typer.Option(help="Random seed of the attacks.", min=0)] = 0,
    wordnet: Annotated[
        Path | None, opt.panel(RESOURCES, "Folder with WordNet's data and index files [standard locations].")
    ] = None,
    ranker: Annotated[
        str | None,
        opt.panel(RESOURCES, "word-s-context: causal:MODEL, sentence or sentence:FOLDER [sentence]."),
    ] = None,
    device: Annotated[
        str | None, opt.panel(RESOURCES, "Device of the ranker: cpu or cuda [cuda if available].")
    ] = None,
    paraphrase_model: Annotated[str | None, opt.panel(ENDPOINT, "Model name at the endpoint.")] = None,
    base_url: Annotated[str | None, opt.panel(ENDPOINT, "Base URL of an OpenAI-compatible endpoint.")] = None,
    key_env: Annotated[
        str, opt.panel(ENDPOINT, "Environment variable that holds the endpoint's API key.")
    ] = "OPENAI_API_KEY",
    requests_per_minute: Annotated[
        float | None, opt.panel(ENDPOINT, "Maximum requests per minute, over all workers.")
    ] = None,
    workers: Annotated[int, opt.panel(ENDPOINT, "Maximum concurrent requests.", min=1)] = 8,
    threads: Annotated[int | None, opt.panel(RUNNING, "CPU threads [all cores].", min=1)] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Attack the texts of a run and run detection again.

    Attacks: word-d:0.1 deletes 10 % of the words; word-s:0.3 replaces 30 % by WordNet synonyms; word-s-context:0.3 by
    the synonym that fits best; copy-paste:0.25 inserts the text into human text so that it is a quarter of the result
    (0.25x3: in three parts); paraphrase asks an endpoint. The random draw depends only on --seed and the question.
    Scores go to the run's scores.jsonl and results.json. Texts that have a score already are skipped. If a task lacks
    the human texts that an attack needs, that attack is reported and skipped, and the exit code is 1.

    Examples:

    - caw evaluate attack runs/first --attack word-d:0.1 --attack word-s:0.3
    - caw evaluate attack runs/first --attack word-s-context:0.3 --only '*.kgw.caw.0' --limit 50
    - caw evaluate attack runs/first --attack paraphrase --paraphrase-model my-model --base-url http://localhost:8000/v1
    """
    with user_errors():
        require("pyyaml", "reading the run's config")
        require("scikit-learn", "the metrics of an evaluation")
        from caw_lab.evaluation.attacks import AttackSetup
        from caw_lab.evaluation.attacks.attacker import Attacker
        from caw_lab.evaluation.config import choose_plans
        from caw_lab.evaluation.metrics.scoring import Scorer
        from caw_lab.evaluation.results import Results
        from caw_lab.evaluation.store import Store

        set_threads(threads)
        config = config_of_run(run_folder)
        endpoint: dict[str, object] = {"model": paraphrase_model, "key": os.environ.get(key_env), "base_url": base_url,
                    "requests_per_minute": requests_per_minute}  # fmt: skip
        setup = AttackSetup(seed, wordnet, ranker, device, endpoint=endpoint)
        scorer = Scorer(config, Store(run_folder))
        attacker = Attacker(scorer, setup, limit, human, workers, complain)
        with kept_on_interrupt(run_folder):
            plans = choose_plans(config.plan(), only or ())
            made = attacker.run(attack, plans)
            scorer.update(plans)  # what an attack cost is told by the same texts without it
        results = Results(scorer, config.plan()).as_dict()
        scorer.store.write_results(results)
        _show(results["attacked"])
        complain(f"{made} new scores in {run_folder}")
    if attacker.failures:
        complain(
            f"{attacker.failures} texts could not be attacked and were skipped; run the same command again to retry "
            "them"
        )
    if attacker.failures or attacker.left_out:
        raise typer.Exit(BAD_LINES)


def config_of_run(folder: Path) -> Config:
    """Read a run's config. FileNotFoundError for none, ValueError if texts are not its (another CAW_KEY)."""
    from caw_lab.evaluation.config_file import read_config
    from caw_lab.evaluation.preflight import check_cells
    from caw_lab.evaluation.store import Store

    path = folder / "config.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"a run's folder must contain config.yaml, found none in {folder}; give the output of `caw evaluate run`"
        )
    config = read_config(path)
    check_cells(config, Store(folder), config.plan())
    return config


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    several = len({(row["model"], row["task"]) for row in rows}) > 1
    table = Table("setting", "attack", "words changed", "TPR at 1 %", "AUROC", "texts")
    for row in rows:
        where = f"{row['model']}, {row['task']}: " if several else ""
        auroc = "–" if row.get("auroc") is None else f"{row['auroc']:.3f}"
        table.add_row(
            f"{where}{row['watermark']}-{row['policy']}", row["attack"], f"{row['edit_rate']:.3f}",
            f"{row['tpr_at_fpr_1e2']:.3f}", auroc, str(row["texts"]),
        )  # fmt: skip
    Console().print(table)
