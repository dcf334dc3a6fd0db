"""The prompts of `caw generate`, and the lines that their texts become."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import INTERRUPTED, complain
from caw.io.inputs import name_of, open_input, read_text
from caw.io.jsonl import JsonlWriter, Row, RowId, encode, read_rows, text_field
from caw.io.progress import GenerationProgress, doing

if TYPE_CHECKING:
    from caw.decoding.prompts import Accepted
    from caw.detection import Detector, TokenWeights
    from caw.entrance import GenerationResult
    from caw.policies import Policy
    from caw.settings import Settings
    from caw.watermarks import Watermark


@dataclass(frozen=True)
class Job:
    """One prompt to continue: the line it is from, the id of its output line, its text."""

    number: int
    id: RowId
    prompt: str


@dataclass(frozen=True)
class Plan:
    """Everything about a run but its prompts; `label` goes into every output line and must not change on resume.

    drafter: name of a smaller model that guesses tokens ahead. drafter_weights: its `weights` of `load_model`.
    """

    model: str
    watermark: Watermark | None
    policy: Policy | None
    settings: Settings
    with_prompt: bool
    weights: TokenWeights | None = None
    drafter: str | None = None
    drafter_weights: str | None = None

    def drafting(self, model: Any, tokenizer: Any, other: Any) -> Plan:
        """The same with a loaded model that guesses; tokenizer: of the model that writes, other: of that one."""
        if tokenizer.get_vocab() != other.get_vocab():
            raise ValueError(
                f"--speculate must name a model of the vocabulary of {self.model}, and {self.drafter} has another; "
                "choose a smaller model of the same family"
            )
        return replace(self, settings=replace(self.settings, speculate=model))

    def check(self) -> None:
        """Refuse, before a model is loaded, stop strings that are none and options that no line can hold."""
        from caw.decoding.stopping import StopStrings

        StopStrings(None, self.settings.stop)
        encode(self.label)

    def detector(self, tokenizer: Any, vocab_size: int) -> Detector | None:
        """What tests texts before they are written, where it is not `caw detect` without options."""
        if self.weights is None or self.watermark is None:
            return None
        from caw.detection import Detector

        return Detector(tokenizer, self.watermark.with_vocabulary(vocab_size), weights=self.weights)

    @property
    def tested(self) -> dict[str, Any]:
        """How texts are tested, for the label; nothing where they are not."""
        said = self.settings.tested()
        return {**said, "weights": self.weights.digest if self.weights else None} if said else {}

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
                "stop": list(s.stop or ()),
                "chat": s.chat,
                **({"mark_eos": s.mark_eos} if self.watermark else {}),
                **self.tested,
            },
        }


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


def accept_jobs(jobs: Sequence[Job], model: Any, tokenizer: Any, plan: Plan, *, source: str | None) -> Accepted:
    """The prompts that can be continued; each of the others is reported (an error if it is the only).

    source: the file they are from, None = a single prompt.
    """
    from caw.decoding.prompts import accept_prompts
    from caw.decoding.row_settings import RowSettings
    from caw.models.facts import ModelFacts

    chat = plan.settings.chat
    if chat and not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"--chat needs a tokenizer with a chat template, {plan.model} has none; leave --chat out")
    facts, prompts = ModelFacts.of(model, tokenizer), [job.prompt for job in jobs]
    accepted = accept_prompts(tokenizer, prompts, facts, RowSettings.of(plan.settings), chat=chat)
    for remark in sorted([*accepted.refused, *accepted.shortened], key=lambda remark: remark.index):
        said = remark.of("the prompt")
        if remark.error is not None and source is None:
            raise remark.error(said)
        warning = "" if remark.error else "warning: "
        complain(f"{_where(source, jobs[remark.index].number)}{warning}{said}")
    return accepted


@contextlib.contextmanager
def open_output(
    path: Path | None, resume: bool, plan: Plan, order: Sequence[RowId]
) -> Iterator[tuple[Callable[[dict[str, Any]], None], set[RowId]]]:
    """(how to write a line, ids written before); a file whose run comes to its end is put in the order of these ids.

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
        if unordered := writer.close_in_order(order):
            complain(unordered)


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
    accepted: Accepted,
    model: Any,
    tokenizer: Any,
    plan: Plan,
    write: Callable[[dict[str, Any]], None],
    *,
    source: str | None,
) -> int:
    """Generate and write the text of every accepted prompt as it finishes; Ctrl-C ends the program with exit code 130.

    Returns how many could not be made (each reported; an error if it is the only).
    """
    from caw.decoding.prompts import PromptWarning
    from caw.entrance import stream_results
    from caw.found.attempts import UnfoundError

    done, failed, label, total = 0, 0, plan.label, len(accepted.ids)
    bar = GenerationProgress(total, enabled=True)
    results = stream_results(
        model, tokenizer, replace(accepted, refused=[]), plan.watermark, plan.policy, plan.settings, report=bar.note,
        detector=plan.detector(tokenizer, accepted.facts.vocab_size),
    )  # fmt: skip
    try:
        with warnings.catch_warnings(), doing("generating") if total == 1 else bar:
            warnings.simplefilter("ignore", PromptWarning)  # said here, with the line
            for result in results:
                if result.error:
                    if source is None:
                        raise ValueError(result.reason)
                    complain(f"{_where(source, jobs[result.index].number)}{result.reason}")
                    failed += 1
                    continue
                if result.receipt is not None and not result.receipt.found:
                    complain(f"{_where(source, jobs[result.index].number)}not found: {result.receipt.reason}")
                write(output_line(jobs[result.index], result, label, plan.with_prompt))
                done += 1
                bar(len(result.tokens))
    except UnfoundError as error:
        raise ValueError(error.of("this one" if source is None else f"line {jobs[error.index].number}'s")) from None
    except KeyboardInterrupt:
        complain(f"interrupted: {done} of {total} texts are written; the same command with --resume continues")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def output_line(job: Job, result: GenerationResult, label: dict[str, Any], with_prompt: bool) -> dict[str, Any]:
    """One line of output; "id" comes first, which is how a resumed file is told from others."""
    line: dict[str, Any] = {"id": job.id}
    if with_prompt:
        line["prompt"] = job.prompt
    line |= {"text": result.text, "tokens": result.tokens, "finish_reason": result.finish_reason, **label}
    if result.receipt is not None:
        line["receipt"] = result.receipt.as_dict()
    if result.trace is not None:
        line["trace"] = {
            "capacity": [None if math.isnan(c) else c for c in result.trace.capacity],
            "strength": result.trace.strength,
            "candidates": [list(c) for c in result.trace.candidates],
            "choice": result.trace.choice,
            **({"drafts": asdict(result.trace.drafts)} if result.trace.drafts is not None else {}),
        }
    return line


def _print_line(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(encode(line))
    sys.stdout.buffer.flush()


def print_text(line: dict[str, Any]) -> None:
    # a terminal that lacks a letter is no reason to throw the text away
    encoding = sys.stdout.encoding or "utf-8"
    print(line["text"].encode(encoding, "backslashreplace").decode(encoding), flush=True)
