"""`caw evaluate perplexity`: perplexity of a run's texts under a second model."""

from pathlib import Path
from typing import Annotated

import typer

from caw.cli import options as opt
from caw.cli.command import command
from caw.cli.errors import complain, kept_on_interrupt, user_errors
from caw.cli.place import Place
from caw.io.progress import doing
from caw.requirements import require
from caw_lab.cli.evaluate_attack_command import config_of_run


@command()
def evaluate_perplexity_command(
    *,
    run_folder: Annotated[Path, typer.Argument(help="Output of `caw evaluate run`.")],
    model: Annotated[str, typer.Option(help="Second model: smollm2-135m, a .gguf file, a folder or a hub id.")],
    given: Annotated[
        str, typer.Option(help="Context that the model reads before each text.", metavar="question|prompt|nothing")
    ] = "question",
    only: Annotated[list[str] | None, typer.Option(help="Glob of the cells to read, e.g. '*.0'; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum questions per cell.", min=1)] = None,
    place: Place,
    quiet: opt.Quiet = False,
) -> None:
    """Compute the perplexity of a run's texts under a second model, for the report.

    Adds one line per text to perplexity.jsonl in the run's folder. Run the same command again to continue after an
    interruption.

    Examples:

    - caw evaluate perplexity runs/first --model judge.gguf --only '*.none'

    - caw evaluate perplexity runs/first --model smollm2-135m --limit 40 --given nothing
    """
    with user_errors():
        require("pyyaml", "reading the run's config")
        from caw_lab.evaluation.config import choose_plans
        from caw_lab.evaluation.metrics.judge import Judge, check_given, judge_name
        from caw_lab.evaluation.metrics.scoring import Scorer
        from caw_lab.evaluation.store import Store

        device = place.prepare(model)
        config = config_of_run(run_folder)
        plans = choose_plans(config.plan(), only or ())
        check_given(given)  # before a model is loaded for nothing
        with doing(f"loading {model}"):
            loaded, tokenizer = place.load(model, device)
        scorer = Scorer(config, Store(run_folder))
        judge = Judge(scorer, loaded, tokenizer, judge_name(model), given, limit, complain)  # type: ignore[arg-type]
        with kept_on_interrupt(run_folder):
            made = judge.run(plans)
        complain(f"{made} texts read, perplexities in {run_folder / 'perplexity.jsonl'}")
