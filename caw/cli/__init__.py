"""The command line: `caw demo`, `caw generate`, `caw detect`, one file a command."""

from caw.cli.app import app, main

__all__ = ["app", "main"]
