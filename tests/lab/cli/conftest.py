"""The model and the terminal of the other commands' tests."""

from cli.conftest import environment, model

__all__ = ["environment", "model"]
