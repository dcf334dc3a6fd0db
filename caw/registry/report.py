"""What an operator can show of the deployed keys: false alarms and power, measured on texts of their own.

A key's false-positive rate on one kind of text is not the level it was tested at: such texts share phrases. So it is
measured, for each key, on the operator's own unmarked corpus (`null_report`). Power is measured on texts that really
left: their receipts say, by the digest of the text, which key marked them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from caw.detection.detector import Detector
from caw.detection.null_rates import NullReport, null_report
from caw.detection.power import PowerRow, power_table
from caw.evaluation.attacks import parse_attack
from caw.found.receipts import text_digest
from caw.registry import tables
from caw.registry.audit import Verified, export_lines, verify
from caw.registry.chain import BEGUN, CLOSED
from caw.registry.opening import Registry
from caw.watermarks.registry import watermark_from

LENGTHS = (200, 300, 400)
COUNTED = ("begun", "open", "complete", "cancelled", "failed", "found", "unfound")  # of receipts
EDITS = ("", "word-d:0.1", "word-d:0.3")  # "" = as they left


@dataclass(frozen=True)
class Power:
    """Share of marked texts found. edits: what was done to them, "" = nothing. rows: one a length."""

    edits: str
    rows: tuple[PowerRow, ...]


@dataclass(frozen=True)
class KeyReport:
    """One key. watermark: with which it marks. state: see `MarkingKey.state`. null: on unmarked texts. power: of its
    marked texts; empty without any.

    marked: number of those texts. receipts: of its texts, counted: begun, open, and by how they ended (complete,
    cancelled, failed), found and unfound where they were tested.
    """

    id: str
    tenant: str
    watermark: str
    state: str
    null: NullReport
    marked: int
    power: tuple[Power, ...]
    receipts: Mapping[str, int]


@dataclass(frozen=True)
class Report:
    """The whole. unmarked_texts: texts that left without a mark on purpose, by reason. strangers: marked texts that
    were given and that no receipt and no key_id of the registry knows; they count nowhere."""

    time: str
    fpr: float
    chain: Verified
    keys: tuple[KeyReport, ...]
    unmarked_texts: Mapping[str, int]
    strangers: int

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        out = {**asdict(self), "keys": []}
        for key in self.keys:
            power = [{"edits": p.edits, "rows": [row.as_dict() for row in p.rows]} for p in key.power]
            plain = {name: getattr(key, name) for name in ("id", "tenant", "watermark", "state", "marked")}
            out["keys"].append({**plain, "null": key.null.as_dict(), "power": power, "receipts": dict(key.receipts)})
        return out


def make_report(
    registry: Registry, tokenizer: Any, unmarked: Sequence[str], marked: Sequence[tuple[str, str | None]], *,
    fpr: float = 1e-3, every: bool = False,
) -> Report:  # fmt: skip
    """Measure the keys of a registry.

    Args:
        tokenizer: of the model that wrote the texts. unmarked: texts of the kind that the keys will judge, without a
            mark. marked: texts, each with its key id, or None where a receipt knows it. fpr: the level of detection.
            every: keys that mark no more as well.

    Deterministic for the same registry and time. Raises ValueError for no unmarked texts, no keys, a chain that does
    not verify, and texts in which nothing counts.
    """
    chain = verify(export_lines(registry.database), registry.receipts.public_keys()[0])
    counts, unmarked_texts = _count_receipts(registry)
    now = registry.database.clock()
    with registry.database.reading() as connection:
        opened = registry.marking.opened(connection, sa.true())
    chosen = [key for key in opened if every or key.about.state(now) == "valid"]
    if not chosen:
        raise ValueError("expected a key that marks, the registry has none; make one with `caw keys create`")
    by_key, strangers = _by_key(registry, marked, {key.about.id for key in opened})
    keys = []
    for key in chosen:
        mark = watermark_from(key.mark.watermark, key.mark.key)
        detector = Detector(tokenizer, mark, fpr)
        own = by_key.get(key.about.id, [])
        keys.append(KeyReport(
            key.about.id, key.about.tenant, _described(key.mark.watermark), key.about.state(now),
            null_report(unmarked, detector), len(own),
            _power(own, detector, fpr), counts.get(key.about.id, {}),
        ))  # fmt: skip
    return Report(now.isoformat(timespec="seconds"), fpr, chain, tuple(keys), unmarked_texts, strangers)


def _described(said: Mapping[str, Any]) -> str:
    """A watermark and its settings, in a line."""
    settings = (f"{name.replace('_', ' ')} {value}" for name, value in said.items() if name != "name")
    return f"{said['name']}: {', '.join(settings)}"


def _power(texts: Sequence[str], detector: Detector, fpr: float) -> tuple[Power, ...]:
    if not texts:
        return ()
    out = []
    for edits in EDITS:
        attack = parse_attack(edits) if edits else None
        edited = [attack(text, str(i)).text for i, text in enumerate(texts)] if attack is not None else texts
        out.append(Power(edits, tuple(power_table(edited, detector, LENGTHS, (fpr,)))))
    return tuple(out)


def _by_key(
    registry: Registry, marked: Sequence[tuple[str, str | None]], known: set[str]
) -> tuple[dict[str, list[str]], int]:
    """(texts by the key that marked them, how many no key of the registry marked)."""
    begun, closed = tables.receipts.alias(), tables.receipts.alias()
    found: dict[str, list[str]] = {}
    strangers = 0
    with registry.database.reading() as connection:
        for text, key in marked:
            if key is None:
                same = sa.and_(closed.c.text == text_digest(text), closed.c.kind == CLOSED)
                both = sa.and_(begun.c.receipt == closed.c.receipt, begun.c.kind == BEGUN)
                content = (
                    connection.execute(sa.select(begun.c.content).join(closed, both).where(same)).scalars().first()
                )
                key = json.loads(content)["receipt"]["key_id"] if content is not None else ""
            if key in known:
                found.setdefault(key, []).append(text)
            else:
                strangers += 1
    return found, strangers


def _count_receipts(registry: Registry) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """(counts by key id, number of unmarked texts by reason)."""
    keys: dict[str, str] = {}
    counts: dict[str, dict[str, int]] = {}
    unmarked: dict[str, int] = {}
    for line in export_lines(registry.database):
        entry = json.loads(line)
        receipt = entry["receipt"]
        if entry["kind"] == BEGUN:
            keys[receipt["id"]] = receipt["key_id"]
            if receipt["unmarked"]:
                unmarked[receipt["unmarked"]] = unmarked.get(receipt["unmarked"], 0) + 1
            own = counts.setdefault(receipt["key_id"], dict.fromkeys(COUNTED, 0))
            own["begun"], own["open"] = own["begun"] + 1, own["open"] + 1
        elif entry["kind"] == CLOSED:
            own = counts[keys[receipt["id"]]]
            own["open"] -= 1
            own[receipt["ending"]] += 1
            if receipt["found"] is not None:
                own["found" if receipt["found"] else "unfound"] += 1
    return counts, unmarked
