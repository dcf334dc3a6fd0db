"""`caw generate`: prompts in, (watermarked) texts out, one JSONL line as soon as each text is finished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from caw.cli import found_options as found
from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_jobs import Job, Plan, accept_jobs, open_output, print_text, read_jobs, run_jobs
from caw.cli.policy_choice import choose_policy, what_marks
from caw.cli.quantised_option import DRAFTER_FLAG, DrafterQuantised, Quantised, check_second, prepare_place
from caw.io.files import check_paths
from caw.io.inputs import name_of
from caw.io.progress import doing
from caw.models import DEMO_MODEL, load_model


def generate(
    model: Annotated[str, typer.Option(help=f"{DEMO_MODEL} (the demo model), a .gguf file, a folder or a hub id.")],
    prompt: Annotated[str | None, typer.Option(help="One prompt; - reads it from stdin.")] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help='JSONL, a prompt a line: {"prompt": ..., "id": ...}; - is stdin.'),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSONL file; without it, stdout.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output after the lines it already has.")] = False,
    field: Annotated[str, typer.Option(help="Field of --input that holds the prompt.")] = "prompt",
    with_prompt: Annotated[bool, typer.Option("--with-prompt", help="Include the prompt in each output line.")] = False,
    watermark: opt.WatermarkName = "kgw",
    key: opt.Key = None,
    gamma: opt.Gamma = None,
    delta: opt.Delta = None,
    seeding: opt.Seeding = None,
    context_width: opt.ContextWidth = None,
    format: opt.FormatName = None,
    payload: opt.Payload = None,
    payload_bits: opt.PayloadBits = None,
    top_k_exp: opt.TopKExp = None,
    strength_exp: opt.StrengthExp = None,
    policy: opt.PolicyName = None,
    strength: opt.Strength = None,
    nats: opt.Nats = None,
    gap: opt.Gap = None,
    theta: opt.Theta = None,
    beta: opt.Beta = None,
    evaluator: opt.EvaluatorName = None,
    target: opt.TargetP = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of a text.", rich_help_panel=opt.DECODING)] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="Fewest tokens of a text.", rich_help_panel=opt.DECODING)] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.", rich_help_panel=opt.DECODING)
    ] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an output; repeatable.", rich_help_panel=opt.DECODING)
    ] = None,
    mark_eos: opt.MarkEos = None,
    found_at: found.FoundAt = None,
    max_attempts: found.MaxAttempts = 4,
    best_of: found.BestOf = 1,
    select: found.Select = "weakest",
    on_unfound: found.OnUnfound = "keep",
    edits: found.Edits = 0.0,
    weights: found.Weights = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample instead of decoding greedily.", rich_help_panel=opt.DECODING)
    ] = False,
    temperature: Annotated[float, typer.Option(rich_help_panel=opt.DECODING)] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Sample from this many tokens; 0 is off.", rich_help_panel=opt.DECODING)
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from this share of probability; 1 is off.", rich_help_panel=opt.DECODING)
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.", rich_help_panel=opt.DECODING)] = 0,
    branching: Annotated[
        str,
        typer.Option(
            help="How the look-ahead runs; the text is the same.",
            rich_help_panel=opt.DECODING,
            metavar="tree|sequential|batch",
        ),
    ] = "tree",
    trace: Annotated[
        bool, typer.Option("--trace", help="Add what decoding did at each token to the output line.")
    ] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Texts decoded at once [8].", min=1, rich_help_panel=opt.RUNNING)
    ] = None,
    max_memory: opt.MaxMemory = None,
    prefill_attention: opt.PrefillAttention = "sdpa",
    compile: opt.Compile = False,
    speculate: opt.Speculate = "auto",
    drafter_quantised: DrafterQuantised = None,
    dtype: opt.DType = "auto",
    quantised: Quantised = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Generate (watermarked) texts from one prompt, or from a JSONL file of prompts.

    Where the model has an evaluator, CAW marks each token as strongly as its importance allows. Other models are marked
    at full strength. A line on stderr says which.

    An output line holds id, text, tokens, finish_reason, watermark, policy, key_id (never the key) and settings. It is
    written as soon as its text is finished; when all are, the file is put in the input's order. The id is the input's,
    or else the line number. After an interruption, the same command with --resume continues after the lines already
    written, and in float32 ends with the same file.

    With --found-at each text is tested before it is written, and made again, more strongly, until it is found. Its line
    has a receipt, which `caw detect --receipt` checks.

    Examples:

    - read -rs CAW_KEY; export CAW_KEY
    - caw generate --model smollm2-135m --prompt "Why is the sky blue?" --chat
    - caw generate --model smollm2-135m --input prompts.jsonl --output out.jsonl
    - caw generate --model smollm2-135m --policy fixed --strength 0.5 --input prompts.jsonl --output out.jsonl
    - caw generate --model smollm2-135m --found-at 1e-3 --input prompts.jsonl --output out.jsonl
    - caw generate --model ./my-model --watermark exp --sample --seed 1 -i prompts.jsonl -o out.jsonl --resume
    """
    with user_errors():
        from caw.decoding.plan_defaults import marks_eos
        from caw.settings import Settings

        ahead, drafter = opt.parse_speculate(speculate)
        read = {"--input": input, "--model": model, "--evaluator": evaluator, "--weights": weights,
                "--speculate": drafter}  # fmt: skip
        check_paths(read, {"--output": output})
        of_mark = {"gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width, "format": format,
                   "top-k-exp": top_k_exp, "strength-exp": strength_exp, "payload": payload,
                   "payload-bits": payload_bits}  # fmt: skip
        mark = opt.build_watermark(watermark, key, of_mark)
        of_policy = {"strength": strength, "nats": nats, "gap": gap, "theta": theta, "beta": beta,
                     "evaluator": evaluator, "target": target}  # fmt: skip
        chosen, remark = choose_policy(policy, of_policy, model, marked=mark is not None)
        how = opt.build_policy(chosen, of_policy, model)
        if mark is not None:
            mark.check_strength(how.greatest)
        elif mark_eos is not None:
            raise ValueError("--mark-eos and --keep-eos need a watermark, got none; leave them out")
        settings = Settings(
            max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, branching=branching,  # type: ignore[arg-type]
            do_sample=sample, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=tuple(stop or ()),
            chat=chat, mark_eos=marks_eos(mark_eos, mark), return_trace=trace, batch_size=batch_size,
            max_memory=max_memory, prefill_attention=prefill_attention, compile=compile,  # type: ignore[arg-type]
            found_at=found_at, max_attempts=max_attempts, best_of=best_of, select=select, edits=edits,
            on_unfound=on_unfound, speculate=ahead,  # type: ignore[arg-type]
        )  # fmt: skip
        table = found.check_found(settings, mark, how, weights)
        plan = Plan(model, mark, how if mark else None, settings, with_prompt, table, drafter, drafter_quantised)
        plan.check()
        marking = "" if mark is None else what_marks(mark, how, remark)
        device = prepare_place(model, device, threads, dtype, quantised)
        check_second(drafter, device, dtype, drafter_quantised, DRAFTER_FLAG, "--speculate")
        jobs, bad = read_jobs(prompt, input, field)
        with open_output(output, resume, plan, [job.id for job in jobs]) as (write, written):
            jobs = [job for job in jobs if job.id not in written]
            if written and not jobs:
                complain(f"nothing left to do: {len(written)} texts are written")
            elif not jobs and not bad:
                complain(f"{name_of(input or 'the prompt')} holds no lines: there is nothing to generate")
            if jobs:
                show = write if output or input else print_text
                bad += _make(jobs, plan, marking, show, source=input, device=device, dtype=dtype, weights=quantised)
        if bad:
            raise typer.Exit(BAD_LINES)


def _make(
    jobs: list[Job],
    plan: Plan,
    marking: str,
    write: Callable[[dict[str, Any]], None],
    *,
    source: str | None,
    device: str,
    dtype: str,
    weights: str | None,
) -> int:
    """Load the model and write the jobs' texts; returns how many prompts had none. marking: what to say beforehand."""
    with doing(f"loading {plan.model}"):
        network, tokenizer = load_model(plan.model, device=device, dtype=dtype, weights=weights)
    if plan.drafter is not None:
        with doing(f"loading {plan.drafter}"):
            guesses, other = load_model(plan.drafter, device=device, dtype=dtype, weights=plan.drafter_weights)
        plan = plan.drafting(guesses, tokenizer, other)
    accepted = accept_jobs(jobs, network, tokenizer, plan, source=source)
    if marking and accepted.ids:
        complain(marking)
    return len(accepted.refused) + run_jobs(jobs, accepted, network, tokenizer, plan, write, source=source)
