"""Texts of `caw generate`'s lines by the watermark that marked them, and what the lines say of how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from caw.cli.errors import complain
from caw.cli.policy_choice import STRONG
from caw.io.inputs import open_input
from caw.io.jsonl import Row, read_rows
from caw.io.progress import watched

if TYPE_CHECKING:
    from caw.policies import Policy
    from caw.watermarks import Watermark


@dataclass
class MarkedLines:
    """texts: (or ids) by watermark. how: what each good line says of its watermark and policy. bad: lines that could
    not be used, each of them reported."""

    texts: dict[Watermark, list[Any]] = field(default_factory=dict)
    how: list[tuple[Any, Any]] = field(default_factory=list)
    bad: int = 0

    def one_policy(self, reader: str) -> Policy:
        """The policy that every line names, without its target; `reader` names a missing evaluator."""
        from caw.cli.options import build_policy

        described = self._one("policy", [policy for _, policy in self.how])
        options = {option: value for option, value in described.items() if option not in ("name", "target")}
        try:
            return build_policy(str(described.get("name")), options, reader)
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected lines whose policy is one of caw's, got {described}; make them anew") from error

    def as_strong(self) -> dict[Watermark, list[Any]]:
        """Texts by watermark, each as strong as the lines say, which a detector's settings need not."""
        described = self._one("watermark", [watermark for watermark, _ in self.how])
        strong = {name: described[name] for name in STRONG if name in described}
        return {replace(mark, **strong): texts for mark, texts in self.texts.items()}

    def _one(self, what: str, found: list[Any]) -> Mapping[str, Any]:
        first = found[0] if found else None
        if not isinstance(first, Mapping) or any(other != first for other in found):
            raise ValueError(f"expected lines that name one {what}, got none or several; give texts marked alike")
        return first


def read_marked_lines(source: str, field: str, marks: Mapping[str, Watermark]) -> MarkedLines:
    """The lines of a JSONL file; `marks`: watermarks by key_id."""
    lines = MarkedLines()
    with open_input(source) as stream:
        for row in watched(read_rows(stream), "reading texts", "texts"):
            try:
                if not isinstance(row, Row):
                    raise ValueError(row.message)
                content, key_id = row.value.get(field), row.value.get("key_id")
                if not isinstance(content, (str, list)):
                    raise ValueError(f"{field!r} must be a text or a list of token ids, it is not; name the --field")
                if not isinstance(key_id, str) or key_id not in marks:
                    known = ", ".join(marks)
                    raise ValueError(f"key_id must be one of --config's ({known}), got {key_id!r}; add that key")
                lines.texts.setdefault(marks[key_id], []).append(content)
                lines.how.append((row.value.get("watermark"), row.value.get("policy")))
            except ValueError as error:
                lines.bad += 1
                complain(f"{source}, line {row.number}: {error}")
    return lines
