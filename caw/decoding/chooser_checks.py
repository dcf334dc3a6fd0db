"""Check what an engine hands to a `caw.Chooser`; when an error is raised no text has changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.checks import require_ints
from caw.decoding.plan import Plan
from caw.decoding.row_settings import RowSettings
from caw.decoding.texts import Texts
from caw.io.show import shown
from caw.policies import CapacityPolicy, Policy
from caw.policies.base import refusal
from caw.record import Record
from caw.watermarks import Watermark


@dataclass
class ChooserText:
    """One text, as the host sees it.

    ids: those that the engine has emitted. chosen: the token that has not come back yet, None = there is none.
    open: whether ids are accepted that were not chosen here.
    late: the last of the ids, which have not joined `Texts` yet. before: records of the logits given with them.
    drawn: the token chosen last. surprisal: nats of the free beginning that it takes, None = it is in none. spent:
    those of all ids, see `Chooser.spent`; free: how many tokens these are.
    """

    settings: RowSettings
    ids: list[int] = field(default_factory=list)
    chosen: int | None = None
    open: bool = True
    late: list[int] = field(default_factory=list)
    before: list[Record] | None = None
    drawn: int | None = None
    surprisal: float | None = None
    spent: float = 0.0
    free: int = 0


def check_window(watermark: Watermark | None, policy: Policy) -> None:
    """Raise ValueError for an evaluator that reads what no engine has: the position behind the original token."""
    if watermark is not None and isinstance(policy, CapacityPolicy) and policy.looks_ahead:
        window = policy.network.spec.previous, policy.network.spec.next
        raise ValueError(
            f"the policy's evaluator must not read the next position, got one of window {window}; use one trained "
            "with --next 0, another policy, or caw.generate"
        )


def check_ids(row: int, ids: Sequence[int], vocab_size: int) -> None:
    """Raise ValueError for ids that the model does not have."""
    wrong = [token for token in ids if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(
            f"the ids of row {row} must be in [0, {vocab_size}), got {wrong[0]}; give real ids, not "
            "placeholders of tokens that come later"
        )


def new_ids(row: int, text: ChooserText, ids: Sequence[int], vocab_size: int) -> list[int]:
    """Return those of a text's ids that are new; TypeError or ValueError for others than `Chooser.resume` takes."""
    name = f"the ids of row {row}"
    if type(ids) is not list or [type(end) for end in (*ids[:1], *ids[-1:])] != [int, int]:
        ids = require_ints(name, ids)  # else only the new ones: known ones are compared, which is ten times faster
    known = len(text.ids)
    if len(ids) < known or ids[:known] != text.ids:
        raise ValueError(
            f"the ids of row {row} must go on from the {known} known ones, got {len(ids)} that do not; start the "
            "row again if the engine took tokens back"
        )
    new = require_ints(name, ids[known:])
    check_ids(row, new, vocab_size)
    if not text.open and new not in ([], [text.chosen]):
        if text.chosen is None:
            raise ValueError(
                f"row {row} must have no id after the {known} known ones, as none was chosen, got {shown(new)}; "
                "call choose first, or start the row again"
            )
        raise ValueError(
            f"the next id of row {row} must be the one that was chosen, {text.chosen}, got {shown(new)}; keep the "
            "engine's own filters from changing it, or start the row again"
        )
    return new


def checked_logits(logits: Any, rows: Sequence[int], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Return logits float32 [R, V] of R different rows."""
    if len(set(rows)) < len(rows) or not rows:
        raise ValueError(
            f"rows must be at least one, each once, got {shown(list(rows))}; name each text's row, which `start` "
            "has begun"
        )
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        raise TypeError(f"logits must be a float tensor, got {shown(logits)}; pass what the model returns")
    if logits.shape != (len(rows), vocab_size) or logits.device.type != device.type:
        raise ValueError(
            f"logits must be {[len(rows), vocab_size]} on {device}, got {list(logits.shape)} on "
            f"{logits.device}; pass one row a text"
        )
    return logits.float()


def check_lengths(texts: Mapping[int, ChooserText], rows: Sequence[int], lengths: Sequence[int] | None) -> None:
    """Raise ValueError unless all ids that the engine has emitted have come back."""
    lengths = None if lengths is None else require_ints("lengths", lengths)
    if lengths is not None and len(lengths) != len(rows):
        raise ValueError(f"lengths must be one a row, {len(rows)}, got {len(lengths)}; leave them out or give all")
    for number, row in enumerate(rows):
        text = texts[row]
        if lengths is None and text.chosen is not None:
            raise ValueError(
                f"the token chosen for row {row} must come back before the next is chosen, got none; call resume, "
                "or pass lengths if the engine threw it away"
            )
        if lengths is not None and lengths[number] != len(text.ids):
            raise ValueError(
                f"row {row} must have all ids that were emitted, {lengths[number]}, got {len(text.ids)}; call "
                "resume before choose"
            )


def check_before(before: Any, history: int, vocab_size: int, device: torch.device) -> None:
    """Raise TypeError or ValueError unless these are logits [n, V] of earlier positions, n at most N- = `history`."""
    if not isinstance(before, torch.Tensor) or not before.is_floating_point():
        raise TypeError(f"before must be a float tensor or None, got {shown(before)}; pass what the model returned")
    if not history:
        raise ValueError(
            f"before must be None for a policy that reads no earlier position, got {list(before.shape)}; leave it "
            "out where `history` is 0"
        )
    fits = before.dim() == 2 and 1 <= before.shape[0] <= history and before.shape[1] == vocab_size
    if not fits or before.device.type != device.type:
        raise ValueError(
            f"before must be [n, {vocab_size}] on {device}, n at most {history}, got "
            f"{list(before.shape)} on {before.device}; pass one row per earlier position, the newest first"
        )


def check_finite(record: Record, rows: Sequence[int]) -> None:
    """Raise ValueError for rows whose logits are NaN or infinite."""
    finite = record.logsumexp.isfinite()
    if not bool(finite.all()):
        broken = [row for row, sound in zip(rows, finite.tolist(), strict=True) if not sound]
        raise ValueError(f"logits must be finite, got NaN or infinity in rows {shown(broken)}; check the model")


def check_possible(plan: Plan, texts: Texts, logits: torch.Tensor, rows: Sequence[int]) -> None:
    """Raise ValueError where `min_new_tokens` forbids every token that the logits leave."""
    early = texts.counts < texts.minima
    if not (plan.limits.minimum and plan.limits.ends and bool(early.any())):
        return
    possible = texts.without_ends(logits, early).amax(dim=1) > -torch.inf
    if not bool(possible.all()):
        stuck = [row for row, open_ in zip(rows, possible.tolist(), strict=True) if not open_]
        raise ValueError(
            f"logits must leave a token other than the ends before min_new_tokens, got none in rows "
            f"{shown(stuck)}; lower min_new_tokens, or let the engine's mask allow more"
        )


def check_strengths(plan: Plan, texts: Texts, rows: Sequence[int]) -> None:
    """Raise ValueError for a strength that the policy must not give."""
    for row, strength in zip(rows, texts.refused.tolist() if plan.unbounded else (), strict=plan.unbounded):
        if strength != 0:  # NaN too
            raise ValueError(refusal(plan.policy, strength, f" in row {row}"))
