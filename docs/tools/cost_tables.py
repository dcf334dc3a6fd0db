"""Tables of what a mark of drawn words costs, and how well it is found (`bench_cost.py`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from result_files import as_table, read_result, source, with_ends

from caw_lab.evaluation.metrics.accuracy import wilson

FILE = "cost.json.xz"
LENGTHS = (50, 100, 200, 300)  # of beginnings, before the whole text
SUBJECTS = {"smollm2": "SmolLM2-135M", "qwen05": "Qwen2.5-Coder-0.5B", "qwen15": "Qwen2.5-Coder-1.5B",
          "gemma270m": "Gemma 3 270M"}  # fmt: skip
METHODS = {"unmarked": "unmarked", "race": "recommended (the race, 64 variants)",
           "race-found": "recommended, other variants until found", "synthid": "SynthID",
           "dual": "vLLM's dual key", "kgw-caw": "KGW under CAW with a target", "kgw-2": "KGW, 2 nats"}  # fmt: skip
PLACE = ("model", "temperature")
CHANGES = ("pairs", "nats a token, minus what sampling leads one to expect", "nats a token", "under the other model",
           "share of distinct 4-grams", "length, per cent")  # fmt: skip
PAIRED = "Differences of the means over pairs of the same prompt, with 95 % intervals."
COMPARED = 30  # prompts of a model on which every mark was tried
Row = dict[str, Any]
Pair = tuple[Row, Row]


def drawn_found() -> str:
    """Share of texts that are found at 0.1 % and at one in a million, by length: the race and unmarked texts."""
    lines, cells = [], list(_cells())
    races = [row for (_, temperature, method), rows in cells if method == "race" and temperature >= 0.7 for row in rows]
    plain = [row for (_, _, method), rows in cells if method == "unmarked" for row in rows]
    shown = [cell for cell in cells if cell[0][2] in ("race", "race-found")]
    for (model, temperature, method), rows in [*shown, (("together", 0.7, "race"), races)]:
        degrees = f"{temperature:g}" + (" and more" if model == "together" else "")
        lines.append((model, degrees, METHODS[method], *_found_shares(rows)))
    lines.append(("together", "all", METHODS["unmarked"], *_found_shares(plain)))
    header = ("model", "temperature", "mark", "after 50 tokens", "100", "200", "200, at one in a million",
              "whole texts of fewer than 200 tokens")  # fmt: skip
    said = "Detected at 0.1 %, of texts that have so many tokens; in brackets the 95 % interval."
    return f"{as_table(header, lines)}\n\n{said} {source(FILE)}"


def _found_shares(rows: Sequence[Row]) -> tuple[str, ...]:
    shares = [_share([_p(row, n) for row in rows if row["n"] >= n], 3) for n in (50, 100, 200)]
    early = [row["p"][-1] for row in rows if row["n"] < 200]
    return *shares, _share([_p(row, 200) for row in rows if row["n"] >= 200], 6), _share(early, 3)


def marks_compared() -> str:
    """Every mark on the same prompts, models together: share found, nats, distinct 4-grams, length, by temperature."""
    cells = {
        place: [row for row in rows if row["text"][0] == 0 and row["text"][1] < COMPARED] for place, rows in _cells()
    }
    methods, lines = [method for method in METHODS if method != "race-found"], []
    for temperature in sorted({temperature for _, temperature, _ in cells}):
        models = [m for m in SUBJECTS.values() if all((m, temperature, method) in cells for method in methods)]
        for method in methods if models else ():
            rows = [row for m in models for row in cells[m, temperature, method]]
            pairs = [
                p for m in models for p in _matched(cells[m, temperature, "unmarked"], cells[m, temperature, method])
            ]
            own = _changes(pairs)[1:] if method != "unmarked" else ("",) * 5
            changed = (own[0], *own[2:])
            lines.append((f"{temperature:g}", METHODS[method], len(models), *_found_shares(rows)[1:4], *changed))
    header = ("temperature", "mark", "models", "found after 100 tokens", "200", "200, at one in a million",
              *(CHANGES[at] for at in (1, 3, 4, 5)))  # fmt: skip
    said = f"{COMPARED} prompts a model and mark, the same for all, one key. {PAIRED}"
    return f"{as_table(header, lines)}\n\n{said} {source(FILE)}"


def drawn_cost() -> str:
    """What the race changes: nats, distinct 4-grams and length, each text against the unmarked one of its prompt."""
    lines, races = [], list[Pair]()
    for (model, temperature, method), pairs in _pairs():
        if method == "race":
            lines.append((model, f"{temperature:g}", *_changes(pairs)))
            races += pairs if temperature >= 0.7 else []
    lines.append(("together", "0.7 and more", *_changes(races)))
    return f"{as_table((*PLACE, *CHANGES), lines)}\n\n{PAIRED} {source(FILE)}"


def retried_cost() -> str:
    """What trying other variants until one is found changes, against the unmarked text and the first variant's."""
    cells = dict(_cells())
    lines = []
    for (model, temperature, method), rows in cells.items():
        if method == "race-found":
            for base, said in (("unmarked", "an unmarked text"), ("race", "the first variant's")):
                pairs = _matched(cells[model, temperature, base], rows)
                lines.append((model, f"{temperature:g}", said, *_changes(pairs)))
    return f"{as_table(('model', 'temperature', 'against', *CHANGES), lines)}\n\n{PAIRED} {source(FILE)}"


def _pairs() -> Iterator[tuple[tuple[str, float, str], list[Pair]]]:
    """The pairs (unmarked, marked) of each (model, temperature, method)."""
    cells = dict(_cells())
    for (model, temperature, method), rows in cells.items():
        plain = cells.get((model, temperature, "unmarked"), [])
        if method not in ("unmarked", "race-found") and plain:
            yield (model, temperature, method), _matched(plain, rows)


def _matched(plain: Sequence[Row], rows: Sequence[Row]) -> list[Pair]:
    base = {row["text"]: row for row in plain}
    return [(base[row["text"]], row) for row in rows if row["text"] in base]


def _changes(pairs: Sequence[Pair]) -> tuple[Any, ...]:
    """How many pairs there are, and what the second of them has more in nats, distinct 4-grams and length."""
    length = statistics.mean(plain["n"] for plain, _ in pairs)
    judged = [pair for pair in pairs if all(row["other"] is not None for row in pair)]
    return (len(pairs), _difference(pairs, lambda row: row["excess"][1], 3),
            _difference(pairs, lambda row: row["nats"][1], 3),
            _difference(judged, lambda row: row["other"], 2),
            _difference(pairs, lambda row: row["distinct"][0], 3),
            _difference(pairs, lambda row: row["n"], 1, 100 / length))  # fmt: skip


def _cells() -> Iterator[tuple[tuple[str, float, str], list[Row]]]:
    """The texts of each (model, temperature, method), of all keys together; `text` tells prompts apart."""
    found: dict[tuple[str, float, str], list[Row]] = {}
    for chunk in read_result(FILE)["rows"]:
        rows = found.setdefault((SUBJECTS[chunk["model"]], chunk["temperature"], chunk["method"]), [])
        names = [name for name, values in chunk.items() if isinstance(values, list)]
        for i in range(len(chunk["n"])):
            rows.append({**{name: chunk[name][i] for name in names}, "text": (chunk["number"], i)})
    order = list(METHODS)
    yield from sorted(found.items(), key=lambda item: (item[0][0], item[0][1], order.index(item[0][2])))


def _p(row: Row, length: int) -> float:
    """-log10 of the p-value of a beginning."""
    return float(row["p"][LENGTHS.index(length)])


def _share(values: Sequence[float], level: int) -> str:
    """Share of -log10 p-values that reach a level, with Wilson's interval; empty without a text."""
    if not values:
        return ""
    count = sum(value >= level for value in values)
    low, high = wilson(count, len(values))
    return f"{count} of {len(values)} ({100 * low:.0f} - {100 * high:.0f} %)"


def _difference(
    pairs: Sequence[tuple[Row, Row]], value: Callable[[Row], float], digits: int, scale: float = 1.0
) -> str:
    """The mean of marked minus unmarked, times `scale`, and its interval."""
    if len(pairs) < 2:
        return ""
    differences = [scale * (value(marked) - value(plain)) for plain, marked in pairs]
    mean, error = statistics.mean(differences), 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    return _signed((mean, mean - error, mean + error), digits)


def _signed(ends: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """A difference and the ends of its interval, times `scale`."""
    mean, low, high = (scale * each for each in ends)
    return f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def race_answers() -> str:
    """Right answers of sampled texts with and without a race."""
    found = read_result("race_answers.json.xz")
    plain, marked = found["right"]

    rows = [
        ("right answers, per cent", f"{100 * plain:.1f}", f"{100 * marked:.1f}", _signed(found["more right"], 1, 100)),
        (
            "tokens; difference in per cent",
            *(f"{each:.1f}" for each in found["tokens"]),
            _signed(found["more length"], 1, 100),
        ),
    ]
    header = (f"{found['pairs']} pairs of {found['questions']} questions", "unmarked", "race", "difference")
    said = "Intervals of 95 %, with the pairs of a question together."
    return f"{as_table(header, rows)}\n\n{said} {source('race_answers.json.xz')}"


def cool_texts() -> str:
    """Texts sampled at low temperatures: found share and nats under a race, lists and no mark."""
    found = {(row["temperature"], row["how"]): row for row in read_result("cool_texts.json")["rows"]}
    rows = []
    for temperature in sorted({temperature for temperature, _ in found}):
        own = [found.get((temperature, how)) for how in ("race", "lists", "plain")]
        shares = [with_ends(row["found"] / row["texts"], *row["found_ci"]) if row else "" for row in own[:2]]
        rows.append(
            (f"{temperature:g}", own[2]["texts"], *shares, *(f"{row['nats']:.2f}" if row else "" for row in own))
        )
    header = (
        "temperature",
        "texts",
        "found, race",
        "found, green lists",
        "nats a token, race",
        "green lists",
        "unmarked",
    )
    return f"{as_table(header, rows)}\n\n{source('cool_texts.json')}"


def race_ends() -> str:
    """Ends and nats of sampled texts of GSM8K beyond what the model's probabilities let expect."""
    found = [row for row in read_result("race_ends.json")["rows"] if row["cell"] == "marked"]

    rows = [
        (
            row["texts"],
            f"{100 * row['ended']:.1f} %",
            _signed(row["ends beyond"], 1, 100),
            _signed(row["nats beyond"], 3),
        )
        for row in found
    ]
    header = ("marked texts", "ended by themselves", "beyond their probability, points", "nats a token beyond")
    return f"{as_table(header, rows)}\n\n{source('race_ends.json')}"
