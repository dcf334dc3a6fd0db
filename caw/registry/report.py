"""Audit report of the deployed keys: false alarms and detection rate, measured on the operator's own texts.

A key's false-positive rate on one kind of text is not its nominal level, because such texts share phrases. So it is
measured, for each key, on the operator's own unmarked corpus (`null_report`). Detection is measured on texts that were
really served: their receipts name, by the digest of the text, the key that marked them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from caw.detectable.receipts import text_digest
from caw.detection.detector import Detector
from caw.detection.edits import WordD
from caw.detection.null_rates import NullReport, null_report
from caw.detection.power import PowerRow, power_table
from caw.io.progress import Bar, watched
from caw.registry import tables
from caw.registry.audit import Verified, count_entries, export_lines, verify
from caw.registry.chain import BEGUN, CLOSED
from caw.registry.opening import Registry
from caw.watermarks.names import watermark_from

LENGTHS = (200, 300, 400)
COUNTED = ("begun", "open", "complete", "cancelled", "failed", "detected", "undetected")  # of receipts
EDITS = {"": None, "word-d:0.1": WordD(rate=0.1), "word-d:0.3": WordD(rate=0.3)}  # "" = as they left


@dataclass(frozen=True)
class Power:
    """Detection rate of marked texts. edits: applied to them, "" = none. rows: one per length."""

    edits: str
    rows: tuple[PowerRow, ...]


@dataclass(frozen=True)
class KeyReport:
    """One key. watermark: its watermark. state: see `MarkingKey.state`. null: on unmarked texts. power: of its marked
    texts; empty if there are none.

    marked: number of those texts. receipts: of its texts, counted: begun, open, and by how they ended (complete,
    cancelled, failed), detected and undetected where they were tested.
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
    """The whole report. unmarked_texts: texts served without a mark on purpose, by reason. ran: marked texts, by the
    model, watermark and policy in their receipts, and tested ones by version of this library. strangers: given marked
    texts with no known receipt or key_id; they are not counted.
    """

    time: str
    fpr: float
    chain: Verified
    keys: tuple[KeyReport, ...]
    unmarked_texts: Mapping[str, int]
    ran: Mapping[str, int]
    strangers: int

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        out = {**asdict(self), "keys": []}
        for key in self.keys:
            power = [{"edits": p.edits, "rows": [row.as_dict() for row in p.rows]} for p in key.power]
            plain = {name: getattr(key, name) for name in ("id", "tenant", "watermark", "state", "marked")}
            out["keys"].append({**plain, "null": key.null.as_dict(), "power": power, "receipts": dict(key.receipts)})
        return out


def make_report(
    registry: Registry, tokenizer: Any, unmarked: Sequence[str], marked: Sequence[tuple[str, str | None]], *,
    fpr: float = 1e-3, every: bool = False, progress: bool = False,
) -> Report:  # fmt: skip
    """Measure the keys of a registry.

    Args:
        tokenizer: of the model that wrote the texts. unmarked: unmarked texts of the kind that the keys will test.
            marked: texts, each with its key id, or None if a receipt has it. fpr: detection threshold. every: include
                retired keys. progress: show progress on stderr.

    Deterministic for the same registry and time. Raises ValueError for no unmarked texts, no keys, a chain that does
    not verify, and texts in which nothing counts.
    """
    lines = watched(
        export_lines(registry.database), "verifying", "entries", enabled=progress, announced=True,
        total=count_entries(registry.database),
    )  # fmt: skip
    chain = verify(lines, registry.receipts.public_keys()[0])
    counts, unmarked_texts, ran = count_receipts(registry)
    now = registry.database.clock()
    with registry.database.reading() as connection:
        opened = registry.marking.opened(connection, sa.true())
    chosen = [key for key in opened if every or key.about.state(now) == "valid"]
    if not chosen:
        raise ValueError("the registry has no active marking key; create one with `caw keys create`")
    by_key, strangers = _by_key(registry, marked, {key.about.id for key in opened})
    keys = []
    tests = sum(len(unmarked) + len(EDITS) * len(by_key.get(key.about.id, ())) for key in chosen)
    with Bar(tests, "testing", "texts", enabled=progress, announced=True) as bar:
        for key in chosen:
            mark = watermark_from(key.mark.watermark, key.mark.key)
            detector = Detector(tokenizer, mark, fpr)
            own = by_key.get(key.about.id, [])
            bar.begin(f"testing key {key.about.id}")
            keys.append(KeyReport(
                key.about.id, key.about.tenant, _described(key.mark.watermark), key.about.state(now),
                null_report(unmarked, detector, done=bar.finish), len(own),
                _power(own, detector, fpr, bar), counts.get(key.about.id, {}),
            ))  # fmt: skip
    return Report(now.isoformat(timespec="seconds"), fpr, chain, tuple(keys), unmarked_texts, ran, strangers)


def _described(said: Mapping[str, Any]) -> str:
    """Describe a watermark and its settings in one line."""
    settings = (f"{name.replace('_', ' ')} {value}" for name, value in said.items() if name != "name")
    return f"{said['name']}: {', '.join(settings)}"


def _power(texts: Sequence[str], detector: Detector, fpr: float, bar: Bar) -> tuple[Power, ...]:
    if not texts:
        return ()
    out = []
    for edits, attack in EDITS.items():
        edited = [attack(text, str(i)).text for i, text in enumerate(texts)] if attack is not None else texts
        out.append(Power(edits, tuple(power_table(edited, detector, LENGTHS, (fpr,)))))
        bar.finish(len(texts))
    return tuple(out)


def _by_key(
    registry: Registry, marked: Sequence[tuple[str, str | None]], known: set[str]
) -> tuple[dict[str, list[str]], int]:
    """Return (texts by the key that marked them, number of texts that no key of the registry marked)."""
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


def count_receipts(registry: Registry) -> tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]]:
    """Return (counts by key id, number of unmarked texts by reason, of texts by what made them)."""
    keys: dict[str, str] = {}
    counts: dict[str, dict[str, int]] = {}
    unmarked: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    for line in export_lines(registry.database):
        entry = json.loads(line)
        receipt = entry["receipt"]
        if entry["kind"] == BEGUN:
            keys[receipt["id"]] = receipt["key_id"]
            if receipt["unmarked"]:
                unmarked[receipt["unmarked"]] += 1
            else:
                ran[", ".join(receipt[name] for name in ("model", "watermark", "policy"))] += 1
            own = counts.setdefault(receipt["key_id"], dict.fromkeys(COUNTED, 0))
            own["begun"], own["open"] = own["begun"] + 1, own["open"] + 1
        elif entry["kind"] == CLOSED:
            own = counts[keys[receipt["id"]]]
            own["open"] -= 1
            own[receipt["ending"]] += 1
            if receipt["tested"]:
                ran[f"caw {receipt['tested']['versions']['caw']}"] += 1
            if receipt["detected"] is not None:
                own["detected" if receipt["detected"] else "undetected"] += 1
    return counts, dict(unmarked), dict(ran)
