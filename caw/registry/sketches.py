"""Sketches of texts, by which an edited text finds its receipt.

A sketch has 64 keyed min-hash values of a text's shingles, all its runs of three words. Two texts agree in each value
with a probability that is the share of their shingles that both have (Broder 1997). Pairs of values are indexed
(locality-sensitive hashing), so that few receipts are compared. With the key, sealed in the registry, anyone can tell
whether a text that they have, or guess, is close to one that was sent; no text can be read from a sketch.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import sqlalchemy as sa

from caw.registry import tables
from caw.registry.chain import BEGUN
from caw.registry.database import Database
from caw.registry.master_key import MasterKeys

VALUES, WORDS = 64, 3
FEWEST = 20  # shingles of a text with a sketch: shorter ones are often alike by chance
LEAST = 12  # values in which close texts agree at least
COMPARED, SHOWN = 200, 3  # receipts that share most pairs; those that are returned
KEY, PLACE = "sketches", "signing key sketches"  # among the signing keys, which are sealed and resealed alike


def sketch_of(text: str, key: bytes) -> bytes:
    """Return the number of shingles, 4 bytes, and 64 values of 2 bytes; b"" for a text with fewer than `FEWEST`."""
    words = re.findall(r"\w+", text.casefold())
    shingles = {" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}
    if len(shingles) < FEWEST:
        return b""
    digests = (hashlib.blake2b(each.encode("utf-8", "surrogatepass"), key=key, digest_size=8) for each in shingles)
    hashes = np.frombuffer(b"".join(each.digest() for each in digests), "<u8")
    factors = np.frombuffer(hashlib.shake_256(key).digest(8 * VALUES), "<u8") | np.uint64(1)
    least = np.array([(hashes * factor).min() for factor in factors])  # modulo 2^64: an order of them for each factor
    return len(shingles).to_bytes(4, "little") + (least >> np.uint64(16)).astype("<u2").tobytes()


def sketcher(database: Database, masters: MasterKeys) -> Callable[[str], bytes]:
    """Return `sketch_of` with the registry's key; create that, and the tables in an older registry."""
    keys = tables.signing_keys
    with database.writing() as connection:
        tables.metadata.create_all(connection)
        sealed = connection.execute(sa.select(keys.c.secret).where(keys.c.id == KEY)).scalar()
        if sealed is None:
            sealed = masters.seal(secrets.token_bytes(32), PLACE)
            connection.execute(keys.insert().values(id=KEY, secret=sealed, created=database.clock()))
    return partial(sketch_of, key=masters.open(sealed, PLACE))


def add_sketch(connection: sa.Connection, sequence: int, sketch: bytes) -> None:
    """Store the sketch of the receipt that was closed by this entry."""
    connection.execute(tables.sketches.insert().values(sequence=sequence, sketch=sketch))
    connection.execute(tables.bands.insert(), [{"band": band, "sequence": sequence} for band in _bands(sketch)])


def near(database: Database, masters: MasterKeys, text: str, tenant: str | None = None) -> list[dict[str, Any]]:
    """Return the receipts to which a text is close, the closest first, with their tenants and the share of their
    shingles that the text has; of one tenant, None = of all. [] for short texts and a registry without sketches.
    """
    signing, closed, begun = tables.signing_keys.c, tables.receipts.alias(), tables.receipts.alias()
    with database.reading() as connection:
        sealed = connection.execute(sa.select(signing.secret).where(signing.id == KEY)).scalar()
        if sealed is None or not (own := sketch_of(text, masters.open(sealed, PLACE))):
            return []
        sequence, shared = tables.bands.c.sequence, sa.func.count().desc()
        likely = sa.select(sequence).where(tables.bands.c.band.in_(_bands(own))).group_by(sequence).order_by(shared)
        chosen = connection.execute(likely.limit(COMPARED) if tenant is None else likely).scalars().all()
        found: list[dict[str, Any]] = []
        for start in range(0, len(chosen), COMPARED):  # of one tenant until some are found: others' may be alike
            rows = connection.execute(
                sa.select(begun.c.receipt, begun.c.content, tables.sketches.c.sketch)
                .join(closed, closed.c.receipt == begun.c.receipt)
                .join(tables.sketches, tables.sketches.c.sequence == closed.c.sequence)
                .where(begun.c.kind == BEGUN, closed.c.sequence.in_(chosen[start : start + COMPARED]))
            ).all()
            for row in rows:
                whose, share = json.loads(row.content)["receipt"]["tenant"], _share(own, row.sketch)
                if share and tenant in (None, whose):
                    found.append({"receipt": row.receipt, "tenant": whose, "share": share})
            if found:
                break
    return sorted(found, key=lambda each: -each["share"])[:SHOWN]


def _bands(sketch: bytes) -> list[int]:
    """Return the indexed pairs of values: 32 numbers below 2^37."""
    pairs = np.frombuffer(sketch, "<u4", offset=4).tolist()
    return [place << 32 | pair for place, pair in enumerate(pairs)]


def _share(own: bytes, other: bytes) -> float:
    """Estimate which share of another text's shingles a text has; 0 for texts that are not close."""
    agree = int((np.frombuffer(own, "<u2", offset=4) == np.frombuffer(other, "<u2", offset=4)).sum())
    counts = [int.from_bytes(each[:4], "little") for each in (own, other)]
    common = agree / (VALUES + agree) * sum(counts)  # from common / all = agree / VALUES
    return min(1.0, common / counts[1]) if agree >= LEAST else 0.0
