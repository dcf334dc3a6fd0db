"""How many sequences are decoded at once: as many as asked for, as many as fit, or one where texts change each other.

A batch that does not fit becomes a smaller one, whose rows are refilled more often.
"""

from __future__ import annotations

from caw.decoding.free_memory import memory_budget, readable
from caw.decoding.memory_needs import Needs
from caw.io.warn import warn_caller
from caw.models.facts import ModelFacts
from caw.models.tensor_parallel import agree_on_smallest


def rows_that_fit(
    facts: ModelFacts, max_memory: int | float | str | None, batch: int, needs: Needs
) -> tuple[int, int | None]:
    """(how many sequences fit, bytes left beside them or None where that is unknown)."""
    unplanned = facts.spread and max_memory is None  # nothing says how the layers share the devices
    budget = None if unplanned else memory_budget(max_memory, facts.device)
    batch = fitting_batch(batch, needs, budget)
    batch = batch if facts.mesh is None else agree_on_smallest(batch, facts.mesh, facts.device)
    return batch, None if budget is None else budget - needs.of(batch)


def fitting_batch(batch: int, needs: Needs, budget: int | None) -> int:
    """The greatest batch up to `batch` whose needs are within the budget (bytes).

    Raises ValueError if not even one sequence fits.
    """
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
    """One sequence at a time, with a warning where more were asked for; ValueError where all rows are the caller's.

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
