"""How a command asks for a field: help, flags and panel stand beside the field's default, so each is listed once."""

from dataclasses import field
from typing import Any

FLAG = "flag"  # of a field's metadata: the arguments of `flag`
MARK, POLICY, DECODING, RUNNING = "Watermark", "Policy", "Decoding", "Running"
DETECTABLE, SERVING, LIMITS, MARKED = "Detectable texts", "Serving", "Limits", "What is marked"


def flag(default: Any, text: str, panel: str | None = None, *names: str, kind: Any = None, **more: Any) -> Any:
    """Return the field of a dataclass that a command has an option for.

    text, panel: help, and the panel that shows it; where the help ends with a default in brackets, a command reads None
    for an option that was not given. names: flags, () = one of the field's name. kind: of what a command reads, None =
    the field's type. more: of the option.
    """
    return field(default=default, metadata={FLAG: (text, panel, names, kind, more)})
