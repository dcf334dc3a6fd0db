"""`caw detect`: test text for a key's watermark. Loads a tokenizer; loads a model only for --weights model:NAME."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import detect_model as reader
from caw.cli import detect_registry as deployed
from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.detect_at import At, test_at
from caw.cli.detect_config import Normalize, read_key_list
from caw.cli.detect_lines import made_of, of_other_keys, unread
from caw.cli.detect_output import Item, report_null, report_power, result_line, show
from caw.cli.detect_receipts import read_receipts
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.policy_choice import choose_watermark
from caw.flags import flag
from caw.io.files import check_paths
from caw.io.inputs import name_of, open_input, read_bounded, read_text
from caw.io.jsonl import Row, read_rows, text_field
from caw.io.progress import Bar
from caw.manifest import bare, read, trusted
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
class Texts:
    """Where the texts are: in exactly one of `sources`."""

    file: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Text files, one text each; - reads stdin.")
    ] = None
    text: str | None = flag(None, "Text to test; - reads stdin.")
    input: str | None = flag(
        None, 'JSONL file, one text per line: {"text": ..., "id": ...}; - reads stdin.', None, "--input", "-i"
    )
    field: str = flag("text", "Field that holds the text or a list of token ids.")
    tokenizer: str | None = flag(
        None, f"Tokenizer of the text's model: {DEMO_MODEL}, a .gguf file, a folder or a hub id."
    )
    null: str | None = flag(
        None, "JSONL file of unmarked texts: measure the key's false-positive rate.", REPORT, "--null-report"
    )
    power: str | None = flag(None, "JSONL file of marked texts: measure the detection rate by length.", REPORT)

    @property
    def sources(self) -> dict[str, str | None]:
        """The places, by option; of several files the first."""
        named = {"FILE": next(iter(self.file or ()), None), "--text": self.text, "--input": self.input}
        return {**named, "--null-report": self.null, "--power": self.power}


@dataclass(frozen=True)
class Test:
    """How texts are tested."""

    fpr: float | None = flag(None, f"False-positive rate: threshold on the p-value [{FPR:g}].", TEST)
    mode: str | None = flag(
        None, "Count each n-gram once (exact), or like the format's own system (compat) [exact].", TEST,
        metavar="exact|compat",
    )  # fmt: skip
    normalize: Normalize = None
    prefix: str = flag("", "Text that every input starts with, such as a prompt; excluded from the test.", TEST)
    regions: bool = flag(False, "Also find the marked parts of each text.", TEST)
    receipt: str | None = flag(None, "Receipts of `caw generate` or `caw serve`: repeat each recorded test.", TEST)
    manifest: str | None = flag(None, "C2PA manifest that came beside the text.", TEST, metavar="FILE")
    c2pa_trust: str | None = flag(None, "PEM file of certificates whose C2PA manifests are trusted.", TEST)


@dataclass(frozen=True)
class Report:
    """What is written of the results."""

    as_json: bool = flag(False, "Print one JSON object per text.", REPORT, "--json")
    html: Path | None = flag(None, "Write an HTML page with the evidence.", REPORT)
    qq: Path | None = flag(None, "Image file for the QQ plot of --null-report.", REPORT)


@dataclass(frozen=True)
class Task:
    """The detectors, by name (one, or those of --config), how they test, and the outputs to write."""

    detectors: dict[str, Detector]
    fpr: float
    regions: bool
    report: Report

    @property
    def only(self) -> Detector | None:
        return next(iter(self.detectors.values())) if len(self.detectors) == 1 else None

    def behind(self, item: Item) -> Task:
        """Return the task for a text that a model reads by its own prompt, or as drawn in its own way."""
        weights: Any = next(iter(self.detectors.values())).weights
        if item.prompt is not None:
            weights = weights.with_prompt(item.prompt)
        if item.drawn:
            weights = reader.drawn_as(weights, item.drawn)
        return replace(self, detectors={n: replace(d, weights=weights) for n, d in self.detectors.items()})


@command(
    "file text input tokenizer watermark key registry tenant at fpr weights prompt-file regions receipt json html",
    options={**opt.OF_TEST, **options_of(opt.MarkOptions, "vocab_size", "payload_bits")},
)
def detect(
    *,
    texts: Texts,
    watermark: opt.MarkName = None,
    key: opt.Key = None,
    options: dict[str, Any],
    config: Annotated[Path | None, opt.panel(opt.MARK, "YAML file of watermarks to test for.", "--config")] = None,
    registry: deployed.RegistryUrl = None,
    tenant: deployed.Tenant = None,
    at: At = None,
    test: Test,
    report: Report,
    reads: reader.ReaderSettings,
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
    - caw detect --tokenizer smollm2-135m essays/*.txt
    - caw detect --tokenizer smollm2-135m --input out.jsonl --json > results.jsonl
    - caw detect --input out.jsonl --field tokens
    - caw detect --tokenizer smollm2-135m --config keys.yaml essay.txt
    - caw detect --tokenizer smollm2-135m --registry sqlite:///keys.db --tenant acme essay.txt
    - caw detect --at https://texts.example.org essay.txt
    - caw detect --tokenizer smollm2-135m --input out.jsonl --receipt out.jsonl
    - caw detect --tokenizer smollm2-135m --registry sqlite:///keys.db --receipt receipts.jsonl essay.txt
    - caw detect --tokenizer smollm2-135m --null-report corpus.jsonl --qq qq.svg
    - caw detect --weights model:smollm2-135m --prompt-file question.txt --chat answer.txt
    - caw detect --weights model:smollm2-135m --input out.jsonl --prompt-field prompt
    - caw detect --watermark recommended --weights model:smollm2-135m --prompt-file question.txt --temperature 0.7 a.txt
    """
    with user_errors():
        for package, option, path in (("pyyaml", "--config", config), ("matplotlib", "--qq", report.qq)):
            if path is not None:
                require(package, option)
        sources, null, power = texts.sources, texts.null, texts.power
        files = {**sources, **{f"FILE {file}": file for file in texts.file or ()}, "--config": config,
                 "--text": "-" if texts.text == "-" else None, "--tokenizer": texts.tokenizer,
                 "--receipt": test.receipt, "--manifest": test.manifest, "--c2pa-trust": test.c2pa_trust,
                 **reads.files}  # fmt: skip
        check_paths(files, {"--html": report.html, "--qq": report.qq})
        reads.check(sources)
        options |= reads.of_mark
        single = texts.input is None and len(texts.file or ()) < 2
        if registry is not None or tenant is not None or at is not None:
            others = {"key or CAW_KEY": key, "mode": test.mode, "config": config, "weights": reads.weights,
                      "regions": test.regions, "html": report.html, "null-report": null,
                      "qq": report.qq, "power": power, "watermark": watermark is not None,
                      **{name.replace("_", "-"): value for name, value in options.items()}}  # fmt: skip
            if at is not None:
                others |= {"registry": registry, "tenant": tenant, "tokenizer": texts.tokenizer, "fpr": test.fpr,
                           "normalize": test.normalize, "prefix": test.prefix or None,
                           "receipt": test.receipt, "manifest": test.manifest,
                           "c2pa-trust": test.c2pa_trust}  # fmt: skip
            given = next((name for name, value in others.items() if value not in (None, False)), None)
            if given is not None:
                whose = "the registry" if at is None else "the server"
                raise ValueError(f"{whose} defines how its keys are tested, got --{given} as well; leave one out")
            if at is not None:
                items, bad = read_items(texts)
                bad += test_at(at, items, as_json=report.as_json, single=single)
                raise typer.Exit(BAD_LINES if bad else 0)
            found, near = deployed.watermarks(registry, tenant)
            items, bad = read_items(texts)
            items = with_records(items, test, as_json=report.as_json, single=single)
            bad += check_made(items, list(found.values()), texts.input)
            loaded, how = _tokenizer_for(items, texts.tokenizer), {"fpr": test.fpr, "normalize": test.normalize}
            bad += deployed.test(
                found, items, loaded, how, test.prefix, test.receipt, near, as_json=report.as_json, single=single
            )
            raise typer.Exit(BAD_LINES if bad else 0)
        told = None if test.receipt is None else read_receipts(test.receipt)
        other = None if test.mode == "exact" else test.mode  # a mode of other systems is for their green lists
        named = watermark if watermark or told is None else told.any.watermark
        name = choose_watermark(named, {**options, "mode": other}, reads.policy, reads.of_policy)
        marks = _watermarks(config, name, key, options)
        how = {"fpr": test.fpr, "mode": test.mode, "normalize": test.normalize, "weights": reads.weights,
               "regions": test.regions or None}  # fmt: skip
        if told is not None:
            told.check_with(marks, {"--config": config, "--null-report": null, "--power": power})
            how = told.options(how)
        task = _task(marks, how, test.prefix, report)
        _check(task, null, power)
        if test.regions:
            task = replace(task, detectors={n: replace(d, regions=True) for n, d in task.detectors.items()})
        items, bad = read_items(texts, reads.prompt_field)
        items = with_records(items, test, as_json=report.as_json, single=single)
        if null is None:
            bad += check_made(items, [each.watermark for each in task.detectors.values()], texts.input or power)
        if told is not None:
            items, strangers = told.known(items)
            bad += strangers
        if reads.model is not None:
            if told is None:
                marks_tested = [each.watermark for each in task.detectors.values()]
                reads, items = reads.as_told(items, marks_tested, alike=null is not None or power is not None)
            task = _with_model(task, reads, told)
        task = _with_tokenizer(task, items, texts.tokenizer)
        if null is not None:
            report_null(task.detectors, items, report.qq, as_json=report.as_json)
        elif power is not None:
            report_power(task.detectors, items, as_json=report.as_json)
        else:
            bad += _test(task, items, told, single=single)
    if bad:
        raise typer.Exit(BAD_LINES)


def _task(marks: dict[str, Signature], test: dict[str, Any], prefix: str, report: Report) -> Task:
    """Build the task from the options, with placeholders for weights that a model will provide."""
    from caw.detection import Detector

    given = {name: value for name, value in test.items() if value is not None}
    regions = given.pop("regions", False)
    if isinstance(given.get("weights"), str) and reader.model_of(given["weights"]) is not None:
        given["weights"] = reader.stand_in()
    detectors = {name: Detector(None, mark, prefix=prefix, **given) for name, mark in marks.items()}
    return Task(detectors, given.get("fpr", FPR), regions, report)


def _watermarks(config: Path | None, name: str, key: str | None, options: dict[str, Any]) -> dict[str, Signature]:
    if config is not None:
        given = [opt.as_typed(option) for option, value in options.items() if value is not None]
        if given:
            raise ValueError(f"--config defines the watermarks completely, got {given[0]} as well; leave it out")
        return read_key_list(config)
    if name not in WATERMARKS:
        raise ValueError(f"watermark must be one of {', '.join(WATERMARKS)}, got {name!r}; choose one")
    mark = opt.build_watermark(name, key, options)
    assert mark is not None
    return {name: mark}


def _check(task: Task, null: str | None, power: str | None) -> None:
    """Reject options that would have no effect."""
    whole = "--null-report" if null is not None else "--power" if power is not None else None
    for option, given in (("--regions", task.regions), ("--html", task.report.html is not None)):
        if whole and given:
            raise ValueError(f"{option} is per text and {whole} is about all texts together; leave one out")
    if task.regions and any(d.weights is not None or d.mode != "exact" for d in task.detectors.values()):
        raise ValueError("--regions requires --mode exact without --weights; leave one out")
    if (task.regions or null is not None) and any(d.watermark.code is not None for d in task.detectors.values()):
        raise ValueError("--regions and --null-report do not support payloads; leave --payload-bits out")
    if task.report.qq is not None and null is None:
        raise ValueError("--qq requires --null-report; add it")
    if task.only is None and task.report.html:
        raise ValueError("--html supports one watermark, got several; leave --config out")


def _with_model(task: Task, reads: reader.ReaderSettings, told: Receipts | None) -> Task:
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
    with Bar(len(items), "testing", "texts", enabled=not (task.report.as_json and sys.stdout.isatty())) as bar:
        for item, result in run_detection(task, items):
            bar()
            if isinstance(result, str):
                bad += 1
                complain(item.said(result, single=single))
                continue
            bad += told is not None and not told.confirms(item, result, single=single)
            if task.report.as_json:
                print(json.dumps(result_line(item, result)), flush=True)
            if not task.report.as_json or task.report.html:
                results.append((item, result))
    if not task.report.as_json:
        show(results, single=single)
    if task.report.html is not None:
        assert task.only is not None
        write_html(task.report.html, [(str(i.id), r) for i, r in results], task.only)  # type: ignore[misc]
        complain(f"wrote {task.report.html}")
    return bad


def read_items(texts: Texts, prompt_field: str | None = None) -> tuple[list[Item], int]:
    """Read the items of exactly one of FILE, --text and the input files. Also return how many bad lines it reported."""
    sources, field, files = texts.sources, texts.field, texts.file or []
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
    if file := next((each for each in files if each.endswith(".jsonl")), None):
        raise ValueError(f"FILE is tested as one text, got {file}; give --input for a file with a text on each line")
    if len(set(files)) < len(files):
        raise ValueError(f"each FILE must be given once, got {' '.join(files)}; leave the second out")
    if len(files) > 1:
        return [Item(0, file, read_text(file)) for file in files], 0
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


def with_records(items: Sequence[Item], test: Test, *, as_json: bool, single: bool) -> list[Item]:
    """Return the texts without what was put behind them; print what their manifests say, or have --json say it.

    ValueError or OSError, in one sentence, for files that hold something else.
    """
    if test.manifest is not None and not single:
        raise ValueError("--manifest is of one text, got several; give them one by one")
    beside = None if test.manifest is None else read_bounded(test.manifest)
    trust = trusted(test.c2pa_trust)
    texts = []
    for item in items:
        record = None
        if isinstance(item.content, str):
            record, item = read(item.content, trust, beside), replace(item, content=bare(item.content))
        if record is not None:
            item = replace(item, told={"manifest": {**asdict(record), "message": record.message}})
            if not as_json:
                print(item.said(record.message, single=single))
        texts.append(item)
    return texts


def check_made(items: Sequence[Item], marks: Sequence[Signature], source: str | None) -> int:
    """Report texts whose lines name another key or mark than is tested; return how many have another mark."""
    made = [item.made for item in items]
    count, said = unread(made, marks)
    for remark in filter(None, (said, of_other_keys(made, marks))):
        complain(f"{name_of(source or '-')}: {remark}")
    return count


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
