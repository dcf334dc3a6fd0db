"""`caw demo`: plain, KGW, CAW and drawn outputs of one prompt, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caw.cli import options as opt
from caw.cli.errors import complain, user_errors
from caw.cli.quantization_option import Quantized, prepare_place
from caw.defaults import DELTA, GAMMA, THETA
from caw.io.files import check_paths, write_text
from caw.io.progress import doing
from caw.models import DEMO_MODEL, load_model

# chosen by trying a few: on this prompt the small model does not fall into repetition, plain or marked
PROMPT = "What are the benefits of learning a second language?"
KEY = "caw demo"


def demo(
    prompt: Annotated[str, typer.Option(help="Prompt.")] = PROMPT,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum new tokens.")] = 180,
    html: Annotated[Path | None, typer.Option(help="Also write an HTML page.")] = None,
    key: opt.Key = None,
    gamma: Annotated[
        float, typer.Option(help="Share of the vocabulary that is green.", rich_help_panel=opt.MARK)
    ] = GAMMA,
    delta: Annotated[
        float, typer.Option(help="Bonus added to the logits of green tokens.", rich_help_panel=opt.MARK)
    ] = DELTA,
    theta: Annotated[
        float, typer.Option(help="Importance threshold: tokens above it stay unmarked.", rich_help_panel=opt.POLICY)
    ] = THETA,
    beta: opt.Beta = None,
    model: Annotated[
        str, typer.Option(help=f"{DEMO_MODEL}, a .gguf file, a folder or a hub id.", rich_help_panel=opt.RUNNING)
    ] = DEMO_MODEL,
    evaluator: opt.EvaluatorName = None,
    dtype: opt.DType = "float32",
    quantization: Quantized = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
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
        from caw.policies import CapacityPolicy
        from caw.settings import Settings
        from caw.watermarks import KGW

        check_paths({"--model": model, "--evaluator": evaluator}, {"--html": html})
        watermark = opt.build_watermark("kgw", key or KEY, {"delta": delta, "gamma": gamma})
        assert isinstance(watermark, KGW)
        policy = opt.build_policy("capacity", {"theta": theta, "beta": beta, "evaluator": evaluator}, model)
        assert isinstance(policy, CapacityPolicy)
        Settings(max_new_tokens=max_new_tokens)  # a bad number is refused before anything is loaded
        device = prepare_place(model, device, threads, dtype, quantization)
        with doing(f"loading {model}"):
            network, tokenizer = load_model(model, device=device, dtype=dtype, quantization=quantization)
        with doing("generating four texts"):
            chat = bool(getattr(tokenizer, "chat_template", None))
            result = run_demo(network, tokenizer, prompt, watermark, policy, max_new_tokens=max_new_tokens, chat=chat)
        render(result, Console())
        if html is not None:
            write_text(html, page(result))
            complain(f"wrote {html}")
