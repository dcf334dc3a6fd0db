"""`caw generate`: prompts in, (watermarked) texts out, one JSONL line as soon as each text is finished."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import BAD_LINES, INTERRUPTED, complain, user_errors
from caw.cli.policy_choice import choose_policy, what_marks
from caw.io.files import check_paths
from caw.io.inputs import name_of, open_input, read_text
from caw.io.jsonl import JsonlWriter, Row, RowId, encode, read_rows, text_field
from caw.io.progress import GenerationProgress, doing
from caw.models import DEMO_MODEL, load_model

if TYPE_CHECKING:
    from caw.entrance import GenerationResult
    from caw.policies import Policy
    from caw.settings import Settings
    from caw.watermarks import Watermark


@dataclass(frozen=True)
class Job:
    """One prompt to continue: the id of its output line, its text, its token ids once encoded."""

    number: int
    id: RowId
    prompt: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything about a run but its prompts; `label` goes into every output line and must not change on resume."""

    model: str
    watermark: Watermark | None
    policy: Policy | None
    settings: Settings
    batch_size: int | None
    stop: tuple[str, ...]
    chat: bool
    with_prompt: bool
    running: dict[str, Any]  # how to run, which no text depends on

    @property
    def label(self) -> dict[str, Any]:
        s = self.settings
        sampling = {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "seed": s.seed}
        return {
            "watermark": opt.describe(self.watermark),
            "policy": opt.describe(self.policy),
            "key_id": self.watermark.key_id if self.watermark else None,
            "settings": {
                "model": self.model,
                "max_new_tokens": s.max_new_tokens,
                "min_new_tokens": s.min_new_tokens,
                "sampling": sampling if s.do_sample else None,
                "stop": list(self.stop),
                "chat": self.chat,
                **({"mark_eos": s.mark_eos} if self.watermark else {}),
            },
        }


def generate(
    model: Annotated[str, typer.Option(help=f"{DEMO_MODEL} (the demo model), a .gguf file, a folder or a hub id.")],
    prompt: Annotated[str | None, typer.Option(help="One prompt; - reads it from stdin.")] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help='JSONL, a prompt a line: {"prompt": ..., "id": ...}; - is stdin.'),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="JSONL file; without it, stdout.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue --output after the lines it has.")] = False,
    field: Annotated[str, typer.Option(help="Field of --input that holds the prompt.")] = "prompt",
    with_prompt: Annotated[bool, typer.Option("--with-prompt", help="Repeat the prompt in the output line.")] = False,
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
    max_new_tokens: Annotated[int, typer.Option(help="Longest text.", rich_help_panel=opt.DECODING)] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="Shortest text.", rich_help_panel=opt.DECODING)] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Wrap prompts in the model's chat template.", rich_help_panel=opt.DECODING)
    ] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an output; repeatable.", rich_help_panel=opt.DECODING)
    ] = None,
    mark_eos: opt.MarkEos = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample; else greedy.", rich_help_panel=opt.DECODING)
    ] = False,
    temperature: Annotated[float, typer.Option(rich_help_panel=opt.DECODING)] = 1.0,
    top_k: Annotated[int, typer.Option(help="0 is off.", rich_help_panel=opt.DECODING)] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.", rich_help_panel=opt.DECODING)] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.", rich_help_panel=opt.DECODING)] = 0,
    branching: Annotated[
        str,
        typer.Option(
            help="How the look-ahead runs; the text is the same.",
            rich_help_panel=opt.DECODING,
            metavar="tree|sequential|batch",
        ),
    ] = "tree",
    trace: Annotated[bool, typer.Option("--trace", help="Add what decoding did at each token to the line.")] = False,
    batch_size: Annotated[
        int | None, typer.Option(help="Texts decoded at once [8].", min=1, rich_help_panel=opt.RUNNING)
    ] = None,
    max_memory: opt.MaxMemory = None,
    prefill_attention: opt.PrefillAttention = "sdpa",
    compile: opt.Compile = False,
    dtype: opt.DType = "auto",
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Generate (watermarked) texts from one prompt, or from a JSONL file of prompts.

    Texts are marked by CAW, at every token as strongly as its importance allows, where the model has an evaluator;
    else at full strength. One line on stderr says which.

    An output line holds id, text, tokens, finish_reason, watermark, policy, key_id (never the key) and settings, and is
    written as soon as its text is finished, so not in the order of the input. An id is the input's, or its line number.
    Interrupted or killed, the lines written stay, and the same command with --resume goes on after them.

    Examples:

    - read -rs CAW_KEY; export CAW_KEY
    - caw generate --model smollm2-135m --prompt "Why is the sky blue?" --chat
    - caw generate --model smollm2-135m --input prompts.jsonl --output out.jsonl
    - caw generate --model smollm2-135m --policy fixed --strength 0.5 --input prompts.jsonl --output out.jsonl
    - caw generate --model ./my-model --watermark exp --sample --seed 1 -i prompts.jsonl -o out.jsonl --resume
    """
    with user_errors():
        from caw.decoding.plan import marks_eos
        from caw.decoding.stopping import StopStrings
        from caw.settings import Settings

        check_paths({"--input": input, "--model": model, "--evaluator": evaluator}, {"--output": output})
        mark = opt.build_watermark(
            watermark,
            key,
            {
                "gamma": gamma, "delta": delta, "seeding": seeding, "context-width": context_width,
                "top-k-exp": top_k_exp, "strength-exp": strength_exp, "format": format,
                "payload": payload, "payload-bits": payload_bits,
            },
        )  # fmt: skip
        of_policy = {
            "strength": strength, "nats": nats, "gap": gap, "theta": theta, "beta": beta, "evaluator": evaluator,
        }  # fmt: skip
        chosen, remark = choose_policy(policy, of_policy, model, marked=mark is not None)
        how = opt.build_policy(chosen, of_policy, model)
        if mark is not None:
            mark.check_strength(how.max_strength)
        elif mark_eos is not None:
            raise ValueError("--mark-eos and --keep-eos need a watermark, got none; leave them out")
        settings = Settings(
            max_new_tokens, min_new_tokens, branching, sample, temperature, top_k, top_p, seed,  # type: ignore[arg-type]
            return_trace=trace,
            mark_eos=marks_eos(mark_eos, mark),
        )  # fmt: skip
        running = {"max_memory": max_memory, "prefill_attention": prefill_attention, "compile": compile}
        plan = Plan(
            model, mark, how if mark else None, settings, batch_size, tuple(stop or ()), chat, with_prompt, running
        )
        StopStrings(None, plan.stop)  # refuses what is no string before a model is loaded
        encode(plan.label)  # refuses an option that no line can hold
        device = opt.prepare_device(device, threads)
        jobs, bad = read_jobs(prompt, input, field)
        with open_output(output, resume, plan) as (write, written):
            jobs = [job for job in jobs if job.id not in written]
            if written and not jobs:
                complain(f"nothing left to do: {len(written)} texts are written")
            elif not jobs and not bad:
                complain(f"{name_of(input or 'the prompt')} holds no lines: there is nothing to generate")
            if jobs:
                with doing(f"loading {model}"):
                    network, tokenizer = load_model(model, device=device, dtype=dtype)
                good = encode_jobs(jobs, network, tokenizer, plan, source=input)
                bad += len(jobs) - len(good)
                if mark is not None and good:
                    complain(what_marks(mark, how, remark))
                bad += run_jobs(good, network, tokenizer, plan, write if output or input else _print_text, source=input)
        if bad:
            raise typer.Exit(BAD_LINES)


def read_jobs(prompt: str | None, source: str | None, field: str) -> tuple[list[Job], int]:
    """Jobs from --prompt or --input, and how many lines were bad (each reported)."""
    if (prompt is None) == (source is None):
        raise ValueError(f"expected one of --prompt and --input, got {'none' if prompt is None else 'both'}; give one")
    if prompt is not None:
        return [Job(1, 1, read_text("-", translate=True) if prompt == "-" else prompt)], 0
    assert source is not None
    jobs, bad = [], 0
    with open_input(source) as lines:
        for row in read_rows(lines):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                jobs.append(Job(row.number, row.id, text_field(row.value, field)))
            except ValueError as error:
                bad += 1
                complain(f"{_where(source, row.number)}{error}")
    return jobs, bad


def _where(source: str | None, line: int) -> str:
    """How a report about a line begins; a single prompt has none."""
    if source is None:
        return ""
    return f"{name_of(source)}, line {line}: "


def encode_jobs(jobs: Sequence[Job], model: Any, tokenizer: Any, plan: Plan, *, source: str | None) -> list[Job]:
    """The jobs with token ids, without those whose prompts are refused (each reported; an error if it is the only).

    source: the file they are from, None = a single prompt.
    """
    from caw.decoding.prompts import encode_prompts, fit_budget
    from caw.models.facts import ModelFacts

    if plan.chat and not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"--chat needs a tokenizer with a chat template, {plan.model} has none; leave --chat out")
    facts, good = ModelFacts.of(model, tokenizer), []
    for job in jobs:
        where = _where(source, job.number)
        try:
            [ids] = encode_prompts(tokenizer, [job.prompt], facts, chat=plan.chat)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                fit_budget(facts, len(ids), plan.settings.max_new_tokens, 0)
        except (TypeError, ValueError) as error:
            if source is None:
                raise type(error)(_unnumbered(error)) from None
            complain(f"{where}{_unnumbered(error)}")
            continue
        for warning in caught:
            complain(f"{where}warning: {_unnumbered(warning.message)}")
        good.append(Job(job.number, job.id, job.prompt, tuple(ids)))
    return good


def _unnumbered(message: Exception | str) -> str:
    """The library numbers the prompts of a call, which says nothing about lines of a file."""
    return re.sub(r"^prompt \d+: ", "", str(message).replace("prompt 0 ", "the prompt ", 1))


@contextlib.contextmanager
def open_output(
    path: Path | None, resume: bool, plan: Plan
) -> Iterator[tuple[Callable[[dict[str, Any]], None], set[RowId]]]:
    """(how to write a line, ids written before).

    Raises ValueError if the lines of a resumed file were made with other settings.
    """
    if path is None:
        if resume:
            raise ValueError("--resume needs the file to continue, got no --output; name it")
        yield _print_line, set()
        return
    label, number = plan.label, itertools.count(1)

    def keep(line: dict[str, Any]) -> RowId | None:
        place = next(number)
        for name, value in label.items():
            if _as_now(line, name) != value:
                raise ValueError(
                    f"{path}, line {place} has {name} {line.get(name)}, this run {value}; resume with the same "
                    "options, or name another --output"
                )
        return line.get("id")

    with JsonlWriter(path, resume=resume, keep=keep) as writer:
        yield writer.write, set(writer.existing)


def _as_now(line: dict[str, Any], name: str) -> Any:
    """A field of an earlier line; marks decided about ends before lines said so."""
    value = line.get(name)
    if name == "policy" and isinstance(value, dict):
        return {"strength" if argument == "value" else argument: v for argument, v in value.items()}
    if name == "settings" and line.get("watermark") and isinstance(value, dict):
        return {"mark_eos": True, **value}
    return value


def run_jobs(
    jobs: Sequence[Job],
    model: Any,
    tokenizer: Any,
    plan: Plan,
    write: Callable[[dict[str, Any]], None],
    *,
    source: str | None,
) -> int:
    """Generate and write every text as it finishes; Ctrl-C ends the program with exit code 130.

    Returns how many could not be made (each reported; an error if it is the only).
    """
    from caw.entrance import iter_generate

    warnings.filterwarnings("ignore", message=r"prompt \d+( has|:)")  # said here and in encode_jobs, with the line
    s, done, failed, label = plan.settings, 0, 0, plan.label
    bar = GenerationProgress(len(jobs), enabled=True)
    iterator = iter_generate(
        model, tokenizer, [job.ids for job in jobs], watermark=plan.watermark, policy=plan.policy,
        max_new_tokens=s.max_new_tokens, min_new_tokens=s.min_new_tokens, branching=s.branching, do_sample=s.do_sample,
        temperature=s.temperature, top_k=s.top_k, top_p=s.top_p, seed=s.seed, batch_size=plan.batch_size,
        return_trace=s.return_trace, stop=plan.stop, report=bar.note, mark_eos=s.mark_eos, **plan.running,
    )  # fmt: skip
    try:
        with doing("generating") if len(jobs) == 1 else bar:
            for result in iterator:
                if result.error:
                    if source is None:
                        raise ValueError(_unnumbered(result.error))
                    complain(f"{_where(source, jobs[result.index].number)}{_unnumbered(result.error)}")
                    failed += 1
                    continue
                write(output_line(jobs[result.index], result, label, plan.with_prompt))
                done += 1
                bar(len(result.tokens))
    except KeyboardInterrupt:
        complain(f"interrupted: {done} of {len(jobs)} texts are written; the same command with --resume continues")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def output_line(job: Job, result: GenerationResult, label: dict[str, Any], with_prompt: bool) -> dict[str, Any]:
    """One line of output; "id" comes first, which is how a resumed file is told from others."""
    line: dict[str, Any] = {"id": job.id}
    if with_prompt:
        line["prompt"] = job.prompt
    line |= {"text": result.text, "tokens": result.tokens, "finish_reason": result.finish_reason, **label}
    if result.trace is not None:
        line["trace"] = {
            "capacity": [None if math.isnan(c) else c for c in result.trace.capacity],
            "strength": result.trace.strength,
            "candidates": [list(c) for c in result.trace.candidates],
            "choice": result.trace.choice,
        }
    return line


def _print_line(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(encode(line))
    sys.stdout.buffer.flush()


def _print_text(line: dict[str, Any]) -> None:
    # a terminal that lacks a letter is no reason to throw the text away
    encoding = sys.stdout.encoding or "utf-8"
    print(line["text"].encode(encoding, "backslashreplace").decode(encoding), flush=True)
