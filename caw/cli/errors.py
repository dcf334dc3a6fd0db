"""Errors at the terminal: one sentence, no traceback."""

import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from caw.cli.interrupts import INTERRUPTED, working
from caw.requirements import PACKAGES, missing

__all__ = ["BAD_LINES", "BAD_USAGE", "INTERRUPTED", "complain", "kept_on_interrupt", "one_sentence", "user_errors"]
BAD_LINES, BAD_USAGE = 1, 2
# what the library raises for users' input; a bug of its own (AssertionError, KeyError, ...) keeps its traceback
USER_ERRORS = (ValueError, TypeError, OSError, NotImplementedError, ImportError)


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors inside the block into one sentence on stderr and exit code 2, and each warning into one line.

    Ctrl-C becomes one sentence and exit code 130. CAW_TRACEBACK=1 lets errors through.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            with working():
                yield
        except BrokenPipeError:  # the reader of our output has gone; typer ends the program quietly
            raise
        except USER_ERRORS as error:
            if os.environ.get("CAW_TRACEBACK") == "1":
                raise
            _let_go_of_stdout()
            complain(one_sentence(error))
            raise typer.Exit(BAD_USAGE) from None
        except KeyboardInterrupt:
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            torch = sys.modules.get("torch")  # who has not imported it has no memory of a device
            if torch is None or not isinstance(error, torch.OutOfMemoryError):
                raise
            complain("the device ran out of memory; lower --batch-size or --max-new-tokens, or use --device cpu")
            raise typer.Exit(BAD_LINES) from None


@contextlib.contextmanager
def kept_on_interrupt(folder: object) -> Iterator[None]:
    """Turn Ctrl-C inside the block into exit code 130 and one sentence that says where the finished part is."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"interrupted: finished work is saved in {folder}; run the same command again to continue")
        raise typer.Exit(INTERRUPTED) from None


def _let_go_of_stdout() -> None:
    """Discard what stdout could not take (full disk): retrying at exit would be a second error."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    print(f"caw: {message}", file=sys.stderr, flush=True)


def one_sentence(error: BaseException) -> str:
    """Return the first line of an exception's message, without error numbers."""
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else " a file"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"cannot write{where}: {error.strerror.lower()}; free some space, then run the same command again"
        return f"cannot use{where}: {error.strerror.lower()}; check the path and its permissions"
    if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES:
        return missing(error.name, "this command")
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def _show_warning(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
    if issubclass(category, UserWarning):
        complain(f"warning: {' '.join(str(message).split())}")
