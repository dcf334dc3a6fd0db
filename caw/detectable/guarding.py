"""Guarded texts: each is made unmarked, and its search (`search.py`) changes it until it is detected.

Where a text is shown while it is made, it does so window by window (`windows.py`). The searches of all texts share the
decoder: what one asks for, rollouts and readings, joins the batch ahead of the texts that wait, and each is sent back
as soon as it is there.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caw.decoding.decoder import Decoder
from caw.decoding.forks import ForkDecoder
from caw.decoding.plan import Plan
from caw.decoding.prompt_cache import PromptCache
from caw.decoding.request import ActiveSequence, Request
from caw.decoding.stopping import StopStrings
from caw.detectable.attempts import Add, Attempts, Finished
from caw.detectable.receipts import Receipt, write_receipt
from caw.detectable.search import Ended, GuardSearch, TextRules
from caw.detectable.selection import Candidate
from caw.detectable.splicing import Rollout
from caw.detectable.trial import Trial
from caw.detectable.windows import Window, WindowSearch, by_window
from caw.guard import Guard
from caw.policies import Policy
from caw.settings import Settings

ROWS = 16  # rollouts of a text that share a forward, where there is only one text
FEW = 4  # rollouts of a text at once, where others share the batch that this knows nothing of


@dataclass
class _TextSearch:
    """A text in progress. running: its search. asked: sequences that it asked for so far. sent: tokens, of a stream."""

    place: int
    search: GuardSearch
    sent: int
    running: Any = None
    asked: int = 1


class GuardedTexts(Attempts):
    """Make every text unmarked, then change it until it is detected, within what the guard allows.

    Args:
        guard: what a text must keep. strengths: factors of the policy's strength that its watermark can have.
        trial: the test. settings, policy: of the call. prompts: cache of prompts. rules: of what the tokens may be.
        streams: whether the texts are shown while they are made. subkey: what marked their beginnings, None = nothing.
    """

    def __init__(
        self, requests: Sequence[Request], guard: Guard, strengths: Sequence[float], trial: Trial, stops: StopStrings,
        settings: Settings, policy: Policy, prompts: PromptCache | None, rules: TextRules | None = None, *,
        streams: bool = False, subkey: int | None = None,
    ) -> None:  # fmt: skip
        self.guard, self.strengths, self.trial, self.stops = guard, tuple(strengths), trial, stops
        self.settings, self.policy, self.prompts = settings, policy, prompts
        self.texts: list[_TextSearch] = []
        self.send: Callable[[Sequence[int]], None] | None = None
        self.rows, self.open = 0, len(requests)  # rows of the decoder, 0 = not known; texts that are not finished
        first: list[Request] = []
        self.owners: list[tuple[_TextSearch, int]] = []  # of each request, in the order in which the decoder gets them
        for place, request in enumerate(requests):
            given = request, guard, self.strengths, trial, stops, settings, self.share, rules
            if streams and by_window(guard):
                search: GuardSearch = WindowSearch(*given, send=functools.partial(self._send, place))
            else:
                search = GuardSearch(*given)
            search.subkey = subkey
            text = _TextSearch(place, search, len(request.begun), search.run())
            [whole] = next(text.running)
            first.append(whole)
            self.texts.append(text)
            self.owners.append((text, 0))
        self.first = first

    def sends(self, send: Callable[[Sequence[int]], None]) -> bool:
        self.send = send
        return True

    def _send(self, place: int, tokens: Sequence[int]) -> None:
        """Send what a text has more than was sent."""
        text = self.texts[place]
        new, text.sent = tokens[text.sent :], len(tokens)
        if new and self.send is not None:
            self.send(new)

    @property
    def possible(self) -> Sequence[Request]:
        return [
            dataclasses.replace(request, row=dataclasses.replace(request.row, strength_factor=strength))
            for request in self.first
            for strength in (0.0, *self.strengths)
        ]

    @property
    def together(self) -> int:
        return ROWS * len(self.first)

    def share(self) -> int:
        """How many rollouts a text may ask for at once: more when fewer texts share the rows. No text depends on it."""
        return -(-self.rows // max(1, self.open)) if self.rows else FEW

    def decoder(self, model: Any, plan: Plan, report: Callable[[str], None] | None) -> Decoder:
        self.rows = plan.batch
        return ForkDecoder(model, plan, report)

    def ended(self, sequence: ActiveSequence) -> bool:
        request = sequence.request
        return isinstance(request, Rollout | Window) and request.over(sequence.tokens)

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        text, number = self.owners[sequence.index]
        if text.search.stem.closed:  # a rollout that nobody needs any more
            return None
        if sequence.error and not isinstance(sequence.request, Rollout):
            return self._close(text, sequence, None)
        try:
            asked = text.running.send((number, sequence))
        except StopIteration as done:
            return self._finish(text, done.value)
        numbered = list(enumerate(asked, text.asked))
        text.asked += len(asked)
        for number, request in reversed(numbered):  # each goes before all others
            self.owners.append((text, number))
            add(request, ahead=True)
        return None

    def _finish(self, text: _TextSearch, ended: Ended) -> Finished:
        sequence, detected = ended.sequence, ended.verdict.found
        chosen = Candidate(ended.text, ended.strength, ended.verdict, sequence.request, sequence)
        receipt = write_receipt(chosen, 1, self.trial, self.policy, ended.report)
        if not detected and self.settings.on_undetected == "drop":
            sequence.withhold()
        self._send(text.place, sequence.tokens)
        return self._close(text, sequence, receipt)

    def _close(self, text: _TextSearch, sequence: ActiveSequence, receipt: Receipt | None) -> Finished:
        text.search.stem.close()
        self.open -= 1
        return text.place, sequence, receipt


class GuardedFirst(Attempts):
    """Guard one text; if it is not detected then, make it again with a mark, until it is.

    So no text leaves unmarked because its guard found no change. What is made again keeps nothing, as its receipt says.

    Args:
        guarded: of one text. marked: creates its other attempts, once they are needed.
    """

    def __init__(self, guarded: Attempts, marked: Callable[[], Attempts]) -> None:
        self.guarded, self._marked = guarded, marked
        self.marked: Attempts | None = None
        self.policy, self.prompts, self.first = guarded.policy, guarded.prompts, guarded.first
        self.owners: list[tuple[Attempts, int]] = [(guarded, place) for place in range(len(guarded.owners))]

    def ended(self, sequence: ActiveSequence) -> bool:
        return self.guarded.ended(sequence)

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        attempts, sequence.index = self.owners[sequence.index]

        def again(request: Request, *, ahead: bool = False) -> int:
            self.owners.append((attempts, len(attempts.owners) - 1))
            return add(request, ahead=ahead)

        done = attempts.on_finished(sequence, again)
        if done is None:
            return None
        place, sequence, receipt = done
        if sequence.error or receipt is None:
            return done
        if attempts is self.marked:
            return place, sequence, dataclasses.replace(receipt, attempts=receipt.attempts + 1)
        if receipt.detected:
            return done
        self.marked = self._marked()
        for place, request in enumerate(self.marked.first):
            self.owners.append((self.marked, place))
            add(request, ahead=True)
        return None
