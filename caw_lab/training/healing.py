"""Changes that a mark would make, and whether the text heals with the same content: training data without labels.

At a place of a greedy text some key leaves the likeliest token out, and the best token on its list takes the place. The
unmarked model goes on behind it. The change **heals** if this comes back to the text that it left within a horizon, and
numbers, names and code on the way are the same (`caw.keeps.parts`). One short rollout a change; those of all
texts share a batch, as in a guard's search (`caw.detectable.search`), whose forks they are.

Texts that loop come back wherever they are left: places behind the beginning of a loop are left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from caw.checks import require_int, require_number
from caw.decoding.forks import Fork, ForkDecoder, Stem
from caw.decoding.plan import make_plan
from caw.decoding.request import Request, Workload, requests_for
from caw.decoding.row_settings import RowSettings
from caw.decoding.sequence import ActiveSequence
from caw.decoding.stopping import StopStrings
from caw.decoding.trace import StepResult
from caw.defaults import BETA, DELTA, GAMMA
from caw.detectable.splicing import hopeless, rejoined
from caw.keeps.parts import names_in, same_content
from caw.models.facts import ModelFacts
from caw.policies import FixedStrength
from caw.record import Record
from caw.settings import Settings

SAME = ("number", "name", "code")  # of all labels, whenever made; a guard also keeps negations and stated answers
LOOP = 8  # a run of as many tokens that comes twice
TAIL = 12  # places at the end of a text, behind which too little is left to come back to


@dataclass(frozen=True)
class HealSettings:
    """Which changes to roll out, and how.

    gamma: share of the vocabulary on a key's list. most_lost: nats that a change may lose, the strongest bias of the
    policy. places: the most places of a text. horizon, rejoin: tokens within which a rollout must come back, and how
    many must be the same. max_new_tokens: of a text. stop: strings that end a text. batch: rollouts at once. seed: of
    lists and places. ahead: distributions behind a change that are kept.

    Raises TypeError or ValueError naming the argument.
    """

    gamma: float = GAMMA
    most_lost: float = DELTA * BETA
    places: int = 24
    horizon: int = 32
    rejoin: int = 8
    max_new_tokens: int = 160
    stop: tuple[str, ...] = ()
    batch: int = 32
    seed: int = 0
    ahead: int = 1

    def __post_init__(self) -> None:
        require_number("gamma", self.gamma, 0, 1, closed=False)
        require_number("most_lost", self.most_lost, 0, 100, closed=True)
        for name in ("places", "horizon", "rejoin", "max_new_tokens", "batch", "ahead"):
            require_int(name, getattr(self, name), 1, 1 << 20)
        require_int("seed", self.seed, 0, 2**63 - 1)


@dataclass(frozen=True)
class Healed:
    """One change. place: in the text. token: what takes the place. rejoined: whether the model came back within the
    horizon. same: and with the same content. length: of the rollout, tokens. digit: whether either token has one."""

    place: int
    token: int
    rejoined: bool
    same: bool
    length: int
    digit: bool


@dataclass(frozen=True)
class HealedText:
    """number: of its prompt. prompt, tokens: ids. changes: by place. records: of the distributions of its tokens, one
    row each, and one row behind the last. after: of the distribution behind each change, one row each. ahead: of each
    change, that one and those behind the first tokens of its rollout, `HealSettings.ahead` rows or as many as there
    were."""

    number: int
    prompt: Sequence[int]
    tokens: list[int]
    changes: list[Healed]
    records: Record
    after: Record
    ahead: list[Record] = field(default_factory=list)


def measure_healing(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], settings: HealSettings
) -> Iterator[HealedText]:
    """Continue every prompt greedily, roll changes out, and yield each text when its changes are done.

    prompts: token ids, at least one prompt. Deterministic for the settings, up to the model's rounding. Texts without
    a change are yielded too, with none.
    """
    facts = ModelFacts.of(model, tokenizer)
    asked = Settings(
        max_new_tokens=settings.max_new_tokens, return_trace=False, speculate=None, batch_size=settings.batch
    )
    row = RowSettings.of(asked)
    requests = requests_for(prompts, [settings.max_new_tokens] * len(prompts), [row] * len(prompts))
    work = dataclasses.replace(Workload.of(requests, settings.batch, facts.ends), batch=settings.batch)
    plan = make_plan(facts, None, FixedStrength(1.0), asked, work)
    return _Healing(ForkDecoder(model, plan), tokenizer, settings).run(requests)


@dataclass(frozen=True)
class _Rollout(Fork):
    """A fork behind a change at `place` of the text `old`. after: the records behind the change, as they come."""

    place: int = 0
    owner: Any = field(default=None, repr=False, compare=False)
    after: list[Record] = field(default_factory=list, repr=False, compare=False)


@dataclass
class _Text:
    number: int
    base: Fork
    tokens: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    waiting: int = 0
    done: list[tuple[Healed, list[Record]]] = field(default_factory=list)


class _Healing:
    def __init__(self, decoder: ForkDecoder, tokenizer: Any, settings: HealSettings) -> None:
        self.decoder, self.settings = decoder, settings
        self.stops = StopStrings(tokenizer, list(settings.stop) or None)
        self.texts: list[_Text] = []
        decoder_collect = decoder._collect

        def collect(result: StepResult, rows: Any, on_token: Any) -> Iterator[ActiveSequence]:
            self._keep(result, rows)
            return decoder_collect(result, rows, on_token)

        decoder._collect = collect  # type: ignore[method-assign]

    def run(self, requests: Sequence[Request]) -> Iterator[HealedText]:
        bases = [Fork(each.ids, each.budget, each.row, each.occurrence, stem=Stem(), saves=True) for each in requests]
        self.texts = [_Text(number, base) for number, base in enumerate(bases)]
        for sequence in self.decoder.run(bases, self._ended):
            request = sequence.request
            if isinstance(request, _Rollout):
                text: _Text = request.owner
                if not sequence.error and request.after:
                    text.done.append((self._label(text, request, sequence), request.after))
                text.waiting -= 1
            else:
                text = self.texts[sequence.index]
                self._propose(text, sequence)
            if not text.waiting:
                yield self._finish(text)

    def _ended(self, sequence: ActiveSequence) -> bool:
        request, settings = sequence.request, self.settings
        if not isinstance(request, _Rollout):
            return self.stops.reached(sequence.tokens)
        if rejoined(request.old, sequence.tokens, request.place, settings.rejoin) is not None:
            return True
        return hopeless(request.old, sequence.tokens, request.place, settings.rejoin, settings.horizon)

    def _keep(self, result: StepResult, rows: Sequence[ActiveSequence | None]) -> None:
        """Keep the records behind changes that this step read."""
        emitted = result.emitted.tolist()
        for number, sequence in enumerate(rows):
            request = sequence.request if sequence is not None and emitted[number] else None
            if isinstance(request, _Rollout) and len(request.after) < self.settings.ahead:
                request.after.append(self.decoder.state.current.take(torch.tensor([number])))

    def _propose(self, text: _Text, sequence: ActiveSequence) -> None:
        """Ask for the rollouts of a text."""
        text.tokens = list(sequence.tokens)
        if sequence.error:
            return
        prompt = self.stops.text(list(text.base.ids))
        text.names = names_in(prompt) | names_in(self.stops.text(text.tokens))
        changes = self._changes(text)
        base = text.base
        for place, token in changes:
            begun = (*text.tokens[:place], token)
            rollout = _Rollout(
                base.ids, base.budget, base.row, base.occurrence, begun, base.stem, tuple(text.tokens), place=place,
                owner=text,
            )  # fmt: skip
            self.decoder.waiting.add(rollout, ahead=True)
        text.waiting = len(changes)

    def _changes(self, text: _Text) -> list[tuple[int, int]]:
        """(place, token) of the changes of one text."""
        settings, tokens = self.settings, text.tokens
        last = min(loop_begins(tokens), len(tokens)) - TAIL
        rng = np.random.default_rng([settings.seed, text.number, *tokens[:8]])
        found = []
        for place in range(1, last):
            record = text.base.stem.records[place]
            near = (record.values[0] >= record.values[0, 0] - settings.most_lost).tolist()
            listed = rng.random(len(near)) < settings.gamma
            chosen = next((rank for rank, green in enumerate(listed) if green and near[rank]), 0)
            token = int(record.ids[0, chosen])
            if chosen and int(record.ids[0, 0]) == tokens[place] and token not in self._ends:
                found.append((place, token))
        if len(found) > settings.places:
            kept = sorted(rng.choice(len(found), settings.places, replace=False).tolist())
            found = [found[number] for number in kept]
        return found

    @property
    def _ends(self) -> Sequence[int]:
        return self.decoder.plan.facts.ends

    def _label(self, text: _Text, request: _Rollout, sequence: ActiveSequence) -> Healed:
        old, new, place = text.tokens, sequence.tokens, request.place
        end = rejoined(old, new, place, self.settings.rejoin)
        said = self.stops.text([new[place]]) + self.stops.text([old[place]])
        same = end is not None and same_content(self.stops.text(old[:end]), self.stops.text(new), text.names, SAME)
        digit = any(char.isdigit() for char in said)
        return Healed(place, new[place], end is not None, same, len(new) - place, digit)

    def _finish(self, text: _Text) -> HealedText:
        stem = text.base.stem
        records = stem.records or [Record.empty(1, torch.device("cpu"))]
        done = sorted(text.done, key=lambda each: each[0].place)
        after = [found[0] for _, found in done] or [Record.empty(0, torch.device("cpu"))]
        found = HealedText(
            text.number, text.base.ids, text.tokens, [change for change, _ in done],
            Record.joined(records), Record.joined(after), [Record.joined(found) for _, found in done],
        )  # fmt: skip
        stem.close()
        return found


def loop_begins(tokens: Sequence[int], count: int = LOOP) -> int:
    """Return the place at which the first run of `count` tokens that comes again begins; the length if none does."""
    seen: dict[tuple[int, ...], int] = {}
    for place in range(len(tokens) - count + 1):
        run = tuple(tokens[place : place + count])
        if run in seen:
            return seen[run]
        seen[run] = place
    return len(tokens)
