"""Steps that read a few numbers back from the device and skip work that would change nothing."""

from collections.abc import Iterable, Sequence

import torch

from caw.decoding.forward.branching import forward_all, forward_packed
from caw.decoding.forward.fused_layers import on_gpu
from caw.decoding.forward.sibling_cache import SiblingCache
from caw.decoding.request import ActiveSequence
from caw.decoding.state import DecodeState
from caw.decoding.step import Forwarded, Step
from caw.decoding.trace import StepResult
from caw.ladder import Carried, Ladder, likeliest_first

Rows = Sequence[ActiveSequence | None]


class EagerStep(Step):
    """Forward only candidates that some strength can reach; make a second record only where the choice differs."""

    state: DecodeState
    cache: SiblingCache

    def reachable(self, ladder: Ladder, counts: torch.Tensor) -> Carried:
        watermark, carried = self.choosing.watermark, Carried(ladder.candidates, counts)
        if watermark is not None and watermark.repeats_candidates:
            carried = likeliest_first(ladder, counts, self.plan.max_strength)
        most = int(torch.where(self.choosing.texts.active, carried.counts, 1).max())
        return carried._replace(tokens=carried.tokens[:, :most])

    def logits(
        self, state: DecodeState, cache: SiblingCache, candidates: torch.Tensor, counts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # kernels of a GPU read the lengths themselves, and are compiled for some sizes of the cache: one will do
        whole = self.plan.kernels.native and on_gpu(cache.lengths)
        limit = cache.capacity if whole else int(cache.lengths.max())
        if cache.packs and self.settings.branching == "tree":
            # leave out finished sequences, and candidates that no strength can reach
            counts = torch.where(self.choosing.texts.active, 1 if counts is None else counts, 0)
            if 0 < int(counts.sum()) < candidates.numel():
                return forward_packed(self.model, cache, candidates, counts, limit)
        return forward_all(self.model, cache, candidates, self.settings.branching, limit)

    def commit(
        self, state: DecodeState, cache: SiblingCache, forwarded: Forwarded, chosen: torch.Tensor, moved: torch.Tensor
    ) -> None:
        logits, first, following = forwarded
        assert first is not None
        changed = (chosen > 0).nonzero()[:, 0]
        if changed.numel():
            following.write(changed, self.record(logits, (first + chosen)[changed]))
        self.join(cache, chosen, moved)
        places, rows = moved.nonzero()[:, 0], first + chosen
        if places.numel() < moved.numel():
            state.advance_some(places, logits, rows[places], following)
        else:
            state.advance_all(logits, rows, following)

    def join(self, cache: SiblingCache, chosen: torch.Tensor, moved: torch.Tensor) -> None:
        """Commit candidate chosen[b] (int64 [B]) to the cache where moved (bool [B])."""
        cache.commit(chosen, moved)

    # How a decoder calls it ----------------------------------------------------------------------------------------

    def over(self, state: DecodeState, cache: SiblingCache) -> "EagerStep":
        """Return itself, to be called for these rows."""
        self.state, self.cache = state, cache
        return self

    def advance(self, rows: Rows) -> Iterable[tuple[StepResult, Rows]]:
        """Run, and return the results of newly finished steps with the texts in the rows when each started."""
        return [(self.decode(self.state, self.cache), list(rows))]

    def may_shrink(self, remaining: int) -> bool:
        """Tell whether a smaller batch pays when `remaining` steps are left."""
        return True

    def keep(self) -> None:
        """Leave what was prepared to later calls: nothing here."""

    def close(self) -> None:
        """Let the rows go."""
        del self.state, self.cache
