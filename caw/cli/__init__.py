"""The command line. Each command is one file; `program.py` lists them."""

from caw.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from caw.cli.program import app
else:  # importing it must take no time: until `main` is called, Ctrl-C is Python's own
    __getattr__, __dir__ = lazy_names(__name__, {"caw.cli.program": "app"})

__all__ = ["app", "main"]


def main() -> None:
    try:
        from caw.cli.interrupts import leave_on_interrupt

        leave_on_interrupt()
    except KeyboardInterrupt:
        import os

        os.write(2, b"caw: interrupted\n")
        os._exit(130)
    import sys

    for stream in (sys.stdout, sys.stderr):  # a terminal of few letters shows the others by their numbers
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from caw.cli.program import app

    app()
