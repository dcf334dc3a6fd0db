"""Sketches of texts, by which an edited text finds its receipt.

A sketch has 64 keyed min-hash values of a text's shingles, all its runs of three words. Two texts agree in each value
with a probability that is the share of their shingles that both have (Broder 1997). Pairs of values are indexed
(locality-sensitive hashing), so that few receipts are compared. With the key, sealed in the registry, anyone can tell
whether a text that they have, or guess, is close to one that was sent; no text can be read from a sketch.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

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
KEY = "sketches"  # its place among the signing keys, which are sealed alike


@dataclass(frozen=True)
class Near:
    """A receipt whose text is close to another. share: of the receipt's shingles that the other has, estimated."""

    receipt: str
    tenant: str
    share: float


def sketch_of(text: str, key: bytes) -> bytes:
    """Return the number of shingles, 4 bytes, and 64 values of 2 bytes; b"" for a text with fewer than `FEWEST`."""
    words = re.findall(r"\w+", text.casefold())
    shingles = {" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}
    if len(shingles) < FEWEST:
        return b""
    digests = (hashlib.blake2b(each.encode("utf-8", "surrogatepass"), key=key, digest_size=8) for each in shingles)
    hashes = np.frombuffer(b"".join(each.digest() for each in digests), "<u8")
    factors = np.frombuffer(hashlib.shake_256(key).digest(8 * VALUES), "<u8") | np.uint64(1)
    least = (hashes[:, None] * factors).min(0)  # modulo 2^64: one order of the shingles for each factor
    return len(shingles).to_bytes(4, "little") + (least >> np.uint64(16)).astype("<u2").tobytes()


def bands_of(sketch: bytes) -> Iterator[int]:
    """Return the indexed pairs of values: 32 numbers below 2^37."""
    values = np.frombuffer(sketch, "<u2", offset=4).tolist()
    return (
        place << 32 | one << 16 | two for place, (one, two) in enumerate(zip(values[::2], values[1::2], strict=True))
    )


def add_sketch(connection: sa.Connection, sequence: int, sketch: bytes) -> None:
    """Store the sketch of the receipt that was closed by this entry."""
    connection.execute(tables.sketches.insert().values(sequence=sequence, sketch=sketch))
    connection.execute(tables.bands.insert(), [{"band": band, "sequence": sequence} for band in bands_of(sketch)])


def near(database: Database, masters: MasterKeys, text: str, tenant: str | None = None) -> list[Near]:
    """Return the receipts to which a text is close, the closest first; of one tenant, None = of all.

    [] for short texts, and if the registry has no sketches.
    """
    signing, closed, begun = tables.signing_keys.c, tables.receipts.alias(), tables.receipts.alias()
    with database.reading() as connection:
        sealed = connection.execute(sa.select(signing.secret).where(signing.id == KEY)).scalar()
        if sealed is None or not (own := sketch_of(text, masters.open(sealed, f"signing key {KEY}"))):
            return []
        sequence = tables.bands.c.sequence
        likely = sa.select(sequence).where(tables.bands.c.band.in_(list(bands_of(own)))).group_by(sequence)
        likely = likely.order_by(sa.func.count().desc()).limit(COMPARED)
        rows = connection.execute(
            sa.select(begun.c.receipt, begun.c.content, tables.sketches.c.sketch)
            .join(closed, closed.c.receipt == begun.c.receipt)
            .join(tables.sketches, tables.sketches.c.sequence == closed.c.sequence)
            .where(begun.c.kind == BEGUN, closed.c.sequence.in_(connection.execute(likely).scalars().all()))
        ).all()
    whose = [(row.receipt, json.loads(row.content)["receipt"]["tenant"], share(own, row.sketch)) for row in rows]
    found = [Near(*each) for each in whose if each[2] and tenant in (None, each[1])]
    return sorted(found, key=lambda each: -each.share)[:SHOWN]


def share(own: bytes, other: bytes) -> float:
    """Estimate which share of another text's shingles a text has; 0 for texts that are not close."""
    agree = int((np.frombuffer(own, "<u2", offset=4) == np.frombuffer(other, "<u2", offset=4)).sum())
    counts = [int.from_bytes(each[:4], "little") for each in (own, other)]
    common = agree / (VALUES + agree) * sum(counts)  # from common / all = agree / VALUES
    return min(1.0, common / counts[1]) if agree >= LEAST else 0.0
