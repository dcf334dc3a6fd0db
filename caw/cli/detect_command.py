"""`caw detect`: test text for a key's watermark. Loads a tokenizer; loads a model only for --weights model:NAME."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import detect_model as reader
from caw.cli import detect_registry as deployed
from caw.cli import options as opt
from caw.cli.detect_config import Normalize, read_key_list
from caw.cli.detect_lines import made_of, of_other_keys, replaced, unread
from caw.cli.detect_output import Item, report_null, report_power, result_line, show
from caw.cli.detect_receipts import read_receipts
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.policy_choice import choose_watermark
from caw.io.files import check_paths
from caw.io.inputs import name_of, open_input, read_text
from caw.io.jsonl import Row, read_rows, text_field
from caw.io.progress import Bar
from caw.models import DEMO_MODEL
from caw.requirements import require
from caw.watermarks.names import WATERMARKS

if TYPE_CHECKING:
    from caw.cli.detect_output import Result
    from caw.cli.detect_receipts import Receipts
    from caw.detection import Detector
    from caw.watermarks import Signature

CHUNK = 64  # texts handed to the detector at once
FPR = deployed.FPR
TEST, REPORT = "Test", "Reports"


@dataclass(frozen=True)
class Task:
    """The detectors, by name (one, or those of --config), and the outputs to write."""

    detectors: dict[str, Detector]
    fpr: float
    as_json: bool
    regions: bool
    html: Path | None

    @property
    def only(self) -> Detector | None:
        """Return the detector if there is exactly one."""
        return next(iter(self.detectors.values())) if len(self.detectors) == 1 else None

    def behind(self, item: Item) -> Task:
        """Return the task for a text that a model reads by its own prompt, or as drawn in its own way."""
        weights: Any = next(iter(self.detectors.values())).weights
        if item.prompt is not None:
            weights = weights.with_prompt(item.prompt)
        if item.drawn:
            weights = reader.drawn_as(weights, item.drawn)
        return replace(self, detectors={n: replace(d, weights=weights) for n, d in self.detectors.items()})


@opt.grouped(
    options={**opt.OF_TEST, "vocab-size": opt.VocabSize, "payload-bits": opt.PayloadBits},
    of_mark=opt.OF_STRENGTH,
    steps=opt.OF_POLICY,
    drawn=reader.DRAWN,
    running=reader.RUNNING,
)
def detect(
    *,
    source: Annotated[str | None, typer.Argument(metavar="FILE", help="Text file; - reads stdin.")] = None,
    text: Annotated[str | None, typer.Option(help="Text to test; - reads stdin.")] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help='JSONL file, one text per line: {"text": ..., "id": ...}; - reads stdin.'),
    ] = None,
    field: Annotated[str, typer.Option(help="Field that holds the text or a list of token ids.")] = "text",
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Tokenizer of the text's model: {DEMO_MODEL}, a .gguf file, a folder or a hub id."),
    ] = None,
    watermark: opt.MarkName = None,
    key: opt.Key = None,
    options: dict[str, Any],
    config: Annotated[Path | None, opt.panel(opt.MARK, "YAML file of watermarks to test for.", "--config")] = None,
    registry: deployed.RegistryUrl = None,
    tenant: deployed.Tenant = None,
    fpr: Annotated[float | None, opt.panel(TEST, f"False-positive rate: threshold on the p-value [{FPR:g}].")] = None,
    mode: Annotated[
        str | None,
        opt.panel(
            TEST,
            "Count each n-gram once (exact), or like the format's own system (compat) [exact].",
            metavar="exact|compat",
        ),
    ] = None,
    normalize: Normalize = None,
    prefix: Annotated[
        str, opt.panel(TEST, "Text that every input starts with, such as a prompt; excluded from the test.")
    ] = "",
    weights: reader.WeightsName = None,
    regions: Annotated[bool, opt.panel(TEST, "Also find the marked parts of each text.", "--regions")] = False,
    receipt: Annotated[
        str | None,
        opt.panel(TEST, "Receipts of `caw generate` or `caw serve`: repeat each recorded test.", "--receipt"),
    ] = None,
    as_json: Annotated[bool, opt.panel(REPORT, "Print one JSON object per text.", "--json")] = False,
    html: Annotated[Path | None, opt.panel(REPORT, "Write an HTML page with the evidence.", "--html")] = None,
    null: Annotated[
        str | None,
        opt.panel(REPORT, "JSONL file of unmarked texts: measure the key's false-positive rate.", "--null-report"),
    ] = None,
    qq: Annotated[Path | None, opt.panel(REPORT, "Image file for the QQ plot of --null-report.", "--qq")] = None,
    power: Annotated[
        str | None, opt.panel(REPORT, "JSONL file of marked texts: measure the detection rate by length.", "--power")
    ] = None,
    prompt_file: reader.PromptFile = None,
    prompt_field: reader.PromptField = None,
    calibration: reader.CalibrationFile = None,
    chat: reader.Chat = False,
    policy: reader.PolicyName = None,
    steps: dict[str, Any],
    drawn: dict[str, Any],
    of_mark: dict[str, Any],
    running: dict[str, Any],
) -> None:
    """Test text for a watermark; neither the model nor the prompt is needed.

    Give the key, watermark and parameters that the text was generated with. The p-value is the share of keys under
    which an unmarked text would score at least as high. The exit code says whether the test ran, not its result: 0
    success, 1 some lines of --input were bad or a p-value differs from its receipt, 2 bad usage.

    --regions also finds the marked parts of a longer text. Its single p-value is corrected for that search: a text that
    is marked throughout needs a p-value half as large as without --regions.

    With --weights model:NAME, a model reads each text (best with its prompt) and tokens are weighted by how much
    freedom they left to the mark, which detects far weaker marks. Give the marking policy as for `caw generate`.

    Examples:

    - read -rs CAW_KEY; export CAW_KEY
    - caw detect --tokenizer smollm2-135m --text "..."
    - caw detect --tokenizer smollm2-135m essay.txt --fpr 1e-5 --regions --html essay.html
    - caw detect --tokenizer smollm2-135m --input out.jsonl --json > results.jsonl
    - caw detect --input out.jsonl --field tokens
    - caw detect --tokenizer smollm2-135m --config keys.yaml essay.txt
    - caw detect --tokenizer smollm2-135m --registry sqlite:///keys.db --tenant acme essay.txt
    - caw detect --tokenizer smollm2-135m --input out.jsonl --receipt out.jsonl
    - caw detect --tokenizer smollm2-135m --registry sqlite:///keys.db --receipt receipts.jsonl essay.txt
    - caw detect --tokenizer smollm2-135m --null-report corpus.jsonl --qq qq.svg
    - caw detect --weights model:smollm2-135m --prompt-file question.txt --chat answer.txt
    - caw detect --weights model:smollm2-135m --input out.jsonl --prompt-field prompt
    - caw detect --watermark recommended --weights model:smollm2-135m --prompt-file question.txt --temperature 0.7 a.txt
    """
    with user_errors():
        for package, option, path in (("pyyaml", "--config", config), ("matplotlib", "--qq", qq)):
            if path is not None:
                require(package, option)
        given = {"FILE": source, "--text": text, "--input": input, "--null-report": null, "--power": power}
        asked = (prompt_file, prompt_field, calibration, chat, policy, steps, of_mark, drawn, running)
        reads = reader.ReaderSettings(reader.model_of(weights), *asked)
        files = {"--config": config, "--tokenizer": tokenizer, "--receipt": receipt, "--prompt-file": prompt_file,
                 "--calibration": calibration, "--weights": reads.model or weights,
                 "--evaluator": steps["evaluator"]}  # fmt: skip
        check_paths({**given, **files, "--text": "-" if text == "-" else None}, {"--html": html, "--qq": qq})
        reads.check(given)
        options |= of_mark
        if registry is not None or tenant is not None:
            others = {"key or CAW_KEY": key, "mode": mode, "config": config, "weights": weights,
                      "regions": regions, "html": html, "null-report": null,
                      "power": power, "watermark": watermark is not None, **options}  # fmt: skip
            found = deployed.watermarks(registry, tenant, others)
            items, bad = read_items(given, field)
            bad += check_made(items, list(found.values()), input)
            loaded, how = _tokenizer_for(items, tokenizer), {"fpr": fpr, "normalize": normalize}
            bad += deployed.test(found, items, loaded, how, prefix, receipt, as_json=as_json, single=input is None)
            raise typer.Exit(BAD_LINES if bad else 0)
        told = None if receipt is None else read_receipts(receipt)
        other = None if mode == "exact" else mode  # a mode of other systems is for their green lists
        named = watermark if watermark or told is None else told.any.watermark
        marks = _watermarks(config, choose_watermark(named, {**options, "mode": other}, policy, steps), key, options)
        test = {"fpr": fpr, "mode": mode, "normalize": normalize, "weights": weights,
                "regions": regions or None}  # fmt: skip
        if told is not None:
            told.check_with(marks, {"--config": config, "--null-report": null, "--power": power})
            test = told.options(test)
        task = _task(marks, test, prefix, as_json, html)
        _check(task, qq, null, power)
        if regions:
            task = replace(task, detectors={n: replace(d, regions=True) for n, d in task.detectors.items()})
        items, bad = read_items(given, field, prompt_field)
        if null is None:
            bad += check_made(items, [each.watermark for each in task.detectors.values()], input or power)
        if told is not None:
            items, strangers = told.known(items)
            bad += strangers
        if reads.model is not None:
            if told is None:
                marks_tested = [each.watermark for each in task.detectors.values()]
                reads, items = reads.as_told(items, marks_tested, alike=null is not None or power is not None)
            task = _with_model(task, reads, told)
        task = _with_tokenizer(task, items, tokenizer)
        if null is not None:
            report_null(task.detectors, items, qq, as_json=as_json)
        elif power is not None:
            report_power(task.detectors, items, as_json=as_json)
        else:
            bad += _test(task, items, told, single=input is None)
    if bad:
        raise typer.Exit(BAD_LINES)


def _task(marks: dict[str, Signature], test: dict[str, Any], prefix: str, as_json: bool, html: Path | None) -> Task:
    """Build the task from the options, with placeholders for weights that a model will provide."""
    from caw.detection import Detector

    given = {name: value for name, value in test.items() if value is not None}
    regions = given.pop("regions", False)
    if isinstance(given.get("weights"), str) and reader.model_of(given["weights"]) is not None:
        given["weights"] = reader.stand_in()
    detectors = {name: Detector(None, mark, prefix=prefix, **given) for name, mark in marks.items()}
    return Task(detectors, given.get("fpr", FPR), as_json, regions, html)


def _watermarks(config: Path | None, name: str, key: str | None, options: dict[str, Any]) -> dict[str, Signature]:
    """Return the watermarks to test for, by name."""
    if config is not None:
        given = [f"--{option}" for option, value in options.items() if value is not None]
        if given:
            raise ValueError(f"--config defines the watermarks completely, got {given[0]} as well; leave it out")
        return read_key_list(config)
    if name not in WATERMARKS:
        raise ValueError(f"watermark must be one of {', '.join(WATERMARKS)}, got {name!r}; choose one")
    mark = opt.build_watermark(name, key, options)
    assert mark is not None
    return {name: mark}


def _check(task: Task, qq: Path | None, null: str | None, power: str | None) -> None:
    """Reject options that would have no effect."""
    report = "--null-report" if null is not None else "--power" if power is not None else None
    for option, given in (("--regions", task.regions), ("--html", task.html is not None)):
        if report and given:
            raise ValueError(f"{option} is per text and {report} is about all texts together; leave one out")
    if task.regions and any(d.weights is not None or d.mode != "exact" for d in task.detectors.values()):
        raise ValueError("--regions requires --mode exact without --weights; leave one out")
    if (task.regions or null is not None) and any(d.watermark.code is not None for d in task.detectors.values()):
        raise ValueError("--regions and --null-report do not support payloads; leave --payload-bits out")
    if qq is not None and null is None:
        raise ValueError("--qq requires --null-report; add it")
    if task.only is None and task.html:
        raise ValueError("--html supports one watermark, got several; leave --config out")


def _with_model(task: Task, reads: reader.ReaderSettings, told: Receipts | None) -> Task:
    """Return the task with the model's weights, and its tokenizer."""
    weights = reads.load([d.watermark for d in task.detectors.values()])
    if told is not None:
        told.check_weights(weights, f"{reader.MODEL}{reads.model}")
    made = {n: replace(d, tokenizer=weights.tokenizer, weights=weights) for n, d in task.detectors.items()}
    return replace(task, detectors=made)


def _with_tokenizer(task: Task, items: Sequence[Item], name: str | None) -> Task:
    if name is None and all(d.tokenizer is not None for d in task.detectors.values()):
        return task
    if (loaded := _tokenizer_for(items, name)) is None:
        return task
    return replace(task, detectors={n: replace(d, tokenizer=loaded) for n, d in task.detectors.items()})


def _tokenizer_for(items: Sequence[Item], name: str | None) -> Any:
    """Load the tokenizer of this name; None for input that is token ids only."""
    if not any(isinstance(item.content, str) for item in items):
        return None
    if name is None:
        raise ValueError("testing text requires the tokenizer of the model that wrote it; give --tokenizer")
    from caw.models.tokenizer import detection_tokenizer

    return detection_tokenizer(name, complain)


def _test(task: Task, items: Sequence[Item], told: Receipts | None, *, single: bool) -> int:
    """Test all items and print the results. Return how many could not be tested or differ from their receipt."""
    from caw.detection.html_report import write_html

    results: list[tuple[Item, Result]] = []
    bad = 0
    # lines of JSON on a terminal show by themselves how far the test is
    with Bar(len(items), "testing", "texts", enabled=not (task.as_json and sys.stdout.isatty())) as bar:
        for item, result in run_detection(task, items):
            bar()
            if isinstance(result, str):
                bad += 1
                complain(item.said(result, single=single))
                continue
            bad += told is not None and not told.confirms(item, result, single=single)
            if task.as_json:
                print(json.dumps(result_line(item, result)), flush=True)
            if not task.as_json or task.html:
                results.append((item, result))
    if not task.as_json:
        show(results, single=single)
    if task.html is not None:
        assert task.only is not None
        write_html(task.html, [(str(i.id), r) for i, r in results], task.only)  # type: ignore[misc]
        complain(f"wrote {task.html}")
    return bad


def read_items(sources: dict[str, str | None], field: str, prompt_field: str | None = None) -> tuple[list[Item], int]:
    """Read the items of exactly one source: FILE, --text or input files. Also return the number of bad lines, each
    reported.
    """
    given = [name for name, value in sources.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            "exactly one of FILE, --text, --input, --null-report and --power is required, "
            f"got {' and '.join(given) or 'none'}; give one"
        )
    lines = sources[given[0]]
    assert lines is not None
    if given[0] == "--text" and lines != "-":
        return [Item(1, 1, lines)], 0
    if given[0] == "FILE" and lines.endswith(".jsonl"):
        raise ValueError(f"FILE is tested as one text, got {lines}; give --input for a file with a text on each line")
    if given[0] in ("--text", "FILE"):
        return [Item(1, 1, read_text(lines))], 0
    items, bad = [], 0
    with open_input(lines) as stream:
        for row in read_rows(stream, field=field):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                value = row.value.get(field)
                content = value if isinstance(value, list) else text_field(row.value, field)
                prompt = None if prompt_field is None else text_field(row.value, prompt_field)
                items.append(Item(row.number, row.id, content, prompt, made_of(row.value)))
            except ValueError as error:
                bad += 1
                complain(f"{lines}, line {row.number}: {error}")
    if not items and not bad:
        complain(f"{name_of(lines)} has no lines; nothing to test")
    return items, bad


def check_made(items: Sequence[Item], marks: Sequence[Signature], source: str | None) -> int:
    """Report texts whose lines say that they have another mark than is tested, or another key, which may be meant;
    return how many have another mark.
    """
    made = [item.made for item in items]
    count, said = unread(made, marks)
    gone, why = replaced(made, marks)
    for remark in filter(None, (said, why, of_other_keys(made, marks))):
        complain(f"{name_of(source or '-')}: {remark}")
    return count + gone


def run_detection(task: Task, items: Sequence[Item]) -> Iterator[tuple[Item, Result | str]]:
    """Return the result of each item, or one sentence saying why there is none; texts first, then ids."""
    for kind in (str, list):
        chosen = [item for item in items if isinstance(item.content, kind)]
        if any(item.prompt is not None or item.drawn for item in chosen):
            for item in chosen:
                try:
                    behind = task.behind(item)
                except ValueError as error:
                    yield item, str(error)
                else:
                    yield from _detect_chunk(behind, [item])
            continue
        for start in range(0, len(chosen), CHUNK):
            yield from _detect_chunk(task, chosen[start : start + CHUNK])


def _detect_chunk(task: Task, items: Sequence[Item]) -> Iterator[tuple[Item, Result | str]]:
    """Test all items in one call; test them one by one only if the call is refused."""
    from caw.detection.key_list import detect_any

    contents = [item.content for item in items]
    try:
        results = task.only(contents) if task.only else detect_any(contents, task.detectors, task.fpr)
    except (TypeError, ValueError) as error:
        if len(items) == 1:
            yield items[0], str(error)
            return
        for item in items:
            yield from _detect_chunk(task, [item])
        return
    assert isinstance(results, list)
    for item, result in zip(items, results, strict=True):
        yield item, getattr(result, "error", "") or result
