"""What the lines of `caw generate` say of their own texts, and whether the test of `caw detect` reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from caw.cli.options import WATERMARK_OPTIONS, as_typed
from caw.settings import DRAWING, Sampling

if TYPE_CHECKING:
    from caw.watermarks import Signature

# arguments of watermarks that no test reads; a detector tries sub-keys up to its own number
UNREAD = {
    "target", "evaluator", "delta", "top_k", "strength", "deduplicate", "temperature", "payload", "vocab_size",
    "free", "subkeys", "subkey", "context_width",
}  # fmt: skip
UNTOLD = ("payload", "evaluator")  # what was embedded, and a file of the generator
NAMED = UNREAD - {"subkeys", "context_width"}


@dataclass(frozen=True)
class Made:
    """How a line describes its text: its watermark, its key's id, and its sampling settings ({} = greedy)."""

    watermark: Mapping[str, Any]
    key_id: str
    drawing: Mapping[str, Any]

    @property
    def races(self) -> bool:
        """Whether a `caw.Recommended` marked it by the race."""
        return Sampling(**self.drawing).races


def made_of(line: Mapping[str, Any]) -> Made | None:
    """Return what a line says; None if it is not of `caw generate`, or its text is unmarked."""
    watermark, settings = line.get("watermark"), line.get("settings")
    if not isinstance(watermark, Mapping) or not isinstance(settings, Mapping) or "sampling" not in settings:
        return None
    sampling = settings["sampling"]
    drawing = {} if not isinstance(sampling, Mapping) else {"do_sample": True} | {
        name: sampling[name] for name in DRAWING if type(sampling.get(name)) in (int, float)
    }  # fmt: skip
    return Made(watermark, str(line.get("key_id")), drawing)


def drawn_of(made: Made | None, marks: Sequence[Signature]) -> dict[str, Any] | None:
    """Return how a text that a full race may mark was drawn, {} for one without a race, None if nothing says it."""
    if made is None:
        return None
    races = made.races if any(len(mark.parts) > 1 for mark in marks) else bool(made.drawing)
    return {name: value for name, value in made.drawing.items() if name != "do_sample"} if races else {}


def unread(made: Iterable[Made | None], marks: Sequence[Signature]) -> tuple[int, str]:
    """Return (how many texts under the tested keys none of these tests reads, one sentence about them)."""
    from caw.watermarks.names import said_of

    found: dict[str, tuple[int, Signature, Signature]] = {}
    for each in made:
        own = None if each is None else _watermark_of(each, marks)
        if each is None or own is None:
            continue
        theirs = [part for mark in marks for part in mark.parts]
        if any(_reads(test, own.part_for(each)) for test in theirs):
            continue
        mark = _tested(each, marks)
        assert mark is not None
        said = repr(said_of(own))
        found[said] = (found.get(said, (0,))[0] + 1, own, mark)
    if not found:
        return 0, ""
    count, own, mark = next(iter(found.values()))
    total = sum(each for each, _, _ in found.values())
    others = f" and others in {total - count}" if total > count else ""
    return total, (
        f"the test must read the marks of the texts, {_named(own, mark)} in {count} of them{others}, got "
        f"{_named(mark, own)}; give {_options(own)}"
    )


def of_other_keys(made: Iterable[Made | None], marks: Sequence[Signature]) -> str:
    """Return one sentence about texts whose lines name a key that is not tested, "" if there are none."""
    tested = [mark.key_id for mark in marks]
    strange = [each.key_id for each in made if each is not None and each.key_id not in tested]
    if not strange:
        return ""
    own = " and ".join(dict.fromkeys(strange)) if len(set(strange)) < 4 else f"{strange[0]} and others"
    tried = tested[0] if len(tested) == 1 else f"{len(tested)} others"
    return f"{len(strange)} of the texts were marked with key {own}, tested is {tried}; give the key that marked them"


def _tested(made: Made, marks: Sequence[Signature]) -> Signature | None:
    """Return the tested watermark under the key of a text, None if there is none."""
    return next((mark for mark in marks if mark.key_id == made.key_id), None)


def _watermark_of(made: Made, marks: Sequence[Signature]) -> Signature | None:
    """Return the watermark of a text under a tested key; None under another, and where it is not known here."""
    from caw.watermarks.names import watermark_from

    if (mark := _tested(made, marks)) is None:
        return None
    try:
        return watermark_from({n: v for n, v in made.watermark.items() if n not in UNTOLD}, mark.secret)
    except (KeyError, TypeError, ValueError):  # of another version
        return None


def _reads(test: Signature, part: Signature) -> bool:
    from caw.watermarks.names import said_of

    one, other = ({n: v for n, v in said_of(each).items() if n not in UNREAD} for each in (test, part))
    return (one, test.window, test.secret) == (other, part.window, part.secret) and part.is_read_by(test)


def _named(mark: Signature, other: Signature) -> str:
    """Return a watermark's name, with what of it the other has otherwise."""
    own, theirs = _read(mark), _read(other)
    differing = {name: value for name, value in own.items() if name != "name" and theirs.get(name) != value}
    return own["name"] + (f" ({', '.join(f'{name} {value}' for name, value in differing.items())})" * bool(differing))


def _read(mark: Signature) -> dict[str, Any]:
    """Return what a test reads of a watermark, its sub-keys too."""
    from caw.watermarks.names import said_of

    return {name: value for name, value in said_of(mark).items() if name not in NAMED}


def _options(mark: Signature) -> str:
    name, usual = mark.name, type(mark)(1)
    given = [f"--watermark {name}"]
    for option, argument in WATERMARK_OPTIONS[name].items():
        value = getattr(mark, argument)
        if argument not in NAMED and value != getattr(usual, argument):
            given.append(f"{as_typed(option)} {value}")
    return " ".join(given)
