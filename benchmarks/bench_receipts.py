"""What sketches cost a registry of very many receipts: bytes of each, and milliseconds to close one and to look one up.

The sketches are synthetic. Pairs of their values are shared by as many as in texts of GSM8K: a common pair of one place
by 1.1 % of them, a pair of others by 5e-4 of them on average. Entries of the log are short, unsigned and unchained.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from caw.registry import open_registry, sketches, tables
from caw.registry.database import Database
from caw.registry.master_key import MasterKeys

COMMON, SHARED, POOL, HOT = 0.3, 32, 5760, 0.011
QUERIES, CHUNK = 200, 100_000
MASTERS = MasterKeys((bytes(32),))


def made(count: int, seed: int) -> np.ndarray:
    """Return the pairs of this many sketches, [count, 32]."""
    random = np.random.default_rng(seed)
    pairs = random.integers(0, 1 << 32, (count, SHARED), np.uint32)
    pool = random.integers(0, POOL, pairs.shape, np.uint32) * np.uint32(2654435769)  # spread over both values
    common = random.random(pairs.shape, np.float32) < COMMON
    pairs[common] = pool[common]
    pairs[random.random(count) < HOT, 17] = POOL
    return pairs


def rows_of(pairs: np.ndarray) -> Iterator[tuple[sa.Table, list[str], Iterator[tuple[Any, ...]]]]:
    """Yield each table's columns and rows, bands in the order of their index."""
    number, content = range(2, 2 * len(pairs) + 2, 2), json.dumps({"receipt": {"tenant": "acme"}})
    names = ["sequence", "kind", "receipt", "content", "digest", "signing_key", "signature"]
    rest = (content, "0" * 64, "0" * 16, "0" * 88)
    both = ((n + kind, ("begun", "closed")[kind], f"{n:036x}", *rest) for n in number for kind in (-1, 0))
    yield tables.receipts, names, both
    sketch = ((n, (150).to_bytes(4, "little") + row.tobytes()) for n, row in zip(number, pairs, strict=True))
    yield tables.sketches, ["sequence", "sketch"], sketch
    for place in range(SHARED):
        order = np.argsort(pairs[:, place], kind="stable")
        bands = zip((pairs[order, place].astype(np.int64) + (place << 32)).tolist(), (2 * order + 2).tolist(),
                    strict=True)  # fmt: skip
        yield tables.bands, ["band", "sequence"], bands


def fill(database: Database, pairs: np.ndarray) -> None:
    raw = database.engine.raw_connection()
    cursor: Any = raw.cursor()
    for table, names, rows in rows_of(pairs):
        into = f"{table.name} ({', '.join(names)})"
        if database.engine.dialect.name == "sqlite":
            cursor.execute("BEGIN")  # else each row is a commit
            cursor.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})", rows)
        else:
            with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        raw.commit()
    raw.close()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")


def sizes(database: Database) -> dict[str, int]:
    """Return the bytes of each table with its indices."""
    names = [tables.receipts.name, tables.sketches.name, tables.bands.name]
    of = {"sqlite": "SELECT sum(s.pgsize) FROM dbstat s JOIN sqlite_master m ON m.name = s.name WHERE tbl_name = '{}'",
          "postgresql": "SELECT pg_total_relation_size('{}')"}[database.engine.dialect.name]  # fmt: skip
    with database.engine.connect() as connection:
        return {name: int(connection.exec_driver_sql(of.format(name)).scalar_one()) for name in names}


def timed(call: Any, arguments: list[Any]) -> dict[str, float]:
    """Return the medians of milliseconds, of this process's own, and the share of calls that found something."""
    wall, own, found = [], [], 0
    for each in arguments:
        begin = time.perf_counter(), time.process_time()
        found += bool(call(each))
        wall.append(1e3 * (time.perf_counter() - begin[0]))
        own.append(1e3 * (time.process_time() - begin[1]))
    return {"median_ms": np.median(wall), "own_ms": np.median(own), "p99_own_ms": np.quantile(own, 0.99),
            "found": found / len(arguments)}  # fmt: skip


def explained(database: Database, texts: list[bytes]) -> float:
    """Return the median of milliseconds that PostgreSQL itself takes for the statements of a look-up."""
    spent: list[float] = []

    def listen(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if "caw_bands" in statement or "caw_sketches" in statement:
            asked = connection.connection.cursor()
            asked.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters)
            [plan] = asked.fetchone()[0]
            spent[-1] += plan["Planning Time"] + plan["Execution Time"]

    sa.event.listen(database.engine, "before_cursor_execute", listen)
    for text in texts:
        spent.append(0.0)
        sketches.near(database, MASTERS, text)  # type: ignore[arg-type]
    sa.event.remove(database.engine, "before_cursor_execute", listen)
    return float(np.median(spent))


def measure(url: str, count: int) -> dict[str, Any]:
    database = open_registry(url, MASTERS, create=True).database
    sketches.sketcher(database, MASTERS)
    sketches.sketch_of = lambda text, key: text  # type: ignore[assignment,misc,return-value] # sketches come made
    begin, pairs = time.perf_counter(), made(count, 0)
    fill(database, pairs)
    filled = time.perf_counter() - begin
    random = np.random.default_rng(1)
    # an edited text keeps 40 of its 64 values, so that 12 or 13 of its 32 pairs stay
    near = pairs[random.integers(0, count, QUERIES)].view(np.uint16).copy()
    near[random.random(near.shape) > 40 / 64] ^= 1
    others, hot = made(QUERIES, 2), made(QUERIES, 3)
    hot[:, 17] = POOL
    asked = {"edited": near, "unrelated": others, "common": hot}
    texts = {name: [(150).to_bytes(4, "little") + row.tobytes() for row in rows] for name, rows in asked.items()}
    look = {name: timed(lambda text: sketches.near(database, MASTERS, text), each) for name, each in texts.items()}
    new = iter(range(2 * count + 10, 10**9))

    def close(text: bytes | None) -> None:
        with database.writing() as connection:
            if text is not None:
                sketches.add_sketch(connection, next(new), text)
            connection.execute(
                tables.facts.update().where(tables.facts.c.name == "checked").values(value="x" * bool(text))
            )

    if database.engine.dialect.name == "postgresql":
        for name, each in texts.items():
            look[name]["server_ms"] = explained(database, each)

    def trip(_: bytes) -> None:
        with database.reading() as connection:
            connection.execute(sa.text("SELECT 1")).scalar_one()

    look["round_trip"] = timed(trip, texts["unrelated"])
    closing = {"with": timed(close, list(texts["unrelated"])), "without": timed(close, [None] * QUERIES)}
    return {"database": database.engine.dialect.name, "receipts": count, "bytes": sizes(database),
            "fill_s": filled, "look_up": look, "close": closing}  # fmt: skip


if __name__ == "__main__":
    out, url, count = Path(sys.argv[1]), sys.argv[2], int(float(sys.argv[3]))
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    rows.append(json.loads(json.dumps(measure(url, count)), parse_float=lambda number: float(f"{float(number):.3g}")))
    out.write_text(json.dumps({"command": "python benchmarks/bench_receipts.py OUT URL COUNT", "rows": rows}, indent=1))
