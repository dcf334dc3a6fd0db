"""Prompts of `caw generate`, and the output lines of their texts."""

from __future__ import annotations

import contextlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import INTERRUPTED, complain
from caw.cli.generate_resume import DIGEST, LineCheck, numbered, settle
from caw.io.inputs import name_of, open_input, read_text
from caw.io.jsonl import JsonlWriter, Row, RowId, encode, read_rows, text_field
from caw.io.progress import GenerationProgress, doing
from caw.settings import DRAWING

if TYPE_CHECKING:
    from caw.decoding.prompts import Accepted
    from caw.detection import Detector, TokenWeights
    from caw.entrance import GenerationResult
    from caw.models.arithmetic import Arithmetic
    from caw.policies import Policy
    from caw.settings import Settings
    from caw.watermarks import Signature

MESSAGES = "messages"  # field of a line that is a conversation


@dataclass(frozen=True)
class PromptEntry:
    """A prompt and its line. occurrence: equal prompts before it, None if counted when prompts are accepted."""

    number: int
    id: RowId
    prompt: str | list[dict[str, Any]]
    occurrence: int | None = None


@dataclass(frozen=True)
class RunSettings:
    """A run except its prompts; `label`, in each line, must not change on resume. model_digest: "" until loaded."""

    model: str
    watermark: Signature | None
    policy: Policy | None
    settings: Settings
    with_prompt: bool
    weights: TokenWeights | None = None
    numbers: Arithmetic | None = None
    model_digest: str = ""

    @property
    def own_policy(self) -> Policy | None:
        """The policy to generate with: None where the watermark brings it."""
        return None if self.watermark is not None and len(self.watermark.parts) > 1 else self.policy

    def check(self) -> None:
        """Reject, before a model is loaded, invalid stop strings and options that cannot be written to a line."""
        from caw.decoding.stopping import StopStrings

        StopStrings(None, self.settings.stop)
        encode(self.label)

    def detector(self, tokenizer: Any, vocab_size: int) -> Detector | None:
        """Return the detector that tests texts before they are written, if it is not `caw detect` without options."""
        if self.weights is None or self.watermark is None:
            return None
        from caw.detection import Detector

        return Detector(tokenizer, self.watermark.with_vocabulary(vocab_size), weights=self.weights)

    @property
    def tested(self) -> dict[str, Any]:
        """How texts are tested, for the label; empty if they are not."""
        said = self.settings.tested()
        return {**said, "weights": self.weights.digest if self.weights else None} if said else {}

    @cached_property
    def label(self) -> dict[str, Any]:
        """Everything that determines a text besides its prompt."""
        import caw

        s = self.settings
        sampling = {name: getattr(s, name) for name in (*DRAWING[1:], "seed")}
        return {
            "watermark": opt.describe(self.watermark),
            "policy": opt.describe(self.policy),
            "key_id": self.watermark.key_id if self.watermark else None,
            "settings": {
                "model": self.model,
                "max_new_tokens": s.max_new_tokens,
                "min_new_tokens": s.min_new_tokens,
                "sampling": sampling if s.do_sample else None,
                **s.penalties(),
                "stop": list(s.stop or ()),
                "chat": s.chat,
                **({"mark_eos": s.mark_eos} if self.watermark else {}),
                **self.tested,
                **(self.numbers.as_dict() if self.numbers else {}),
                "version": caw.__version__,
                **self._evaluator,
                "model_digest": self.model_digest,
            },
        }

    @property
    def _evaluator(self) -> dict[str, str]:
        """The digest of the evaluator's weights, if there is one: its name is not enough."""
        network = getattr(self.policy, "network", None)
        if network is None:
            return {}
        from caw.models.fingerprint import state_sha256

        return {"evaluator_digest": state_sha256(network.state_dict())}


def read_prompts(prompt: str | None, source: str | None, field: str, *, chat: bool) -> tuple[list[PromptEntry], int]:
    """Read prompts; chat: conversations too. Also return the number of bad lines, each reported."""
    if (prompt is None) == (source is None):
        raise ValueError(
            f"exactly one of --prompt and --input is required, got {'none' if prompt is None else 'both'}; give one"
        )
    if prompt is not None:
        return [PromptEntry(1, 1, read_text("-", translate=True) if prompt == "-" else prompt)], 0
    assert source is not None
    entries, bad = [], 0
    with open_input(source) as lines:
        for row in read_rows(lines, field=field):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                entries.append(PromptEntry(row.number, row.id, _prompt_of(row.value, field, chat=chat)))
            except ValueError as error:
                bad += 1
                complain(f"{_where(source, row.number)}{error}")
    return entries, bad


def _prompt_of(value: dict[str, Any], field: str, *, chat: bool) -> str | list[dict[str, Any]]:
    """Return the prompt of a line: the text or the messages in its field, otherwise those in `messages`."""
    if field == "prompt" and field not in value and MESSAGES in value:
        field = MESSAGES
    found = value.get(field)
    if not (isinstance(found, list) and found and all(isinstance(one, dict) for one in found)):
        return text_field(value, field)
    if not chat:
        raise ValueError(f"{field} is a conversation, which requires the model's chat template; add --chat")
    return found


def _where(source: str | None, line: int) -> str:
    """Return the prefix of a report about a line; empty for a single prompt."""
    if source is None:
        return ""
    return f"{name_of(source)}, line {line}: "


def accept_entries(
    entries: Sequence[PromptEntry], model: Any, tokenizer: Any, run: RunSettings, *, source: str | None
) -> Accepted:
    """Return the prompts that can be continued; report others (an error without a source: it is the only one)."""
    from caw.decoding.prompts import accept_prompts
    from caw.decoding.row_settings import RowSettings
    from caw.models.facts import ModelFacts

    chat = run.settings.chat
    if chat and not getattr(tokenizer, "chat_template", None):
        raise ValueError(f"--chat requires a tokenizer with a chat template, {run.model} has none; leave --chat out")
    facts, prompts = ModelFacts.of(model, tokenizer), [entry.prompt for entry in entries]
    accepted = accept_prompts(tokenizer, prompts, facts, RowSettings.of(run.settings), chat=chat)
    for place, index in enumerate(accepted.indices):
        if (occurrence := entries[index].occurrence) is not None:  # of the whole input, not of what is left of it
            accepted.requests[place] = replace(accepted.requests[place], occurrence=occurrence)
    for remark in sorted([*accepted.refused, *accepted.shortened], key=lambda remark: remark.index):
        said = remark.of("the prompt")
        if remark.error is not None and source is None:
            raise remark.error(said)
        warning = "" if remark.error else "warning: "
        complain(f"{_where(source, entries[remark.index].number)}{warning}{said}")
    return accepted


@dataclass(frozen=True)
class Output:
    """Where lines go. todo: prompts without a line. written: number of existing lines. checked: facts about them."""

    write: Callable[[dict[str, Any]], None]
    todo: list[PromptEntry]
    written: int = 0
    checked: LineCheck | None = None


@contextlib.contextmanager
def open_output(
    path: Path | None,
    run: RunSettings,
    entries: Sequence[PromptEntry],
    digest: Callable[[], Callable[[Any], str]],
    *,
    resume: bool = False,
) -> Iterator[Output]:
    """Open the output; sort it when complete. digest: see `settle`. ValueError for other settings or prompts."""
    if path is None:
        if resume:
            raise ValueError("--resume requires --output; give the file to continue")
        yield Output(_print_line, list(entries))
        return
    checked, number = LineCheck(path, run.label), itertools.count(1)
    with JsonlWriter(path, resume=resume, keep=lambda line: checked(next(number), line)) as writer:
        todo = settle(writer, entries, digest)
        yield Output(writer.write, todo, len(writer.existing), checked)
        if unordered := writer.close_in_order([entry.id for entry in entries]):
            complain(unordered)


def generate_lines(
    entries: Sequence[PromptEntry],
    accepted: Accepted,
    model: Any,
    tokenizer: Any,
    run: RunSettings,
    write: Callable[[dict[str, Any]], None],
    *,
    source: str | None,
) -> int:
    """Write each prompt's text when it is finished. Return the number of failures, reported; a lone prompt's raises."""
    from caw.decoding.prompts import PromptWarning, prompt_digest
    from caw.detectable.attempts import UndetectedError
    from caw.entrance import stream_results

    done, failed, label, total = 0, 0, run.label, len(accepted.ids)
    of_index = dict(zip(accepted.indices, accepted.requests, strict=True))
    bar = GenerationProgress(total, enabled=True)
    results = stream_results(
        model, tokenizer, replace(accepted, refused=[]), run.watermark, run.own_policy, run.settings, report=bar.note,
        detector=run.detector(tokenizer, accepted.facts.vocab_size),
    )  # fmt: skip
    try:
        with warnings.catch_warnings(), doing("generating") if total == 1 else bar:
            warnings.simplefilter("ignore", PromptWarning)  # said here, with the line
            for result in results:
                if result.error:
                    if source is None:
                        raise ValueError(result.reason)
                    complain(f"{_where(source, entries[result.index].number)}{result.reason}")
                    failed += 1
                    continue
                if result.receipt is not None and not result.receipt.detected:
                    complain(f"{_where(source, entries[result.index].number)}not detected: {result.receipt.reason}")
                entry = entries[result.index]
                digest = prompt_digest(tokenizer, entry.prompt, chat=run.settings.chat)
                made = {DIGEST: numbered(digest, of_index[result.index].occurrence), **label}
                write(output_line(entry, result, made, run.with_prompt))
                done += 1
                bar(len(result.tokens))
    except UndetectedError as error:
        raise ValueError(error.of("this one" if source is None else f"line {entries[error.index].number}'s")) from None
    except KeyboardInterrupt:
        complain(f"interrupted: {done} of {total} texts are written; continue with --resume")
        raise typer.Exit(INTERRUPTED) from None
    return failed


def output_line(
    entry: PromptEntry, result: GenerationResult, label: dict[str, Any], with_prompt: bool
) -> dict[str, Any]:
    """Build one output line; "id" comes first, which identifies resumable files."""
    line: dict[str, Any] = {"id": entry.id}
    if with_prompt:
        line["prompt" if isinstance(entry.prompt, str) else MESSAGES] = entry.prompt
    line |= {"text": result.text, "tokens": result.tokens, "finish_reason": result.finish_reason, **label}
    if result.receipt is not None:
        line["receipt"] = result.receipt.as_dict()
    return line


def _print_line(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(encode(line))
    sys.stdout.buffer.flush()


def print_text(line: dict[str, Any]) -> None:
    # a terminal that lacks a letter is no reason to throw the text away
    encoding = sys.stdout.encoding or "utf-8"
    print(line["text"].encode(encoding, "backslashreplace").decode(encoding), flush=True)
