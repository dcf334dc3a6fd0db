"""How much damage a changed token does, measured without an annotator: change it, let the model go on, look at the end.

Capacity says how important a token is; damage says what emitting one particular other token costs. For a place in the
model's own greedy text, a candidate takes the token's place, the model continues greedily, and two things are kept:
whether the final answer stays the same, and how much less likely the rest of the original text has become.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caw.entrance import generate
from caw.fitting.labelers.counterfactual import ANSWER_MARK
from caw.fitting.replacing import BATCH_TOKENS, replaced_logits
from caw.models.ends import end_token_ids
from caw.models.shared_prefix import SharedPrefix
from caw.models.teacher import check_lengths, read_and_keep, token_log_probs

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Damage:
    """One changed token of one text.

    place: index in the new tokens. original, candidate: token ids. gap: log p(original) - log p(candidate) there, nats.
    fall: nats that the tokens behind the place lose in sum, given the candidate; negative: they became likelier.
    answer_kept: whether the roll-out ends with the original's final answer; None if the original has none.
    rolled_out: token ids behind the candidate as the model goes on.
    """

    place: int
    original: int
    candidate: int
    gap: float
    fall: float
    answer_kept: bool | None
    rolled_out: tuple[int, ...]


@dataclass(frozen=True)
class DamageSettings:
    """What is measured of a text.

    count, seed: how many places are drawn, where none are given. alternatives: the likeliest other tokens of a place.
    max_new_tokens: of the original; a roll-out may be as long as the original could have been. stop: as in `generate`.
    batch_size: roll-outs decoded at once. batch_tokens: tokens of a scoring forward.
    """

    count: int = 5
    seed: int = 0
    alternatives: int = 1
    max_new_tokens: int = 200
    stop: str | None = None
    batch_size: int = 8
    batch_tokens: int = BATCH_TOKENS

    @property
    def decoding(self) -> dict[str, Any]:
        """Options of `generate` that original and roll-outs share."""
        return {"return_trace": False, "progress": False, "stop": self.stop}


Change = tuple[int, int, float]  # place, candidate, gap


def final_answer(text: str) -> str | None:
    """What stands behind the last "####", or else the last number; without commas and a trailing full stop."""
    if ANSWER_MARK in text:
        last = text.rsplit(ANSWER_MARK, 1)[1].strip().split("\n")[0]
    else:
        numbers = NUMBER.findall(text)
        last = numbers[-1] if numbers else ""
    return last.replace(",", "").strip().rstrip(".") or None


def choose_places(length: int, count: int, seed: int) -> list[int]:
    """At most `count` different places of a text of `length` tokens, ascending; the last token is none of them."""
    if length < 2:
        return []
    return sorted(int(p) for p in np.random.default_rng(seed).permutation(length - 1)[:count])


@torch.inference_mode()
def measure_damage(
    model: Any,
    tokenizer: Any,
    prompt: Sequence[int],
    places: Sequence[int] | None = None,
    settings: DamageSettings | None = None,
) -> list[Damage]:
    """Damage of the likeliest other tokens at places of the model's greedy continuation of a prompt.

    prompt: token ids. places: indices into the new tokens; None = drawn as the settings say.

    Deterministic, ordered by place, then by the candidate's rank. What the roll-outs share goes through the model once.
    Raises ValueError for a place outside the new tokens or a prompt that nothing follows.
    """
    settings = settings or DamageSettings()
    original = generate(model, tokenizer, [list(prompt)], max_new_tokens=settings.max_new_tokens, **settings.decoding)
    new = original.sequences[0]
    if not new:
        raise ValueError("expected a prompt that the model continues, it wrote nothing; give another")
    places = choose_places(len(new), settings.count, settings.seed) if places is None else list(places)
    for place in places:
        if not 0 <= place < len(new):
            raise ValueError(f"places must be in [0, {len(new)}), the new tokens, got {place}; leave it out")
    if not places:
        return []
    ids = [*prompt, *new]
    check_lengths(model, [ids])
    logits, read = read_and_keep(model, ids)
    changes = _changes(logits, ids, len(prompt), places, settings.alternatives)
    falls = _falls(model, ids, len(prompt), changes, logits, read, settings.batch_tokens)
    starts = [[*prompt, *new[:place], candidate] for place, candidate, _ in changes]
    ends = _roll_out(model, tokenizer, changes, starts, settings)
    answer = final_answer(original.texts[0])
    found = []
    for (place, candidate, gap), fall, rest in zip(changes, falls, ends, strict=True):
        text = tokenizer.decode([*new[:place], candidate, *rest], skip_special_tokens=True)
        kept = None if answer is None else final_answer(text) == answer
        found.append(Damage(place, new[place], candidate, gap, fall, kept, tuple(rest)))
    return found


def _changes(
    logits: torch.Tensor, ids: Sequence[int], first: int, places: Sequence[int], alternatives: int
) -> list[Change]:
    """The likeliest other tokens at each place, by the logits [T, V] of the original."""
    changes = []
    for place in places:
        row, own = logits[first + place - 1].float(), ids[first + place]
        others = [int(t) for t in row.topk(alternatives + 1).indices if int(t) != own][:alternatives]
        changes += [(place, other, float(row[own] - row[other])) for other in others]
    return changes


def _falls(
    model: Any,
    ids: Sequence[int],
    first: int,
    changes: Sequence[Change],
    logits: torch.Tensor,
    read: SharedPrefix,
    batch_tokens: int,
) -> list[float]:
    """What the tokens behind each change lose, in nats."""
    behind = torch.tensor(ids[1:], device=logits.device)
    plain = token_log_probs(logits[:-1], behind)  # entry j: of token j + 1
    # in the order of the places, whatever order they were given in
    order = sorted(range(len(changes)), key=lambda i: changes[i][0])
    rows = [(first + changes[i][0], changes[i][1]) for i in order]
    falls = [0.0] * len(changes)
    for at, after in replaced_logits(model, ids, rows, read, batch_tokens=batch_tokens):
        place = rows[at][0]
        falls[order[at]] = float((plain[place:] - token_log_probs(after, behind[place:])).sum())
    return falls


def _roll_out(
    model: Any,
    tokenizer: Any,
    changes: Sequence[Change],
    starts: Sequence[list[int]],
    settings: DamageSettings,
) -> list[list[int]]:
    """Greedy continuations of the starts, each within what the original's budget leaves; none behind an end token."""
    stops = end_token_ids(model, tokenizer)
    left = [settings.max_new_tokens - place - 1 for place, _, _ in changes]
    going = [i for i, (_, candidate, _) in enumerate(changes) if left[i] > 0 and candidate not in stops]
    rests: list[list[int]] = [[] for _ in starts]
    if going:
        # one call: what the starts share is prefilled once; a longer budget for some is cut afterwards (greedy)
        out = generate(
            model, tokenizer, [starts[i] for i in going], max_new_tokens=max(left[i] for i in going),
            batch_size=settings.batch_size, **settings.decoding,
        )  # fmt: skip
        for i, sequence in zip(going, out.sequences, strict=True):
            rests[i] = sequence[: left[i]]
    return rests
