"""The result of detection for one text."""

from dataclasses import asdict, dataclass
from html import escape
from typing import Any, NoReturn

from caw.detection.regions import Region


class NotTruth:
    """A result that prints its message and has no truth value: `if caw.detect(...)` would call every text marked."""

    message: str

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is neither true nor false, got it where a truth value is expected; use"
            " its is_watermarked"
        )

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, repr=False)
class DetectionResult(NotTruth):
    """Result of one text for one key.

    p_value: probability, over keys, that this text, if unmarked, scores at least this much; exact, one-sided. 1 if
    nothing counts. With `mid_p`, the mid-p value; in mode "compat", the other system's p-value. With `regions`,
    corrected for the whole text and all its windows.
    z_score: (score - mean) / standard deviation under the null; for information, not for decisions.
    score: number of green tokens (KGW, Unigram) or sum of -log(1 - u) (EXP) over counted tokens, times their weights;
    with a reader of drawn texts the sum of their log-likelihood ratios, nats.
    is_watermarked: p_value <= fpr.
    num_tokens, num_scored: tokens of the text, and how many of them count as evidence.
    token_ids: the tokens. token_scores: score of each, None if it does not count (repeated evidence).
    watermark, key_id: name of the watermark, and eight hex digits that identify the key (never the key).
    fpr, mode: as given. message: one sentence for people.
    payload, payload_confidence: the payload, if the watermark has payload_bits and the text is marked: the number, and
    the confidence of each bit (high bits first, 0.5 to 1). p_value then allows for all payloads.
    num_repeated: tokens that do not count because they repeat earlier evidence.
    mostly_repetition: whether repetition removes most of the evidence that the text's length promises; the message says
    so.
    num_needed: tokens that must count for a p-value of fpr; with fewer the text is too short to decide.
    regions: marked parts, in order, if searched for; not empty exactly if is_watermarked. Otherwise None.
    text_p_value: of the whole text alone, not corrected for the search, if parts were searched for, otherwise None.
    reading: the reading that the result is for, if several were tested (see `readings`): the most significant one.
    num_readings: their number, which p_value and the regions' p-values are corrected for. given_p_value: of the
    unchanged text alone, if several were tested, otherwise None. undone: what other readings undo, in words; the
    message says how that affected the verdict.
    subkey: the best sub-key, if the watermark has several, otherwise None. num_subkeys: number of them tried,
    which p_value and the regions' p-values are corrected for; z_score and score are those of the best one.
    family: name of the mark that was found likeliest, if the watermark is a `caw.Recommended`, which has two ("exp" for
    drawn texts, "kgw" for greedy ones), otherwise None. p_value and the regions' p-values are corrected for both.
    error: why a text of a list could not be read (half of a surrogate pair), with p_value 1; otherwise empty.
    """

    p_value: float
    z_score: float
    score: float
    is_watermarked: bool
    num_tokens: int
    num_scored: int
    token_ids: tuple[int, ...]
    token_scores: tuple[float | None, ...]
    watermark: str
    key_id: str
    fpr: float
    mode: str
    message: str
    payload: int | None = None
    payload_confidence: tuple[float, ...] | None = None
    num_repeated: int = 0
    mostly_repetition: bool = False
    num_needed: int = 1
    regions: tuple[Region, ...] | None = None
    text_p_value: float | None = None
    reading: str = "as given"
    num_readings: int = 1
    given_p_value: float | None = None
    undone: tuple[str, ...] = ()
    subkey: int | None = None
    num_subkeys: int = 1
    family: str | None = None
    error: str = ""

    def __repr__(self) -> str:
        """Return the verdict in one line; token ids and scores are fields."""
        said = ("watermark", "key_id", "is_watermarked", "p_value", "fpr", "num_scored", "num_tokens")
        more = [name for name in ("payload", "regions", "error") if getattr(self, name)]
        return f"DetectionResult({', '.join(f'{name}={getattr(self, name)!r}' for name in (*said, *more))})"

    def to_dict(self) -> dict[str, Any]:
        """Return its fields as values that JSON has."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<b>{escape(self.message)}</b><br><small>{escape(repr(self))}</small>"

    @property
    def is_undecided(self) -> bool:
        """Whether no score could have been significant: too few tokens count."""
        return not self.is_watermarked and self.num_scored < self.num_needed
