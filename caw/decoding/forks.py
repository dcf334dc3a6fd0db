"""Forks: texts that go on from a place inside a text that was decoded before, as if they had never been interrupted.

A `Stem` keeps the keys and values of a text, and the records of its distributions. A `Fork` goes on from any beginning
of it: what is equal is copied into the fork's row. A fork that changes one token begins with that token, as the only
candidate of its first step; for others the last tokens are read again in one forward for all forks, as a step reads
drafted tokens. On a CPU with the compiled extension the fork's tokens are those of the uninterrupted text, bit by bit.
A `ReadRequest` decodes nothing: `along.py` says what a mark would change in a text, from the records if they are kept,
else from one forward.

Where the old text goes on behind a fork, its tokens are the fork's drafts.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.decoding.along import TextReading, read_along, read_records
from caw.decoding.decoder import Decoder, StopCheck
from caw.decoding.drafts.proposer import Follower, Guess, Proposer
from caw.decoding.drafts.verify import DraftStep
from caw.decoding.forward.branching import forward_drafted
from caw.decoding.forward.draft_tree import Chain, DraftTree
from caw.decoding.plan import Plan
from caw.decoding.plan_defaults import NEVER
from caw.decoding.reading import CHUNK, read
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.trace import StepResult
from caw.decoding.waiting import Waiting
from caw.models.shared_prefix import common_length
from caw.record import Record

# tokens of the old text that match the fork's last ones, the most first -> trust, in terms of `ngrams.EXPECTED`
TRUST = {8: 7, 5: 6, 4: 5, 3: 4, 2: 3, 1: 2, 0: 1}
NEAR = 24  # places by which the old text may go on earlier or later


@dataclass(eq=False)
class Stem:
    """Keys and values of the tokens `ids`, prompt included: `shared`, then `rest`. Empty until a text is saved.

    records: of the text that was decoded with it, those of the positions `history` before its first new token, the one
    at `since`, and on. text: its tokens. Both are empty where steps are captured. closed: nobody needs forks of it any
    more.
    """

    ids: list[int] = field(default_factory=list)
    shared: list[torch.Tensor] | None = None
    rest: list[torch.Tensor] = field(default_factory=list)
    start: int = 0
    records: list[Record] = field(default_factory=list)
    since: int = 0
    text: list[int] = field(default_factory=list)
    closed: bool = False

    def taken_over(self) -> "Stem":
        """Return a stem with its keys and values, for the text that goes on behind it, and close it."""
        heir = Stem(self.ids, self.shared, self.rest, self.start)
        self.close()
        return heir

    def close(self) -> None:
        """Forget the text, whose tensors are freed; forks of it that still wait end without a token."""
        self.ids, self.shared, self.rest, self.start = [], None, [], 0
        self.records, self.text, self.closed = [], [], True


@dataclass(frozen=True)
class Fork(Request):
    """A request for a text that begins as an earlier one.

    stem: keys and values of that one, written when a text with `saves` ends. old: the earlier text's tokens, drafts.
    own: gets the log-probability, nats, of the likeliest token at each place behind the next one, if it is a list and
    steps are not captured.
    """

    stem: Stem = field(default_factory=Stem, repr=False, compare=False)
    old: tuple[int, ...] = ()
    saves: bool = False
    own: list[float] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class ReadRequest(Fork):
    """A request to read a text, `begun` and then `last`, and to say what the mark would change in it.

    since: the first place that is asked about. strengths: factors of the policy's strength to try.
    """

    last: int = 0
    since: int = 0
    strengths: tuple[float, ...] = ()

    @property
    def text(self) -> list[int]:
        """Its tokens without the prompt."""
        return [*self.begun, self.last]


@dataclass(eq=False)
class ReadSequence(ActiveSequence):
    """The answer to a `ReadRequest`."""

    reading: TextReading | None = None


class ForkDecoder(Decoder):
    """A decoder that also takes forks and readings. Rows are never dropped: forks come in waves."""

    def __init__(
        self, model: Any, plan: Plan, report: Callable[[str], None] | None = None, waiting: Waiting | None = None
    ) -> None:
        super().__init__(model, plan, report, waiting)
        # a server's own masks are by row of its batch, and texts that are read have none
        self.reading = plan.within(plan.limits)
        self.read: list[ActiveSequence] = []  # sequences that ended without a step
        self.held: list[list[int]] = [[] for _ in range(plan.batch)]  # ids whose keys and values are in each row
        self.portioned = False  # whose row is copied has been read whole
        self.ragged = not plan.captured and plan.why_no_drafts in ("", NEVER) and self.cache.packs
        if isinstance(self.step, DraftStep):
            proposer = self.step.proposer
            self.step.proposer = ForkProposer(proposer.drafter, proposer.width, proposer.vocab_size)

    def _fill(self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]]) -> None:
        """Fill empty rows: with prompts, with forks, and for a moment with texts that are only read."""
        kinds: dict[str, list[tuple[int, tuple[int, Any]]]] = {}
        for number, pair in zip(numbers, pairs, strict=True):
            kinds.setdefault(self._kind(pair[1]), []).append((number, pair))
        for _, (index, request) in kinds.get("late", ()):
            self.read.append(ActiveSequence(index, request, (), finish_reason="closed"))
        if whole := kinds.get("prompt"):
            for number, _ in whole:
                self.held[number] = []
            super()._fill(*map(list, zip(*whole, strict=True)))
            for number, (_, request) in whole:
                self.held[number] = list(request.known)
        for number, (index, request) in kinds.get("reading", ()):
            self._read(number, index, request)
        for kind, begin in (("fork", self._fork), ("change", self._change)):
            if kind in kinds:
                begin(*map(list, zip(*kinds[kind], strict=True)))

    def _kind(self, request: Request) -> str:
        """Return how a request gets its row. A change is a fork that is its stem's text up to its last token."""
        if not isinstance(request, Fork):
            return "prompt"
        if request.stem.closed:
            return "late"
        if isinstance(request, ReadRequest):
            return "reading"
        begun, stem = list(request.begun), request.stem
        if not begun or not stem.ids:
            return "prompt"
        known = list(request.known[:-1])
        place = len(begun) - 1 - stem.since
        recorded = not request.saves and place >= 0 and len(stem.records) > place + self.plan.history
        same = stem.text[: len(begun) - 1] == begun[:-1] and stem.ids[: len(known)] == known
        return "change" if recorded and same else "fork"

    def _change(self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]]) -> None:
        """Begin forks whose last token is another one: no forward, it is the only candidate of the next step."""
        state, back = self.state, self.plan.history
        begun: list[tuple[int, Request]] = []
        windows: list[Sequence[Record]] = []
        for number, (index, request) in zip(numbers, pairs, strict=True):
            assert isinstance(request, Fork)
            before, place = list(request.known[:-1]), len(request.begun) - 1 - request.stem.since
            self._copy(number, request.stem, before, len(before))
            self.held[number] = before
            windows.append(request.stem.records[place : place + back + 1][::-1])
            begun.append((index, dataclasses.replace(request, begun=tuple(request.begun[:-1]))))
        records = [Record.joined(each) for each in zip(*windows, strict=True)]
        logits = torch.zeros(len(numbers), state.logits.shape[1], device=state.logits.device)  # nothing is chosen
        self._begin(numbers, begun, logits, records)
        forced = torch.full_like(state.pending, -1) if state.forced is None else state.forced
        forced[list(numbers)] = torch.tensor([request.begun[-1] for _, request in pairs], device=forced.device)
        state.forced = forced

    def _begin(
        self,
        numbers: Sequence[int],
        pairs: Sequence[tuple[int, Request]],
        logits: torch.Tensor,
        records: Sequence[Record],
    ) -> None:
        super()._begin(numbers, pairs, logits, records)
        for place, (_, request) in enumerate(pairs):
            if isinstance(request, Fork) and request.saves and not self.plan.captured:
                at = torch.tensor([place], device=logits.device)
                request.stem.records = [record.take(at) for record in records[::-1]]
                request.stem.since = len(request.begun)

    def _collect(
        self, result: StepResult, rows: Sequence[ActiveSequence | None], on_token: StopCheck | None
    ) -> Iterator[ActiveSequence]:
        emitted, current = result.emitted.tolist(), self.state.current
        likeliest = [] if self.plan.captured else (current.values.amax(dim=1) - current.logsumexp).tolist()
        for number, sequence in enumerate(rows):
            if sequence is None or sequence.finish_reason or not emitted[number]:
                continue
            request = sequence.request
            if likeliest and isinstance(request, Fork) and request.own is not None:
                request.own.append(likeliest[number])
            if isinstance(request, Fork) and request.saves and (records := request.stem.records):
                records.append(self.state.current.take(torch.tensor([number], device=result.tokens.device)))
        return super()._collect(result, rows, on_token)

    def _fork(self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]]) -> None:
        history, tails = self.plan.history, {}
        for number, (_, request) in zip(numbers, pairs, strict=True):
            assert isinstance(request, Fork)
            known = list(request.known)
            same = min(common_length([request.stem.ids, known]), max(len(known) - 1 - history, 0))
            self._copy(number, request.stem, known, same)
            tails[number] = known[same:]
        logits = self._read_tails(tails) if self.ragged else self._read_each(numbers, pairs, tails)
        records = [Record.from_logits(logits[:, back], kernels=self.cache.kernels) for back in range(history + 1)]
        lengths = torch.tensor([len(request.known) for _, request in pairs], device=logits.device)
        for back, record in enumerate(records):
            records[back] = record.where(lengths - 1 - back < 0, Record.empty(len(pairs), logits.device))
        self._begin(numbers, pairs, logits[:, 0], records)
        for number, (_, request) in zip(numbers, pairs, strict=True):
            self.held[number] = list(request.known)

    def _read_tails(self, tails: dict[int, list[int]]) -> torch.Tensor:
        """Read what follows the committed tokens of each row, all in one forward; logits [R, history + 1, V], newest
        first."""
        cache, history = self.cache, self.plan.history
        roots = [tails.get(number, [])[:1] for number in range(cache.batch)]
        chains = [Chain(0, tails.get(number, [])[1:]) for number in range(cache.batch)]
        tree = DraftTree.of(roots, chains, cache.lengths.tolist())
        logits = forward_drafted(self.model, cache, tree).float()
        rows = []
        for number, tail in tails.items():
            places = [int(tree.first[number]), *(tree.drafts[number] + place for place in range(len(tail) - 1))]
            newest = places[::-1]
            rows.append([newest[min(back, len(newest) - 1)] for back in range(history + 1)])
            cache.lengths[number] += len(tail)
        return logits[torch.tensor(rows)]

    def _read_each(
        self, numbers: Sequence[int], pairs: Sequence[tuple[int, Request]], tails: dict[int, list[int]]
    ) -> torch.Tensor:
        """As `_read_tails`, one forward for each row."""
        device, history = self.cache.lengths.device, self.plan.history
        parts = []
        for number, (_, request) in zip(numbers, pairs, strict=True):
            known = list(request.known)
            place = torch.tensor([number], device=device)
            parts.append(read(self.model, self.cache, place, [known], history, len(known) - len(tails[number]), CHUNK))
        return torch.cat(parts)

    def _read(self, number: int, index: int, request: ReadRequest) -> None:
        """Read a text in an empty row, and leave the row; one whose records were kept without a forward."""
        stem, known, facts = request.stem, list(request.known), self.plan.facts
        ends = request.row.ends_of(facts.ends, facts.vocab_size)
        asked: dict[str, Any] = {"since": request.since, "strengths": request.strengths}
        if stem.records and stem.text == request.text and stem.since <= request.since:
            record = Record.joined(stem.records[request.since - stem.since :])
            reading = read_records(self.reading, request, request.text, ends, record, **asked)
        else:
            same = min(common_length([stem.ids, known]), len(known) - 1)
            self._copy(number, stem, known, same)
            row = torch.tensor([number], device=self.cache.lengths.device)
            reading = read_along(
                self.model, self.cache, row, self.reading, request, request.text, ends, have=same, **asked
            )
            self.held[number] = known
            self.cache.lengths[number] = 0
        self.read.append(ReadSequence(index, request, ends, finish_reason="read", reading=reading))

    def _copy(self, number: int, stem: Stem, known: list[int], same: int) -> None:
        """Put the first `same` tokens of a stem into a row, without those that it holds already."""
        start = min(common_length([self.held[number], known]), same)
        self.held[number] = []
        if start < min(stem.start, same) and stem.shared is not None:
            self.cache.copy_in(number, 0, stem.shared)
            start = stem.start
        if start < same:
            [rest] = stem.rest
            start = max(start, stem.start)
            self.cache.copy_in(number, start, [rest[..., start - stem.start : same - stem.start, :]])
        self.cache.lengths[number] = same

    def _save(self, number: int, stem: Stem, ids: list[int]) -> None:
        """Keep the keys and values of a row, whose tokens are `ids`."""
        shared = self.cache.shared
        stem.start = self.waiting.shared if shared is not None else 0
        stem.shared = shared if stem.start else None
        stem.rest, stem.ids = self.cache.copy_out(number, stem.start, len(ids)), ids

    def _free(self, number: int, sequence: ActiveSequence) -> None:
        request = sequence.request
        ids = [*request.ids, *sequence.tokens][: int(self.cache.lengths[number])]
        self.held[number] = [] if sequence.error else ids
        if isinstance(request, Fork) and request.saves and not sequence.error:
            self._save(number, request.stem, ids)
            request.stem.text = list(sequence.tokens)
        super()._free(number, sequence)

    def _without_steps(self) -> Iterator[ActiveSequence]:
        done, self.read = self.read, []
        yield from done

    def _shrink(self) -> None:
        return


class ForkProposer(Proposer):
    """Drafts of forks come from the text that they left."""

    def _follow(self, request: Request) -> Follower:
        if isinstance(request, Fork) and request.old:
            return OldText(request.old)
        return super()._follow(request)

    def finished(self, sequence: ActiveSequence) -> None:
        if isinstance(sequence.request, Fork) and sequence.request.old:
            self._followed.pop(sequence, None)  # nothing that it says is new
        else:
            super().finished(sequence)


class OldText:
    """Follow a fork, and guess that the old text goes on: behind the longest match near by, else at the same place."""

    def __init__(self, old: Sequence[int]) -> None:
        self.old, self.tokens = list(old), list[int]()

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def after(self, token: int, most: int) -> Guess:
        here = len(self.tokens) + 1
        best, place = 0, here
        for end in sorted(range(max(1, here - NEAR), min(len(self.old), here + NEAR) + 1), key=lambda x: abs(x - here)):
            matched = self._match(end, token)
            if matched > best:
                best, place = matched, end
        return Guess(self.old[place : place + most], TRUST[max(size for size in TRUST if size <= best)])

    def _match(self, end: int, token: int) -> int:
        """Count the tokens before a place of the old text that equal the fork's last ones and `token`; at most 8."""
        if self.old[end - 1] != token:
            return 0
        here, length = len(self.tokens), 1
        while length < min(8, end, here + 1) and self.old[end - 1 - length] == self.tokens[here - length]:
            length += 1
        return length
