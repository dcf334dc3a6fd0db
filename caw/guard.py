"""The guard of a greedy text: what a marked text must keep of the unmarked one, and how changes are looked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from caw.checks import require_bool, require_int, require_number
from caw.io.show import shown
from caw.keeps import NAMED, json

DEFAULT, FIELDED = "content", "json"
MAX_STRENGTHS, MAX_STRENGTH, MAX_LOSS = 10, 100.0, 100.0


@dataclass(frozen=True)
class Guard:
    """Change a token, let the unmarked model go on, and where it rejoins the text that it left, keep the old tail.

    A change is taken if the text still keeps what it must and the model loses little by it. Changes are tried until the
    text is detected; one that the unmarked text gives by itself is returned unchanged. A text becomes at most 10 % of
    its tokens longer or shorter, or 4 tokens if that is more.

    Args:
        keeps: what must stay. "content": numbers, names, code and answers; units, currency signs and "%" are free.
            "number": the answer. "results": the answer and every equation. "json", or "json:" and names of fields: see
            `caw.keeps.json`. "python": code that parses. Or a function of (unmarked text, marked text) that tells; if
            it raises, the text counts as not kept, and the receipt names the error; if it returns None for the
            unmarked text as both, it has nothing to keep. Where there is nothing to keep, the content is.
        rejoin: tokens that must equal a stretch of the old text before its tail is copied.
        horizon: maximum tokens of a rollout; 0 = four times `rejoin`.
        rollouts: maximum rollouts of a text, which bound what it costs; of a stream, of four windows.
        window: tokens of a stream that are decoded, changed and sent at a time, and more to the end of a sentence.
        strengths: factors of the policy's strength, ascending: places that the greatest marks are changed first, and
            where steps are captured, only these.
        loss: nats that a change may lose under the model, in its tokens and up to 24 behind them; two thirds of them in
            a sentence with a number.
        layout: whether line breaks between sentences and the signs of equations are changed too, which says nothing and
            is lost where a text is set anew; never in JSON, code and tables, nor the lines of lists.

    Raises TypeError or ValueError naming the argument.
    """

    keeps: str | Callable[[str, str], bool] = DEFAULT
    rejoin: int = 3
    horizon: int = 0
    strengths: Sequence[float] = field(default=(1.0, 1.5, 2.25))
    rollouts: int = 256
    window: int = 64
    loss: float = 3.0
    layout: bool = True

    def __post_init__(self) -> None:
        name = self.keeps.partition(":")[0] if isinstance(self.keeps, str) else ""
        if not callable(self.keeps) and (name not in NAMED or (":" in str(self.keeps) and name != FIELDED)):
            raise ValueError(
                f"keeps must be one of {', '.join(NAMED)} or a function of two texts, got {shown(self.keeps)}; "
                f"use {DEFAULT!r}"
            )
        if any(self.keeps is each for each in NAMED.values()):
            called = getattr(self.keeps, "__name__", "results")
            raise TypeError(f"keeps must be a reader, got the function that makes one; call it: caw.keeps.{called}()")
        if isinstance(self.keeps, type):  # its objects are true, whatever the texts
            raise TypeError(f"keeps must be a reader, got the class {self.keeps.__name__}; make an object of it")
        if name == FIELDED and ":" in str(self.keeps) and not all(map(str.strip, str(self.keeps)[5:].split(","))):
            raise ValueError(f"keeps must name the fields of JSON, got {shown(self.keeps)}; use e.g. 'json:name,unit'")
        require_int("rejoin", self.rejoin, 2, 64)
        if self.horizon == 0 and not isinstance(self.horizon, bool):
            object.__setattr__(self, "horizon", 4 * self.rejoin)
        require_int("horizon", self.horizon, self.rejoin, 1 << 16)
        require_int("rollouts", self.rollouts, 1, 1 << 16)
        require_int("window", self.window, 8, 1 << 16)
        require_number("loss", self.loss, 0, MAX_LOSS, closed=True)
        require_bool("layout", self.layout)
        given = self.strengths
        if isinstance(given, str) or not isinstance(given, Sequence) or not 1 <= len(given) <= MAX_STRENGTHS:
            raise TypeError(
                f"strengths must be a list of 1 to {MAX_STRENGTHS} numbers, got {shown(given)}; leave it out"
            )
        for each in given:
            require_number("strengths", each, 0, MAX_STRENGTH, closed=True)
        if list(given) != sorted(set(given)) or given[0] == 0:
            raise ValueError(f"strengths must be ascending and above 0, got {shown(list(given))}; sort them")
        object.__setattr__(self, "strengths", tuple(float(each) for each in given))

    @property
    def reader(self) -> Callable[[str, str], bool]:
        """The function that tells whether a text keeps what it must."""
        if callable(self.keeps):
            return self.keeps
        name, fielded, fields = self.keeps.partition(":")
        return json([each.strip() for each in fields.split(",")]) if fielded else NAMED[name]()

    def described(self) -> dict[str, Any]:
        """Return its arguments for JSON, with the name of what it keeps."""
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("keeps", "strengths")}
        return {"keeps": self.name, **others, "strengths": list(self.strengths)}

    @property
    def name(self) -> str:
        """What is kept, in a word, for receipts: the same for a name and for the reader that it stands for."""
        reader = self.reader
        for name, make in NAMED.items():
            if type(reader) is type(make()):
                fields = getattr(reader, "fields", None)
                return f"{name}:{','.join(fields)}" if fields is not None else name
        return getattr(reader, "__name__", type(reader).__name__)


def read_guard(value: Any) -> Guard | None:
    """Return a guard from itself, from what it keeps (a name), from a mapping of its arguments, or None."""
    if value is None or isinstance(value, Guard):
        return value
    if isinstance(value, str):
        return Guard(keeps=value)
    if isinstance(value, dict):
        names = [each.name for each in fields(Guard)]
        unknown = [name for name in value if name not in names]
        if unknown:
            raise TypeError(
                f"a guard must have options among {', '.join(names)}, got {shown(unknown[0])}; leave it out"
            )
        return Guard(**value)
    raise TypeError(f"guard must be a caw.Guard, got {shown(value)}; use e.g. caw.Guard(keeps='results')")
