"""What can be said of a call's test before a model is loaded."""

from __future__ import annotations

from caw.found.efforts import check_strong
from caw.found.trial import check_markable, check_reach
from caw.policies import FixedStrength, Policy
from caw.settings import OF_FOUND, Settings
from caw.watermarks import Watermark


def check_early(settings: Settings, watermark: Watermark | None, policy: Policy | None) -> None:
    """Raise ValueError where no text could be found, and for what has no effect because none is tested.

    policy: None = the plain watermark.
    """
    refuse_idle(settings)
    if settings.found_at is None:
        return
    mark = check_markable(watermark)
    check_strong(policy or FixedStrength(), mark)
    if not mark.foreign:  # those know their lists only with the model's vocabulary
        check_reach(mark, settings.found_at, settings.max_new_tokens)


def refuse_idle(settings: Settings, *others: str) -> None:
    """Raise ValueError for what has no effect where no text is tested; others: arguments that were given as well."""
    usual = Settings()
    given = [*(name for name in OF_FOUND if getattr(settings, name) != getattr(usual, name)), *others]
    if given and settings.found_at is None:
        raise ValueError(f"{given[0]} belongs to found_at, which is missing; give e.g. found_at=1e-3, or leave it out")
