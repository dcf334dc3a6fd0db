"""`caw detection-weights`: token weights, from texts of other keys or from the policy alone."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli.command import command, options_of
from caw.cli.detect_config import read_key_list
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.options import quieten
from caw.cli.place import FLAG, Place
from caw.cli.policy_choice import STRONG
from caw.defaults import THETA
from caw.io.files import check_paths
from caw.io.inputs import open_input
from caw.io.jsonl import Row, read_rows
from caw.io.progress import doing, watched
from caw.requirements import require

if TYPE_CHECKING:
    from caw.detection.calibration import Calibration
    from caw.detection.weights import TokenWeights
    from caw.evaluator import Evaluator
    from caw.policies import Policy
    from caw.watermarks import Watermark


@command(of_reader=options_of(Place, "dtype", "quantization", "device", dtype=None))
def detection_weights(
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Output: a .safetensors table; with --reader a JSON file.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer that the table is for: that of the model that wrote the texts.")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", help="JSONL file of marked texts from `caw generate`; - reads stdin."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="YAML file of the texts' watermarks and keys, as for `caw detect`."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(help="Instead of texts: table to copy the weights of each token class from."),
    ] = None,
    positions: Annotated[
        Path | None,
        typer.Option(help="Instead of texts: --positions folder of `caw train-evaluator`."),
    ] = None,
    evaluator: Annotated[str | None, typer.Option(help="With --positions: evaluator, by name or file.")] = None,
    theta: Annotated[float, typer.Option(help="With --positions: theta of the marking policy.")] = THETA,
    reader: Annotated[
        str | None,
        typer.Option(
            help="Instead of a table: model to calibrate for texts with unknown prompts, for `caw detect --weights "
            "model:NAME --calibration`."
        ),
    ] = None,
    of_reader: dict[str, Any],
    field: Annotated[str, typer.Option(help="Field that holds the text or a list of token ids.")] = "tokens",
    prior: Annotated[
        float | None, typer.Option(help="Pseudo-count that shrinks rare tokens towards their class [fitted].", min=1)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.", callback=quieten)] = False,
) -> None:
    """Create a token-weight table for `caw detect --weights`, or a calibration for weights from a model.

    A policy that protects some kinds of tokens leaves no mark on them; giving them less weight detects the mark sooner.
    The texts must be marked with other keys than the one to be tested, by the same policy and on similar text. A line's
    key_id names its watermark in --config. With --positions no marked text is needed: each token's weight is the
    strength that a capacity policy with this --evaluator and --theta would use. With --reader all lines must name the
    same policy.

    Examples:

    - CAW_KEY=practice caw generate --model smollm2-135m -i prompts.jsonl -o practice.jsonl
    - caw detection-weights --tokenizer smollm2-135m -i practice.jsonl --config keys.yaml -o weights.safetensors
    - caw detect --tokenizer smollm2-135m --weights weights.safetensors essay.txt
    - caw detection-weights --tokenizer ./my-model --like smollm2-135m -o my.safetensors
    - caw detection-weights --tokenizer smollm2-135m --positions seen --evaluator smollm2-135m -o weights.safetensors
    - caw detection-weights --reader smollm2-135m -i practice.jsonl --config keys.yaml -o calibration.json
    """
    bad = 0
    with user_errors():
        if config is not None:
            require("pyyaml", "--config")
        from caw.detection.weight_estimates import weights_by_kind
        from caw.detection.weights import TokenWeights
        from caw.evaluator import Evaluator

        check_paths(
            {"--input": input, "--config": config, "--like": like, "--positions": positions, "--evaluator": evaluator,
             "--tokenizer": tokenizer},
            {"--output": output},
        )  # fmt: skip
        about = {"tokenizer": tokenizer or reader, "command": shlex.join(["caw", *sys.argv[1:]])}
        if sum(given is not None for given in (like, positions, input)) > 1 or (config is not None and input is None):
            raise ValueError("--like, --positions and --input with --config exclude each other, got two; choose one")
        if reader is not None and (input is None or config is None):
            raise ValueError("--reader requires marked texts; give --input and --config")
        if reader is None and any(given is not None for given in of_reader.values()):
            raise ValueError(f"--device, --dtype and {FLAG} require --reader; add it")
        if tokenizer is None and reader is None:
            raise ValueError("a table requires a tokenizer, got none; give --tokenizer or --reader")
        named = tokenizer or ""  # only --reader goes without, which has its own
        made: TokenWeights | Calibration
        if positions is not None:
            if evaluator is None:
                raise ValueError("--positions requires --evaluator, got none; give a name or a file")
            with doing("weighing tokens", announced=True):
                made = from_positions(positions, Evaluator.load(evaluator), theta, named, about)
        elif like is not None:
            from caw.models.tokenizer import load_tokenizer

            made = weights_by_kind(TokenWeights.load(like), load_tokenizer(named), about)
        else:
            if input is None or config is None:
                raise ValueError(
                    "one of --input with --config, --like and --positions is required, got none; give marked texts"
                )
            alone = [mark.parts[0] for mark in read_key_list(config).values() if len(mark.parts) == 1]
            lines = read_marked_lines(input, field, {mark.key_id: mark for mark in alone})
            bad = lines.bad
            if reader is not None:
                made = learned(reader, lines, about, of_reader)
            else:
                made = estimated(named, lines, prior, about)
        made.save(output)
        if isinstance(made, TokenWeights):
            _show(made.provenance)
        complain(f"wrote {output}")
    if bad:
        raise typer.Exit(BAD_LINES)


def from_positions(
    folder: Path, evaluator: Evaluator, theta: float, tokenizer: str, about: dict[str, Any]
) -> TokenWeights:
    """Build the table from the strengths that a capacity policy would use at stored positions."""
    import numpy as np

    from caw.models.tokenizer import load_tokenizer
    from caw_lab.training.expected_weights import expected_weights, strengths_of
    from caw_lab.training.pipeline import fitted
    from caw_lab.training.positions import Positions
    from caw_lab.training.train import predict

    stored = Positions.open(folder)
    evaluator = fitted(evaluator, tokenizer, stored)
    capacity = predict(evaluator, stored.features(evaluator.spec, np.arange(len(stored)), evaluator.token_class))
    loaded, ids = load_tokenizer(tokenizer), np.asarray(stored.arrays["token"], dtype=np.int64)
    size = max(len(loaded), int(ids.max()) + 1)
    about = {**about, **{name: stored.meta[name] for name in ("model", "labels_sha256")}, "theta": theta}
    return expected_weights(ids, strengths_of(capacity, theta), loaded, size, about)


def estimated(tokenizer: str, lines: MarkedLines, prior: float | None, about: dict[str, Any]) -> TokenWeights:
    """Estimate the table from texts marked by other keys."""
    from caw.detection.weight_estimates import estimate_weights
    from caw.models.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    return estimate_weights(lines.texts, loaded, len(loaded), prior, about, progress=True)


def learned(
    reader: str,
    lines: MarkedLines,
    about: dict[str, Any],
    of_reader: dict[str, Any],
) -> Calibration:
    """Calibrate the model `reader` on texts with unknown prompts. of_reader: of its `Place`, None = not given."""
    require("scikit-learn", "--reader")
    from caw.models import ReaderWeights
    from caw_lab.training.fit_calibration import fit_calibration

    place = Place(**{name: value for name, value in of_reader.items() if value is not None})
    device = place.prepare(reader)
    texts, policy = lines.as_strong(), lines.one_policy(reader)
    with doing(f"loading {reader}", announced=True):
        model, tokenizer = place.load(reader, device)
    return fit_calibration(texts, ReaderWeights(model, tokenizer, policy=policy), about)


def _show(about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    means = about.get("mean_by_kind") or about["mean_strength_by_kind"]
    table = Table(
        "token class", "green share (or mean score) where marked" if "mean_by_kind" in about else "mean strength"
    )
    for kind, mean in means.items():
        table.add_row(kind, f"{mean:.3f}")
    Console().print(table)
    whence = f"{about['tokens']} tokens" if "tokens" in about else f"kinds of {about['by_kind_from']}"
    Console().print(f"{whence}, keys {', '.join(about['key_ids']) or 'none'}", highlight=False)


@dataclass
class MarkedLines:
    """texts: (or ids) by watermark. how: watermark and policy of good lines. bad: number of bad lines, reported."""

    texts: dict[Watermark, list[Any]] = field(default_factory=dict)
    how: list[tuple[Any, Any]] = field(default_factory=list)
    bad: int = 0

    def one_policy(self, reader: str) -> Policy:
        """Return the policy that every line names, without its target. `reader` names a missing evaluator."""
        from caw.cli.options import build_policy

        described = self._one("policy", [policy for _, policy in self.how])
        options = {option: value for option, value in described.items() if option not in ("name", "target")}
        try:
            return build_policy(str(described.get("name")), options, reader)
        except (KeyError, TypeError) as error:
            raise ValueError(f"lines must name one of caw's policies, got {described}; generate them again") from error

    def as_strong(self) -> dict[Watermark, list[Any]]:
        """Texts by watermark, each at the strength that its lines record, whatever the detector's settings are."""
        described = self._one("watermark", [watermark for watermark, _ in self.how])
        strong = {name: described[name] for name in STRONG if name in described}
        return {replace(mark, **strong): texts for mark, texts in self.texts.items()}

    def _one(self, what: str, found: list[Any]) -> Mapping[str, Any]:
        first = found[0] if found else None
        if not isinstance(first, Mapping) or any(other != first for other in found):
            raise ValueError(
                f"all lines must name the same {what}, got none or several; give texts that were marked alike"
            )
        return first


def read_marked_lines(source: str, field: str, marks: Mapping[str, Watermark]) -> MarkedLines:
    """Read the lines of a JSONL file. `marks`: watermarks by key_id."""
    lines = MarkedLines()
    with open_input(source) as stream:
        for row in watched(read_rows(stream, field=field), "reading texts", "texts", announced=True):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                content, key_id = row.value.get(field), row.value.get("key_id")
                if not isinstance(content, (str, list)):
                    raise ValueError(f"{field!r} must be a text or a list of token ids; choose another --field")
                if not isinstance(key_id, str) or key_id not in marks:
                    known = ", ".join(marks)
                    raise ValueError(f"key_id must be in --config ({known}), got {key_id!r}; add that key")
                lines.texts.setdefault(marks[key_id], []).append(content)
                lines.how.append((row.value.get("watermark"), row.value.get("policy")))
            except ValueError as error:
                lines.bad += 1
                complain(f"{source}, line {row.number}: {error}")
    return lines
