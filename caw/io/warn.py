"""Warnings that point to the caller's line, not to one of this library's."""

import sys
import warnings

# a call of ours may come through theirs: `model.generate`, a decorator of torch, a context manager
OURS_AND_BETWEEN = ("caw", "torch", "transformers", "contextlib")


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about a user's call; the warning points to the line of that call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in OURS_AND_BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
