"""Guard a text, and where the guard cannot make it detectable, mark it as any other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from caw.decoding.decoder import Decoder
from caw.decoding.plan import Plan
from caw.decoding.request import Request, Workload
from caw.decoding.sequence import ActiveSequence
from caw.detectable.attempts import Add, Attempts, DetectableTexts, Finished
from caw.detectable.guarding import GuardedTexts


class GuardedFirst(Attempts):
    """Guard one text; if it is not detected then, make it again with a mark, until it is.

    So no text leaves unmarked because its guard found no change. What is made again keeps nothing, as its receipt says.

    Args:
        guarded: of one text. marked: creates its other attempts, once they are needed.
    """

    def __init__(self, guarded: GuardedTexts, marked: Callable[[], DetectableTexts]) -> None:
        self.guarded, self._marked = guarded, marked
        self.marked: DetectableTexts | None = None
        self.policy, self.prompts, self.first = guarded.policy, guarded.prompts, guarded.first
        self.owners: list[tuple[Attempts, int]] = [(guarded, place) for place in range(len(guarded.owners))]

    def workload(self, most: int, model_ends: Sequence[int]) -> Workload:
        return self.guarded.workload(most, model_ends)

    def decoder(self, model: object, plan: Plan, report: Callable[[str], None] | None) -> Decoder:
        return self.guarded.decoder(model, plan, report)

    def ended(self, sequence: ActiveSequence) -> bool:
        return self.guarded.ended(sequence)

    def on_finished(self, sequence: ActiveSequence, add: Add) -> Finished | None:
        attempts, sequence.index = self.owners[sequence.index]

        def again(request: Request, *, ahead: bool = False) -> int:
            self.owners.append((attempts, len(attempts.owners) - 1))
            return add(request, ahead=ahead)

        done = attempts.on_finished(sequence, again)
        if done is None or done.sequence.error or done.receipt is None:
            return done
        if attempts is self.marked:
            return dataclasses.replace(
                done, receipt=dataclasses.replace(done.receipt, attempts=done.receipt.attempts + 1)
            )
        if done.receipt.detected:
            return done
        self.marked = self._marked()
        for place, request in enumerate(self.marked.first):
            self.owners.append((self.marked, place))
            add(request, ahead=True)
        return None
