"""Ctrl-C at any moment: one sentence, exit code 130, no traceback.

A command's own work gets Python's KeyboardInterrupt, so that it can say what is finished. Everywhere else (imports,
option parsing, interpreter shutdown) there is nothing to report and an exception does harm: a half-imported module
turns KeyboardInterrupt into other errors or swallows it. There the process exits at once. Nothing is lost, because
every output line is written when it is finished and every file is renamed into place.
"""

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

INTERRUPTED = 130
SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"  # spinners and bars hide it


def leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """Exit with one sentence on stderr and code 130. A SIGINT handler."""
    with contextlib.suppress(OSError):
        os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + b"caw: interrupted\n")
    os._exit(INTERRUPTED)


def tell_work(number: int, frame: FrameType | None) -> None:
    """SIGINT handler while a command works: raise KeyboardInterrupt, but never inside an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def leave_on_interrupt() -> None:
    """Exit on Ctrl-C from now on, except inside `working`. Does nothing if SIGINT is ignored (nohup, &)."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    signal.signal(signal.SIGINT, leave)
    sys.unraisablehook = _leave_if_lost
    # runs last: what is left then is the interpreter's own, and the work is done
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Turn Ctrl-C inside the block into KeyboardInterrupt, if `leave_on_interrupt` was called (not in tests)."""
    if signal.getsignal(signal.SIGINT) is not leave:
        yield
        return
    signal.signal(signal.SIGINT, tell_work)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave)


def _leave_if_lost(lost: Any) -> None:
    """Exit on a KeyboardInterrupt that a finaliser would swallow."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        leave()
    sys.__unraisablehook__(lost)
