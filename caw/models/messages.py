"""Load with transformers quietly: nothing is printed, and errors are one sentence."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def one_sentence(name: str | Path) -> Iterator[None]:
    """Turn a transformers error while loading into one sentence that names the model."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"could not load the model {str(name)!r}: {reason}; check its name and files") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and log messages of transformers inside the block."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
