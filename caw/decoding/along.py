"""Read a text that is there already: how likely each of its tokens is, and where a mark would change it.

One forward over the text gives the distributions of all its positions. Each position then gets a row with the state of
the text up to there, and all are chosen together, by the code that chooses while decoding.
"""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.decoding.choosing import Choosing, texts_of
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.plan import Plan
from caw.decoding.reading import CHUNK, chunk_logits, read
from caw.decoding.request import Request
from caw.decoding.row_settings import MAX_MARGIN
from caw.decoding.state import DecodeState
from caw.decoding.trace import TokenTrace
from caw.record import Record

OTHERS = 40  # likeliest tokens of a place that are looked at
MOST_LOST = 8.0  # nats that such a one may lose
POSITIONS = 64  # positions of a text at once; bounds the logits


@dataclass(frozen=True)
class MarkedChoice:
    """A token that the mark would choose in place of the text's own.

    place: in the text. level: number of the first strength that chooses it. lost: log-probability that the change costs
    there, in nats. trace: of the token, under that strength.
    """

    place: int
    token: int
    level: int
    lost: float
    trace: TokenTrace


@dataclass(frozen=True)
class TextReading:
    """since: the first place read. own: the unmarked model's log-probability of each token from there on, nats.
    choices: what the mark would change, in order. likely: other likely tokens at all places, whatever the key, if the
    policy marks any place; only where the reading is from records."""

    since: int
    own: list[float]
    choices: list[MarkedChoice]
    likely: list[MarkedChoice] = field(default_factory=list)


def read_along(
    model: Any, cache: SiblingCache, row: torch.Tensor, plan: Plan, request: Request, text: Sequence[int],
    ends: Sequence[int], *, since: int, strengths: Sequence[float], have: int,
) -> TextReading:  # fmt: skip
    """Read a text behind its prompt, in one row of the cache (int64 [1]) that holds the first `have` tokens of both.

    With a target, marking does not rest: that is for whoever takes the choices to decide. Where the policy looks ahead,
    tokens are left out behind which the model would have gone on otherwise: what follows the original is not known. So
    is the last one.

    Args:
        request: the prompt and the settings of the text. ends: token ids that end it; they are not changed.
        strengths: factors of the policy's strength to try, ascending.
    """
    ids, prompt = [*request.ids, *text], len(request.ids)
    known = ids[:-1]
    first = max(prompt - 1 + since - plan.history, 0)  # the first position whose logits are needed
    if have < first:
        read(model, cache, row, [known[:first]], 0, have, CHUNK)
    chooser = _Places(plan, request, text, ends, since)
    likelihoods: list[float] = []
    choices: list[MarkedChoice] = []
    window: torch.Tensor | None = None
    start = first  # of the window
    for begin in range(first, len(known), POSITIONS):
        part = known[begin : begin + POSITIONS]
        places_wanted = torch.arange(len(part), device=row.device)
        logits = chunk_logits(model, cache, row, torch.tensor([part], device=row.device), begin, places_wanted)[0]
        window = logits if window is None else torch.cat([window, logits])
        record = Record.from_logits(window, kernels=plan.kernels)
        last = start + window.shape[0] - 1
        places = range(since + len(likelihoods), last - prompt + 2)  # whose own distribution is in the window
        at = torch.tensor([prompt - 1 + place - start for place in places], device=row.device)
        tokens = torch.tensor([text[place] for place in places], device=row.device)
        if places:
            here = window[at].gather(1, tokens[:, None])[:, 0] - record.logsumexp[at]
            likelihoods += here.tolist()
        choices += chooser.choose(window, record, start, prompt, strengths)
        keep = plan.history + 1  # the last position is decided once the next one is known
        start, window = last + 1 - min(keep, window.shape[0]), window[-keep:]
    cache.end_prefill(torch.tensor([len(known)], device=row.device))
    return TextReading(since, likelihoods, choices)


def read_records(
    plan: Plan, request: Request, text: Sequence[int], ends: Sequence[int], record: Record, *, since: int,
    strengths: Sequence[float],
) -> TextReading:  # fmt: skip
    """As `read_along`, from the records of a text's distributions: no forward.

    record: of the positions `plan.history` before the place `since`, and on. Tokens beyond it are not proposed, and one
    of the text counts as likely as the last in it.
    """
    history, count = plan.history, len(text)
    chooser = _Places(plan, request, text, ends, since)
    choices: list[MarkedChoice] = []
    for first in range(since, count, POSITIONS):  # a window has also what stands before and behind its places
        last = min(first + POSITIONS, count - 1)
        rows = torch.arange(first, last + history + 1, device=plan.facts.device) - since
        part = record.take(rows)
        logits = torch.full((rows.numel(), plan.facts.vocab_size), -torch.inf, device=rows.device)
        known = part.ids >= 0
        logits[known.nonzero()[:, 0], part.ids[known]] = part.values[known]
        choices += chooser.choose(logits, part, first, history + 1, strengths)
    records = record.take(torch.arange(count - since, device=plan.facts.device) + history)
    named = records.ids == torch.tensor(list(text[since:]), device=records.ids.device)[:, None]
    likely = torch.where(named, records.values, -torch.inf).amax(dim=1)
    least = torch.where(records.values > -torch.inf, records.values, torch.inf).amin(dim=1)
    likely = torch.where(named.any(dim=1), likely, least) - records.logsumexp
    return TextReading(since, likely.tolist(), choices, _likely(chooser, records, since, len(strengths) - 1))


def _likely(chooser: "_Places", record: Record, since: int, level: int) -> list[MarkedChoice]:
    """The likeliest `OTHERS` tokens at each place that lose at most `MOST_LOST`, by the logits that the choice is made
    from. None where the policy's strength is 0 at every place: such a text is not to be marked.

    record: of the text's places from `since` on. level: of all of them.
    """
    text, ends, found = chooser.text, chooser.ends, list[MarkedChoice]()
    places = [place for place, token in enumerate(text) if token not in ends and place in chooser.given]
    if not any(strength for _, strength in chooser.given.values()):
        return []
    at = torch.tensor(places, device=record.ids.device) - since
    likely = (Record.joined(chooser.scored) if chooser.penalised else record).take(at)
    columns = (each[:, :OTHERS].tolist() for each in (likely.ids, likely.values))
    for place, ids, logits in zip(places, *columns, strict=True):
        old = text[place]
        top = next((logit for token, logit in zip(ids, logits, strict=True) if token == old), logits[0])
        for token, logit in zip(ids, logits, strict=True):
            if token not in {-1, old, *ends} and top - logit <= MOST_LOST:
                trace = TokenTrace(token, *chooser.given[place], (old, token), 1)
                found.append(MarkedChoice(place, token, level, max(top - logit, 0.0), trace))
    return found


class _Places:
    """Choose at a text's places, in order, given each one's (capacity, strength) and scores, if those are changed."""

    def __init__(self, plan: Plan, request: Request, text: Sequence[int], ends: Sequence[int], since: int) -> None:
        device = plan.facts.device
        self.plan, self.text, self.ends, self.device = plan, list(text), set(ends), device
        rows, room = POSITIONS + 2 + plan.history, len(text) + 1
        row = dataclasses.replace(request.row, strength_factor=plan.limits.strength_factor, margin=MAX_MARGIN)
        plain = Request(request.ids, request.budget, row, request.occurrence, mark=request.mark)  # from its first token
        self.texts = texts_of(plan, room, rows)
        self.choosing = Choosing(plan, self.texts)
        self.choosing.start([0], [plain], [ends])
        self.choosing.follow([0], [self.text[:since]])
        self.next = since
        self.given: dict[int, tuple[float, float]] = {}
        self.penalised, self.scored = request.row.penalised, list[Record]()

    def choose(
        self, window: torch.Tensor, record: Record, start: int, prompt: int, strengths: Sequence[float]
    ) -> list[MarkedChoice]:
        """Choose at every place whose distributions are known. window: logits [N, V] from position `start` on."""
        plan, history = self.plan, self.plan.history
        first, last = self.next, start + window.shape[0] - 1 - (prompt - 1)  # places with a distribution of their own
        looks = plan.looks_ahead
        until = min(last if looks else last + 1, len(self.text))
        if until <= first or not strengths:
            return []
        for number, place in enumerate(range(first, until)):
            self.texts.fork(0, 1 + number)
            self.choosing.follow([0], [[self.text[place]]])
        self.next = until
        at = torch.arange(first, until, device=self.device) + prompt - 1 - start
        empty = Record.empty(at.numel(), self.device)
        earlier = [at - back for back in range(1, history + 1)]
        before = [record.take(each.clamp_min(0)).where(each < 0, empty) for each in earlier]
        following = record.take((at + 1).clamp_max(window.shape[0] - 1))
        choosing = copy.copy(self.choosing)
        choosing.texts = texts = self.texts.take(torch.arange(1, 1 + at.numel(), device=self.device))
        behind = first + prompt - 1 - start
        state = DecodeState.of(window[behind : behind + at.numel()], record.take(at), before)
        scores = window[behind : behind + at.numel()]
        if self.penalised:
            scores = choosing.warped(state)
            self.scored.append(choosing.record(scores))
        changes: dict[int, MarkedChoice] = {}
        for level, strength in enumerate(strengths):
            texts.row_factors.fill_(strength)
            choosing.steer()
            ladder = choosing.ladder(state)
            if looks:
                capacity, sigma, choice = choosing.evaluate_and_select(state, ladder, following)
            else:
                capacity, sigma, choice = choosing.choose(state, ladder, traced=True)
            columns = (choice, ladder.counts, capacity, sigma, ladder.candidates)
            rows = zip(range(first, until), *(column.tolist() for column in columns), strict=True)
            for place, index, count, importance, strong, candidates in rows:
                self.given[place] = importance, strong
                token, text = candidates[index], self.text[place]
                stray = (looks or self.penalised) and candidates[0] != text
                if index == 0 or token == text or text in self.ends or stray or place in changes:
                    continue
                here = place - first
                lost = float(scores[here, text] - scores[here, token])
                trace = TokenTrace(token, importance, strong, tuple(candidates[:count]), index)
                changes[place] = MarkedChoice(place, token, level, lost, trace)
        return [changes[place] for place in sorted(changes)]
