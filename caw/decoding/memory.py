"""Memory: how much is available, how much decoding needs, and how many texts fit.

Every large tensor of decoding has a shape known beforehand: keys and values, candidates, logits, the activations of
the largest prefill, the part of packed weights that it makes dense, and a GPU's table of rotations. A batch that does
not fit becomes a smaller one, whose rows are refilled more often.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from caw.decoding.forward.prefill_attention import EAGER_BLOCK
from caw.decoding.forward.rotary_table import table_bytes
from caw.decoding.reading import CHUNK, MAX_ROWS, MAX_TOKENS
from caw.io.warn import warn_caller
from caw.models.facts import ModelFacts
from caw.models.tensor_parallel import agree_on_smallest
from caw.record import RECORD_SIZE

DEFAULT_SHARE = 0.9  # of what is free
UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
CONTAINER = Path("/sys/fs/cgroup")  # where Linux tells a container's own limits (cgroup v2)


def memory_budget(max_memory: int | float | str | None, device: torch.device) -> int | None:
    """Return the bytes that decoding may use; None = unknown, so unlimited.

    Args:
        max_memory: bytes, a share of free memory as a float in (0, 1], or text such as "8GiB"; None = 0.9.

    Raises TypeError or ValueError for anything else.
    """
    if isinstance(max_memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?)?b?\s*", max_memory.lower())
        if not match:
            raise ValueError(f"max_memory must be a size such as '8GiB' or '500MB', got {max_memory!r}; add a unit")
        if match[2] is None and "." in match[1]:
            return memory_budget(float(match[1]), device)  # a share, as on a command line
        return int(float(match[1]) * UNITS[match[2] or ""])
    if isinstance(max_memory, bool) or not isinstance(max_memory, (int, float, type(None))):
        raise TypeError(
            f"max_memory must be bytes, a share of free memory or a text such as '8GiB', got "
            f"{type(max_memory).__name__}; leave it out"
        )
    if isinstance(max_memory, int):
        if max_memory <= 0:
            raise ValueError(f"max_memory must be at least 1 byte, got {max_memory}; leave it out")
        return max_memory
    share = DEFAULT_SHARE if max_memory is None else max_memory
    if not 0 < share <= 1:
        raise ValueError(f"max_memory as a share of free memory must be in (0, 1], got {max_memory}; leave it out")
    free = free_memory(device)
    return None if free is None else int(share * free)


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device, torch's own cache included; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        available = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    free = [int(available[1]) * 1024] if available else []
    return min([*free, *_left_in_container(CONTAINER)], default=None)


def _left_in_container(folder: Path) -> list[int]:
    """Return the bytes below a container's limit, with its page cache counted as free; empty without a limit."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        droppable = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return []
    if not limit.isdecimal():  # "max"
        return []
    return [max(0, int(limit) - int(used) + (int(droppable[1]) if droppable else 0))]


def readable(size: int) -> str:
    """Format bytes in the largest unit of which there is at least one."""
    for unit in ("GiB", "MiB", "KiB"):
        scale = UNITS[unit[:2].lower()]
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


FLOAT, INT = 4, 8


@dataclass(frozen=True)
class Needs:
    """Bytes per sequence, and a fixed part."""

    per_sequence: int
    fixed: int

    def of(self, batch: int) -> int:
        """Return the bytes of this many sequences at once."""
        return self.fixed + batch * self.per_sequence


def decoding_needs(
    facts: ModelFacts, capacity: int, slots: int, history: int, limit: int | None = None, compiled: bool = False
) -> Needs:
    """Compute the memory of decoding with caches of `capacity` tokens, and `slots` candidates.

    limit: length from which the rotary embedding changes, so that prompts are read whole (`Plan.limit`).
    compiled: whether prefill uses `prefix_attention`, which does not materialize scores.
    """
    config, vocab_size, size = facts.config, facts.vocab_size, facts.dtype.itemsize
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    keys_and_values = 2 * config.num_hidden_layers * kv_heads * dim * size
    record = RECORD_SIZE * (2 * FLOAT + INT) + FLOAT
    # the model's logits, their float32 copy, and what the sampler makes of the current ones
    logits = vocab_size * (slots * (size + FLOAT) + 5 * FLOAT)
    per_sequence = keys_and_values * (capacity + slots) + logits + (history + 2) * record + capacity * INT
    tokens = min(MAX_TOKENS, MAX_ROWS * min(capacity, CHUNK)) if limit is None else capacity
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    activations = tokens * size * (6 * config.hidden_size + 3 * inner)
    places = max(tokens, MAX_TOKENS // CHUNK * capacity if capacity > CHUNK else 0)  # rows times positions of a prefill
    if by_scores(config, capacity) and not compiled:
        # keys and values in float32 for each query head; scores, three more made of them
        activations += places * heads * FLOAT * (2 * dim + 4 * EAGER_BLOCK)
    # each row gives logits at the last positions of all rows; with a copy that a cap on logits makes
    logit_rows = MAX_ROWS * min(MAX_ROWS * (history + 1), capacity)
    first_logits = logit_rows * vocab_size * (2 * size + FLOAT)
    fixed = activations + first_logits + facts.dense_bytes + table_bytes(facts, capacity)
    return Needs(per_sequence, fixed)


def by_scores(config: Any, capacity: int) -> bool:
    """Tell whether some layer's prefill materializes attention scores (`prefill_attention`, "eager")."""
    window = getattr(config, "sliding_window", None)
    capped = bool(getattr(config, "attn_logit_softcapping", None)) or config.model_type == "gpt_oss"
    return capped or (isinstance(window, int) and window < capacity)


def rows_that_fit(
    facts: ModelFacts, max_memory: int | float | str | None, batch: int, needs: Needs
) -> tuple[int, int | None]:
    """Return (number of sequences that fit, bytes left or None if unknown)."""
    unplanned = facts.spread and max_memory is None  # nothing says how the layers share the devices
    budget = None if unplanned else memory_budget(max_memory, facts.device)
    batch = fitting_batch(batch, needs, budget)
    batch = batch if facts.mesh is None else agree_on_smallest(batch, facts.mesh, facts.device)
    return batch, None if budget is None else budget - needs.of(batch)


def fitting_batch(batch: int, needs: Needs, budget: int | None) -> int:
    """Return the largest batch up to `batch` within the budget (bytes). ValueError if not even one sequence fits."""
    if budget is None:
        return batch
    fits = (budget - needs.fixed) // needs.per_sequence
    if fits < 1:
        least = needs.of(1)
        raise ValueError(
            f"max_memory must be at least {readable(least)} for the longest prompt and its new tokens, got "
            f"{readable(budget)}; shorten prompts, lower max_new_tokens or raise max_memory"
        )
    if fits < batch:
        warn_caller(
            f"{batch} sequences at once need {readable(needs.of(batch))} and "
            f"{readable(budget)} may be used: {fits} are decoded at once"
        )
    return min(batch, fits)


def one_at_a_time(batch: int, limit: int, capacity: int, keep_rows: bool) -> int:
    """Return a batch of 1, warning if more were asked for; ValueError where all rows are the caller's.

    Beyond `rope_limit` tokens the rotation of every position changes ("longrope": Phi-3's 128k versions from 4097 on).
    In transformers the longest text of a batch decides for all of them; here each text is decoded by itself. Once a
    text crosses the limit, the keys and values computed before it are wrong: transformers' Phi-3 then computes them
    again, and so does this library for all such models.
    """
    if batch == 1:
        return 1
    what = f"texts of up to {capacity} tokens are longer than {limit}, where the model's rotary embedding changes"
    if keep_rows:
        raise ValueError(
            f"{what}, so each has to be decoded by itself, got {batch} rows; give one row a call, use caw.generate, or "
            "shorten prompts or max_new_tokens"
        )
    warn_caller(
        f"{what}: they are decoded one at a time, not {batch}; shorten prompts or max_new_tokens to have them together"
    )
    return 1
