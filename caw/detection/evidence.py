"""Find first occurrences among millions of rows, by one sort of 64-bit words (hash, row); equals are compared."""

import numpy as np

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def first_occurrences(owner: np.ndarray, evidence: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return bool [N]: the first of those `among` [N] with the same owner [N] and evidence [N, E]."""
    rows = np.flatnonzero(among)
    first = np.zeros(len(among), dtype=bool)
    if not len(rows):
        return first
    columns = [owner[rows], *(evidence[rows, i] for i in range(evidence.shape[1]))]
    order, starts = _by_hash(columns) or _by_rows(columns)
    first[rows[order[starts]]] = True
    return first


def _by_hash(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (order, starts of runs of equal rows); None if two different rows share a hash."""
    bits = np.uint64(max(1, (len(columns[0]) - 1).bit_length()))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    state = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        state = (state ^ column.astype(np.uint64)) * MULTIPLIER
        state ^= state >> np.uint64(32)
    packed = ((state * MULTIPLIER) & ~mask) | np.arange(len(state), dtype=np.uint64)
    packed.sort()
    order = (packed & mask).astype(np.int64)
    hashes = packed >> bits
    same = hashes[1:] == hashes[:-1]
    for column in columns:
        if (column[order[1:][same]] != column[order[:-1][same]]).any():
            return None
    return order, np.concatenate([[True], ~same])


def _by_rows(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Do the same without hashes, by a stable sort of whole rows."""
    keys = np.column_stack(columns)
    # lexsort is stable: equal rows keep their order, so the first of each run is the first occurrence
    order = np.lexsort(keys.T)
    in_order = keys[order]
    starts = np.ones(len(order), dtype=bool)
    starts[1:] = (in_order[1:] != in_order[:-1]).any(axis=1)
    return order, starts
