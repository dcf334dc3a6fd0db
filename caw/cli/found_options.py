"""Options of `caw generate` about texts that are tested before they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from caw.cli.options import panel

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.policies import Policy
    from caw.settings import Settings
    from caw.watermarks import Watermark

FOUND = "Found texts"

FoundAt = Annotated[
    float | None,
    panel(
        FOUND,
        "Test each text at this false-positive rate before it is written; make those that are not found again, "
        "more strongly.",
        "--found-at",
    ),
]
MaxAttempts = Annotated[int, panel(FOUND, "How often a text may be made in all.", "--max-attempts")]
BestOf = Annotated[int, panel(FOUND, "Candidates of each text, at --strength and below.", "--best-of")]
Select = Annotated[
    str, panel(FOUND, "Which of the candidates that are found to write.", "--select", metavar="weakest|likeliest")
]
OnUnfound = Annotated[
    str,
    panel(FOUND, "What to do with a text that no attempt made findable.", "--on-unfound", metavar="keep|drop|raise"),
]
Edits = Annotated[float, panel(FOUND, "Share of words that may be deleted later without losing the mark.", "--edits")]
Weights = Annotated[
    str | None, panel(FOUND, "Weights per token to test with, as for `caw detect --weights`.", "--weights")
]


def check_found(settings: Settings, mark: Watermark | None, policy: Policy, weights: str | None) -> TokenWeights | None:
    """Refuse, before a model is loaded, what cannot be found; the weights to test with."""
    from caw.detection import TokenWeights
    from caw.found.early import check_early

    if settings.found_at is None and weights is not None:
        raise ValueError("--weights belongs to --found-at, which is missing; add it, or leave --weights out")
    check_early(settings, mark, policy)
    if weights is None or mark is None:
        return None
    table = TokenWeights.load(weights)
    table.check_for(mark)
    return table
