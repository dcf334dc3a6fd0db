"""`caw detect --receipt`: the test that a receipt tells of, again: the same level, weights and text.

Receipts are those of `caw generate --found-at`, `caw serve --receipts` and `caw audit export`: in one form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from caw.cli.detect_model import model_of
from caw.cli.detect_output import Item, result_line, show
from caw.cli.errors import complain
from caw.io.inputs import name_of, open_input, read_bounded
from caw.io.jsonl import Row, read_rows
from caw.io.show import is_p

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.detection.text_weights import TextWeights
    from caw.found.receipts import Receipt
    from caw.watermarks import Watermark

SAME = ("level", "watermark", "key_id", "weights", "test")  # what all receipts of one file share


@dataclass(frozen=True)
class Receipts:
    """The receipts of one file; they tell of one kind of test. source: the file's name."""

    source: str
    by_digest: dict[str, Receipt]

    @property
    def any(self) -> Receipt:
        return next(iter(self.by_digest.values()))

    def check_with(self, marks: Mapping[str, Watermark], others: Mapping[str, Any]) -> None:
        """Raise ValueError for other tests than of single texts, and for another watermark or key."""
        for option, value in others.items():
            if value is not None:
                raise ValueError(f"--receipt repeats the test of single texts, got {option}; leave one of them out")
        told, [mark] = self.any, marks.values()
        if (told.watermark, told.key_id) != (mark.name, mark.key_id):
            raise ValueError(
                f"{self.source} tells of {told.watermark} with key {told.key_id}, got {mark.name} with key "
                f"{mark.key_id}; give the key and watermark that marked the text"
            )

    def mark_among(self, marks: Mapping[str, Watermark]) -> Watermark:
        """The watermark that these were tested for, of several by key id. Raises ValueError without it."""
        mark = marks.get(self.any.key_id)
        if mark is None or mark.name != self.any.watermark:
            raise ValueError(
                f"{self.source} tells of {self.any.watermark} with key {self.any.key_id}, which the registry has not; "
                "give the registry that the server had"
            )
        return mark

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Settings of the detector: those that the receipts tell of, which the given ones (None = not) must not change.

        Raises ValueError for another setting, OSError or ValueError where the weights are not those of the receipts.
        """
        told = {"fpr": self.any.level, **self.any.test}
        for name, value in given.items():
            if value not in (None, told.get(name)) and name != "weights":
                raise ValueError(
                    f"{self.source} tells of a test with {name} {told.get(name, 'as usual')}, got {value}; leave "
                    f"--{name} out"
                )
        return {**told, "weights": self._weights(given.get("weights"))}

    def _weights(self, given: str | None) -> TokenWeights | str | None:
        """The table of the receipts; of a model only its name, see `check_weights`."""
        from caw.detection import TokenWeights

        told = self.any.weights
        if told is None:
            if given is not None:
                raise ValueError(f"{self.source} tells of a test without weights, got --weights; leave it out")
            return None
        if model_of(given) is not None:
            return given
        if given is None and model_of(told["name"]) is not None:
            raise ValueError(f"{self.source} tells of {told['name']}, got no model; give --weights model:NAME")
        if given is None and not told["name"]:
            raise ValueError(f"{self.source} tells of weights without a name, got no file of them; give --weights")
        table = TokenWeights.load(given or told["name"])
        self.check_weights(table, given or told["name"])
        return table

    def check_weights(self, weights: TextWeights, name: str) -> None:
        """Raise ValueError for other weights than those of the receipts."""
        told = self.any.weights
        assert told is not None
        if weights.digest != told["digest"]:
            raise ValueError(
                f"{self.source} tells of weights with digest {told['digest'][:8]}, {name} has {weights.digest[:8]}; "
                "give the same with --weights"
            )

    def confirms(self, item: Item, result: Any, *, single: bool) -> bool:
        """Whether the text's receipt has this result's p-value; if not, that is said. Weights of models may round.

        single: whether the text is from no line.
        """
        from caw.found.receipts import text_digest

        if self.any.weights is not None and model_of(self.any.weights["name"]) is not None:
            return True
        assert isinstance(item.content, str)
        told = self.by_digest[text_digest(item.content)].p_value
        if math.isclose(told, result.p_value, rel_tol=1e-3):
            return True
        said = (
            f"{is_p(result.p_value)}, and {self.source} tells of {is_p(told)}: the watermark's options, the tokenizer "
            "or --prefix differ from those of the test; give the same"
        )
        complain(item.said(said, single=single))
        return False

    def known(self, items: Sequence[Item]) -> tuple[list[Item], int]:
        """The texts that have a receipt, and how many have none (each reported; an error for a single text)."""
        [(_, kept)], strangers = owners(items, [self])
        return kept, strangers


def owners(items: Sequence[Item], told: Sequence[Receipts]) -> tuple[list[tuple[Receipts, list[Item]]], int]:
    """The texts of each of these, and how many have no receipt (each reported; an error for a single text)."""
    from caw.found.receipts import text_digest

    found = [(each, list[Item]()) for each in told]
    strangers = 0
    for item in items:
        if not isinstance(item.content, str):
            raise ValueError("a receipt tells of a text, got token ids; give the text")
        # a file's last line break is the editor's, not the text's
        forms = {text_digest(text): text for text in (item.content.removesuffix("\n"), item.content)}
        held = [(theirs, text) for digest, text in forms.items() for each, theirs in found if digest in each.by_digest]
        if held:
            theirs, text = held[-1]
            theirs.append(replace(item, content=text))
            continue
        empty = "it is empty, as on_unfound='drop' leaves those that are not found"
        why = "the text was changed, or is another's" if item.content else empty
        said = f"no receipt in {told[0].source} has the text's digest: {why}"
        if len(items) == 1:
            raise ValueError(f"{said}; leave --receipt out to test it as it is")
        complain(item.said(said, single=False))
        strangers += 1
    return found, strangers


def repeat(
    told: Sequence[Receipts], items: Sequence[Item], marks: Mapping[str, Watermark], tokenizer: Any, prefix: str,
    given: dict[str, Any], *, as_json: bool, single: bool,
) -> int:  # fmt: skip
    """The tests that receipts tell of, each text under its own key, printed; how many have no receipt or another's."""
    from caw.detection import Detector

    found, strangers = owners(items, told)
    results: list[tuple[Item, Any]] = []
    for each, theirs in found:
        if theirs:
            detector = Detector(tokenizer, each.mark_among(marks), prefix=prefix, **each.options(given))
            own = [(item, detector(item.content)) for item in theirs]
            strangers += sum(not each.confirms(*one, single=single) for one in own)
            results += own
    for item, result in results if as_json else ():
        print(json.dumps(result_line(item, result, scores=False)), flush=True)
    if not as_json:
        show(results, single=single)
    return strangers


def read_receipts(source: str) -> Receipts:
    """Receipts of a file: one as JSON, or lines that hold some.

    Raises OSError, or ValueError in one sentence for what holds none, or some of different tests.
    """
    first, *others = read_tests(source)
    for other in others:
        name = next(name for name in SAME if getattr(first.any, name) != getattr(other.any, name))
        raise ValueError(
            f"{first.source}: expected receipts of one kind of test, found another {name}; keep them in two files"
        )
    return first


def read_tests(source: str) -> list[Receipts]:
    """Receipts of a file, those of one kind of test together.

    Raises OSError, or ValueError in one sentence for what holds none.
    """
    from caw.found.receipts import Receipt

    found: dict[str, dict[str, Receipt]] = {}
    for where, value in _objects(source):
        try:
            receipt = Receipt.from_dict(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None
        same = json.dumps({name: value for name, value in receipt.as_dict().items() if name in SAME}, sort_keys=True)
        found.setdefault(same, {})[receipt.digest] = receipt
    if not found:
        raise ValueError(f"{name_of(source)} must hold a receipt, found none; give what --found-at wrote")
    return [Receipts(name_of(source), each) for each in found.values()]


def _objects(source: str) -> Iterator[tuple[str, Any]]:
    """What should be receipts, and where each stands: on a line, in a line's field "receipt", or over many lines."""
    with open_input(source) as stream:
        for row in read_rows(stream, unique=False):  # servers write two lines of each text
            where = f"{name_of(source)}, line {row.number}"
            if not isinstance(row, Row):
                yield name_of(source), _told(_whole(source, f"{where}: {row.message}"))
                return
            told = _told(row.value)
            if told is not None:
                yield where, told


def _told(line: Any) -> Any:
    """What a line says of a text's test; None where it says nothing of any."""
    said = line["receipt"] if isinstance(line, Mapping) and "receipt" in line else line
    if isinstance(said, Mapping) and ("ending" in said or "digest" not in said):  # a server's, which has more to say
        return said.get("tested")
    return said


def _whole(source: str, otherwise: str) -> Any:
    """The one JSON object that a file holds; ValueError with this sentence for another file."""
    try:
        return json.loads(read_bounded(source))
    except ValueError:
        raise ValueError(otherwise) from None
