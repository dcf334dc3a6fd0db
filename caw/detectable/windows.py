"""A guarded text that is shown while it is made: window by window, each unmarked first, then changed, then sent.

The next window goes on behind the marked text, so no tail is copied across them. Each aims at the level for the text so
far: what one lacks, a later one may make up. Windows that aim at less leave more to later ones, in which the sub-key no
longer gains from having been chosen: of one text of 200 tokens 9 changes after 41 rollouts, in place of 5 after 8. What
a text must keep is compared window by window, with what the model would have written there.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from caw.decoding.forks import Fork
from caw.decoding.trace import SequenceTrace
from caw.detectable.search import Asks, Ended, GuardSearch
from caw.guard import Guard
from caw.keeps import Content, Results

LONGER = 1.5  # times its size that a window may have, to end with a sentence
ENDS = (".", "!", "?", ":", "\n", "。", "！", "？")
MORE = "window"  # why a text ends that goes on in the next window
PARTS = 4  # windows that share the rollouts of a text


@dataclass(frozen=True)
class Window(Fork):
    """A fork that has `size` new tokens, and more until a sentence ends. text_of: decodes tokens.

    The first token behind the sentence is its own: an end token makes it the text's last window.
    """

    size: int = 0
    text_of: Callable[[list[int]], str] = field(default=lambda tokens: "", repr=False, compare=False)

    def over(self, tokens: Sequence[int]) -> bool:
        """Tell whether the window ends with these tokens."""
        new = len(tokens) - len(self.begun)
        if new <= self.size:
            return False
        return new > LONGER * self.size or self.text_of([tokens[-2]]).rstrip(" ").endswith(ENDS)


def by_window(guard: Guard) -> bool:
    """Tell whether what a guard keeps can be kept window by window: JSON, code and functions read whole texts."""
    return isinstance(guard.reader, Content | Results)


class WindowSearch(GuardSearch):
    """As `GuardSearch`, window by window.

    Args:
        send: gets the tokens of the text so far, all of which may be shown.
    """

    def __init__(self, *given: Any, send: Callable[[Sequence[int]], None]) -> None:
        super().__init__(*given)
        self.send, self.most = send, self.guard.rollouts

    def run(self) -> Asks[Ended]:
        ends: list[Ended] = []
        while not ends or ends[-1].sequence.finish_reason == MORE:
            asked = self.asked
            window = Window(
                asked.ids, asked.budget, asked.row, asked.occurrence, asked.begun, self.stem, saves=True,
                size=self.guard.window, text_of=self.stops.text,
            )  # fmt: skip
            sequence = yield from self._answer(self._ask(window))
            if sequence.finish_reason == "stop" and not self.stops.reached(sequence.tokens):
                sequence.finish_reason = MORE if len(sequence.tokens) < asked.budget else "length"
            allowed = -(-(len(ends) + 1) * self.most // PARTS)
            self.guard = dataclasses.replace(self.guard, rollouts=allowed)
            ended = yield from self.settle(sequence)
            ends.append(ended)
            tokens = ended.sequence.tokens
            if ended.sequence.finish_reason == MORE and len(tokens) == asked.budget:
                ended.sequence.finish_reason = "length"
            self.send(tokens)
            self.subkey = ended.report.subkey
            self.asked = dataclasses.replace(asked, begun=tuple(tokens))
            self.stem = self.stem.taken_over()
        return _joined(ends)


def _joined(ends: Sequence[Ended]) -> Ended:
    """The end of the whole text from those of its windows."""
    last, trace = ends[-1], SequenceTrace()
    for ended in ends:
        for token in ended.sequence.trace:
            trace.append(token)
    counts = [ended.sequence.trace.drafts for ended in ends]
    if last.sequence.trace.drafts is not None:
        sums = {name: sum(getattr(each, name) for each in counts) for name in ("passes", "rows", "drafted", "accepted")}
        trace.drafts = dataclasses.replace(last.sequence.trace.drafts, **sums)
    last.sequence.trace = trace
    kept = {ended.report.kept for ended in ends}
    report = dataclasses.replace(
        last.report, changes=sum(ended.report.changes for ended in ends),
        error=next((ended.report.error for ended in ends[::-1] if ended.report.error), ""),
        kept=False if False in kept else True if True in kept else None, windows=len(ends),
    )  # fmt: skip
    return dataclasses.replace(last, report=report, strength=max(ended.strength for ended in ends))
