"""The command line: one file a command, `app.py` gathers them."""

from caw.cli.app import app, main

__all__ = ["app", "main"]
