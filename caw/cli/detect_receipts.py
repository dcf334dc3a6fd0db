"""`caw detect --receipt`: repeat the test that a receipt records, with the same level, weights and text.

Receipts come from `caw generate --detectable-at`, `caw serve --receipts` and `caw audit export`, all in one format.
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
from caw.io.inputs import name_of, open_input
from caw.io.jsonl import SHOWN, Row, read_rows
from caw.io.show import is_p

if TYPE_CHECKING:
    from caw.detectable.receipts import Receipt
    from caw.detection import TokenWeights
    from caw.detection.text_weights import TextWeights
    from caw.watermarks import Signature

SAME = ("level", "watermark", "key_id", "weights", "test")  # what all receipts of one file share


@dataclass(frozen=True)
class Receipts:
    """The receipts of one file, all for the same kind of test. source: the file's name."""

    source: str
    by_digest: dict[str, Receipt]

    @property
    def any(self) -> Receipt:
        return next(iter(self.by_digest.values()))

    def check_with(self, marks: Mapping[str, Signature], others: Mapping[str, Any]) -> None:
        """Raise ValueError for tests of other than single texts, and for another watermark or key."""
        for option, value in others.items():
            if value is not None:
                raise ValueError(f"--receipt tests single texts, got {option}; leave one out")
        told, [mark] = self.any, marks.values()
        if (told.watermark, told.key_id) != (mark.name, mark.key_id):
            raise ValueError(
                f"{self.source} is for {told.watermark} with key {told.key_id}, got {mark.name} with key "
                f"{mark.key_id}; give the key and watermark that marked the text"
            )
        self._check_subkeys(mark)

    def mark_among(self, marks: Mapping[str, Signature]) -> Signature:
        """Return the watermark, among several by key id, of these receipts. Raise ValueError if there is none."""
        mark = marks.get(self.any.key_id)
        if mark is None or mark.name != self.any.watermark:
            raise ValueError(
                f"{self.source} is for {self.any.watermark} with key {self.any.key_id}, which is not in the registry; "
                "give the server's registry"
            )
        self._check_subkeys(mark)
        return mark

    def _check_subkeys(self, mark: Signature) -> None:
        """Raise ValueError for texts with more sub-keys than the test tries."""
        most, tried = max(each.subkeys or 1 for each in self.by_digest.values()), mark.family
        if most > tried:
            raise ValueError(
                f"{self.source} is for texts of {most} sub-keys, got a test that tries {tried}; give --subkeys {most}"
            )

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the receipts' detector settings. ValueError or OSError where given ones (not None) are others."""
        told = {"fpr": self.any.level, **self.any.test}
        for name, value in given.items():
            if value not in (None, told.get(name)) and name != "weights":
                raise ValueError(
                    f"{self.source} records a test with {name} {told.get(name, 'default')}, got {value}; leave "
                    f"--{name} out"
                )
        return {**told, "weights": self._weights(given.get("weights"))}

    def _weights(self, given: str | None) -> TokenWeights | str | None:
        """Return the receipts' weight table, or only the name for weights from a model; see `check_weights`."""
        from caw.detection import TokenWeights

        told = self.any.weights
        if told is None:
            if given is not None:
                raise ValueError(f"{self.source} records a test without weights, got --weights; leave it out")
            return None
        if model_of(given) is not None:
            return given
        if given is None and model_of(told["name"]) is not None:
            raise ValueError(
                f"{self.source} records a test with {told['name']}, got no model; give --weights model:NAME"
            )
        if given is None and not told["name"]:
            raise ValueError(f"{self.source} records weights without a name, got no file; give it with --weights")
        table = TokenWeights.load(given or told["name"])
        self.check_weights(table, given or told["name"])
        return table

    def check_weights(self, weights: TextWeights, name: str) -> None:
        """Raise ValueError for weights other than those of the receipts."""
        told = self.any.weights
        assert told is not None
        if weights.digest != told["digest"]:
            raise ValueError(
                f"{self.source} records weights with digest {told['digest'][:8]}, {name} has {weights.digest[:8]}; "
                "give the same file with --weights"
            )

    def confirms(self, item: Item, result: Any, *, single: bool) -> bool:
        """Tell whether a text's p-value is its receipt's (a model's weights may round), and report a difference."""
        from caw.detectable.receipts import text_digest

        if self.any.weights is not None and model_of(self.any.weights["name"]) is not None:
            return True
        assert isinstance(item.content, str)
        told = self.by_digest[text_digest(item.content)].p_value
        if math.isclose(told, result.p_value, rel_tol=1e-3):
            return True
        said = (
            f"{is_p(result.p_value)}, but {self.source} records {is_p(told)}: the watermark's options, the "
            "tokenizer or --prefix differ from those of the test; give the same ones"
        )
        complain(item.said(said, single=single))
        return False

    def known(self, items: Sequence[Item]) -> tuple[list[Item], int]:
        """Return the texts that have a receipt, and how many have none (each reported; an error for a single text)."""
        [(_, kept)], strangers = owners(items, [self])
        return kept, strangers


def owners(items: Sequence[Item], told: Sequence[Receipts]) -> tuple[list[tuple[Receipts, list[Item]]], int]:
    """Assign each text to the file with its receipt. Also return how many have none (reported; a single one raises)."""
    from caw.detectable.receipts import text_digest

    found = [(each, list[Item]()) for each in told]
    strangers = 0
    for item in items:
        if not isinstance(item.content, str):
            raise ValueError("a receipt is for a text, got token ids; give the text")
        # a file's last line break is the editor's, not the text's
        forms = {text_digest(text): text for text in (item.content.removesuffix("\n"), item.content)}
        held = [(theirs, text) for digest, text in forms.items() for each, theirs in found if digest in each.by_digest]
        if held:
            theirs, text = held[-1]
            theirs.append(replace(item, content=text))
            continue
        empty = "it is empty, because on_undetected='drop' drops texts that are not detected"
        why = "the text was changed or has another receipt" if item.content else empty
        said = f"no receipt in {told[0].source} has the text's digest: {why}"
        if len(items) == 1:
            raise ValueError(f"{said}; leave --receipt out to test the text without it")
        complain(item.said(said, single=False))
        strangers += 1
    return found, strangers


def repeat(
    told: Sequence[Receipts], items: Sequence[Item], marks: Mapping[str, Signature], tokenizer: Any, prefix: str,
    given: dict[str, Any], *, as_json: bool, single: bool,
) -> int:  # fmt: skip
    """Repeat the tests of receipts, print the results, and return how many texts have no receipt or differ from it."""
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
        print(json.dumps(result_line(item, result)), flush=True)
    if not as_json:
        show(results, single=single)
    return strangers


def read_receipts(source: str) -> Receipts:
    """Read a file's receipts, one a line. OSError, or ValueError for none and for different kinds of test."""
    first, *others = read_tests(source)
    for other in others:
        name = next(name for name in SAME if getattr(first.any, name) != getattr(other.any, name))
        raise ValueError(
            f"{first.source}: receipts must record one kind of test, found two values of {name}; split the file"
        )
    return first


def read_tests(source: str) -> list[Receipts]:
    """Read a file's receipts by kind of test; report and skip other lines. OSError, or ValueError for none."""
    from caw.detectable.receipts import Receipt

    found: dict[str, dict[str, Receipt]] = {}
    skipped: list[str] = []
    for where, value in _objects(source, skipped):
        try:
            receipt = Receipt.from_dict(value)
        except (TypeError, ValueError) as error:
            skipped.append(f"{where}: {error}")
            continue
        same = json.dumps({name: value for name, value in receipt.as_dict().items() if name in SAME}, sort_keys=True)
        found.setdefault(same, {})[receipt.digest] = receipt
    if not found:
        raise ValueError(
            skipped[0]
            if skipped
            else f"{name_of(source)} must contain a receipt, found none; give the output of --detectable-at"
        )
    for said in skipped[:SHOWN]:
        complain(f"{said} (skipped)")
    if skipped:
        complain(f"{name_of(source)}: {len(skipped)} of its lines {'is' if len(skipped) == 1 else 'are'} skipped")
    return [Receipts(name_of(source), each) for each in found.values()]


def _objects(source: str, skipped: list[str]) -> Iterator[tuple[str, Any]]:
    """Return each candidate object (a line, or its "receipt") with its position. skipped: receives the errors."""
    with open_input(source) as stream:
        for row in read_rows(stream, unique=False):  # servers write two lines of each text
            where = f"{name_of(source)}, line {row.number}"
            if not isinstance(row, Row):
                skipped.append(f"{where}: {row.message}")
            elif (told := _told(row.value)) is not None:
                yield where, told


def _told(line: Any) -> Any:
    """Return the test that a line records, or None."""
    said = line["receipt"] if isinstance(line, Mapping) and "receipt" in line else line
    if isinstance(said, Mapping) and ("ending" in said or "digest" not in said):  # a server's, which has more to say
        return said.get("tested")
    return said
