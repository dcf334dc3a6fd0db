"""`caw demo`: plain, KGW, CAW and drawn outputs of one prompt, side by side."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import complain, user_errors
from caw.cli.options import panel
from caw.cli.place import Place
from caw.flags import RUNNING
from caw.io.files import check_paths, write_text
from caw.io.progress import doing
from caw.models import DEMO_MODEL
from caw.settings import Settings

# chosen by trying a few: on this prompt the small model does not fall into repetition, plain or marked
PROMPT = "What are the benefits of learning a second language?"
KEY = "caw demo"


@command(
    settings=options_of(Settings, "max_new_tokens", max_new_tokens=180),
    mark=options_of(opt.MarkOptions, "gamma", "delta"),
    of_policy=options_of(opt.PolicyOptions, "theta", "beta", "evaluator"),
    place=options_of(Place, dtype="float32"),
)
def demo(
    *,
    prompt: Annotated[str, typer.Option(help="Prompt.")] = PROMPT,
    settings: dict[str, Any],
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page.")] = None,
    key: opt.Key = None,
    mark: dict[str, Any],
    of_policy: dict[str, Any],
    model: Annotated[str, panel(RUNNING, f"{DEMO_MODEL}, a .gguf file, a folder or a hub id.")] = DEMO_MODEL,
    place: dict[str, Any],
) -> None:
    """Generate plain, KGW, CAW and drawn outputs of one prompt, and show tokens, p-values and speed.

    Without --key or CAW_KEY a public demo key is used. Never use that key for anything else.

    Examples:

    - caw demo
    - caw demo --html demo.html
    - caw demo --prompt "Tell me about the history of tea." --theta 0.5
    """
    with user_errors():
        from rich.console import Console

        from caw.demo.outputs import run_demo
        from caw.demo.page import page
        from caw.demo.terminal import render
        from caw.models.gguf import is_gguf
        from caw.models.quantization import block_weights
        from caw.models.sources import file_or_folder
        from caw.policies import CapacityPolicy
        from caw.watermarks import KGW

        check_paths({"--model": model, "--evaluator": of_policy["evaluator"]}, {"--html": html})
        watermark = opt.build_watermark("kgw", key or KEY, mark)
        assert isinstance(watermark, KGW)
        policy = opt.build_policy("capacity", of_policy, model)
        assert isinstance(policy, CapacityPolicy)
        Settings(**settings)  # a bad number is refused before anything is loaded
        where, source = Place(**place), file_or_folder(model)
        device = where.prepare(model)
        # a file's blocks have float32's texts, at several times the speed and without a copy of the model on disk
        if device == "cpu" and (where.dtype, where.quantization) == ("float32", None) and is_gguf(source):
            where = replace(where, quantization=block_weights(source))
        with doing(f"loading {model}"):
            network, tokenizer = where.load(model, device)
        with doing("generating four texts"):
            chat = bool(getattr(tokenizer, "chat_template", None))
            result = run_demo(network, tokenizer, prompt, watermark, policy, **settings, chat=chat)
        render(result, Console())
        if html is not None:
            write_text(html, page(result))
            complain(f"wrote {html}")
