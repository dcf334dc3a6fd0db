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
from caw.detectable.trial import without_words
from caw.detection.detector import Detector
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
EDITS = {"": 0.0, "word-d:0.1": 0.1, "word-d:0.3": 0.3}  # share of words that are deleted; "" = as they left
# what stands for entropy, by thirds: the tokens that the mark could have chosen otherwise
OPEN = ("under a third of the tokens open", "a third to two thirds open", "over two thirds open")


@dataclass(frozen=True)
class Given:
    """A text for a report. key: id of the key that marked it, None = its receipt says it. language: "" = unknown."""

    text: str
    key: str | None = None
    language: str = ""


@dataclass(frozen=True)
class Power:
    """Detection rate of marked texts. edits: "" = none. rows: one per length. group: of the texts, "" = all."""

    edits: str
    rows: tuple[PowerRow, ...]
    group: str = ""


@dataclass(frozen=True)
class KeyReport:
    """One key. watermark: its watermark. state: see `MarkingKey.state`. null: on unmarked texts; nulls: on those of
    each known language. power: of its marked texts, by edits, and as they left by language and by open tokens, where
    these are known; empty if there are none.

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
    nulls: Mapping[str, NullReport]


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
        out = {**asdict(self), "keys": []}
        for key in self.keys:
            power = [{"edits": p.edits, "group": p.group, "rows": [r.as_dict() for r in p.rows]} for p in key.power]
            plain = {name: getattr(key, name) for name in ("id", "tenant", "watermark", "state", "marked")}
            plain |= {"null": key.null.as_dict(), "nulls": {name: null.as_dict() for name, null in key.nulls.items()}}
            out["keys"].append({**plain, "power": power, "receipts": dict(key.receipts)})
        return out


def make_report(
    registry: Registry, tokenizer: Any, unmarked: Sequence[Given], marked: Sequence[Given], *,
    fpr: float = 1e-3, every: bool = False, progress: bool = False,
) -> Report:  # fmt: skip
    """Measure the keys of a registry.

    Args:
        tokenizer: of the model that wrote the texts. unmarked: unmarked texts of the kind that the keys will test.
            marked: texts of the registry's keys. fpr: detection threshold. every: include
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
    plain, languages = [each.text for each in unmarked], sorted({each.language for each in unmarked} - {""})
    tests = sum(len(unmarked) + len(EDITS) * len(by_key.get(key.about.id, ())) for key in chosen)
    with Bar(tests, "testing", "texts", enabled=progress, announced=True) as bar:
        for key in chosen:
            mark = watermark_from(key.mark.watermark, key.mark.key)
            detector = Detector(tokenizer, mark, fpr)
            own = by_key.get(key.about.id, [])
            bar.begin(f"testing key {key.about.id}")
            keys.append(KeyReport(
                key.about.id, key.about.tenant, _described(key.mark.watermark), key.about.state(now),
                null_report(plain, detector, done=bar.finish), len(own),
                _power(own, detector, fpr, bar), counts.get(key.about.id, {}),
                {one: null_report([e.text for e in unmarked if e.language == one], detector) for one in languages},
            ))  # fmt: skip
    return Report(now.isoformat(timespec="seconds"), fpr, chain, tuple(keys), unmarked_texts, ran, strangers)


def _described(said: Mapping[str, Any]) -> str:
    settings = (f"{name.replace('_', ' ')} {value}" for name, value in said.items() if name != "name")
    return f"{said['name']}: {', '.join(settings)}"


def _power(own: Sequence[tuple[str, list[str]]], detector: Detector, fpr: float, bar: Bar) -> tuple[Power, ...]:
    if not own:
        return ()
    texts, out = [text for text, _ in own], []
    for edits, share in EDITS.items():
        edited = [without_words(text, share, 0) for text in texts] if share else texts
        out.append(Power(edits, tuple(power_table(edited, detector, LENGTHS, (fpr,)))))
        bar.finish(len(texts))
    for group in sorted({group for _, groups in own for group in groups}):
        inside = [text for text, groups in own if group in groups]
        out.append(Power("", tuple(power_table(inside, detector, LENGTHS, (fpr,))), group))
    return tuple(out)


def _by_key(
    registry: Registry, marked: Sequence[Given], known: set[str]
) -> tuple[dict[str, list[tuple[str, list[str]]]], int]:
    """Return (texts with their groups by the key that marked them, number of texts of none of the registry's keys)."""
    begun, closed = tables.receipts.alias(), tables.receipts.alias()
    both = sa.and_(begun.c.receipt == closed.c.receipt, begun.c.kind == BEGUN)
    contents = sa.select(begun.c.content.label("begun"), closed.c.content.label("closed")).join(closed, both)
    found: dict[str, list[tuple[str, list[str]]]] = {}
    strangers = 0
    with registry.database.reading() as connection:
        for each in marked:
            same = sa.and_(closed.c.text == text_digest(each.text), closed.c.kind == CLOSED)
            row = connection.execute(contents.where(same)).first()
            key, groups = each.key, [f"language: {each.language}"] if each.language else []
            if row is not None:
                key = key or json.loads(row.begun)["receipt"]["key_id"]
                end = json.loads(row.closed)["receipt"]
                if end.get("open") is not None and end["tokens"]:
                    groups.append(OPEN[min(2, 3 * end["open"] // end["tokens"])])
            if key in known:
                found.setdefault(key, []).append((each.text, groups))
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
