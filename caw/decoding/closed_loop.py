"""The closed loop: a text is marked until its evidence so far reaches the target.

    steer  before a token: compare the text's z with the z that the target needs; once it is reached, strength is 0
    aim    on the ladder: keep the original token alone where no candidate could add evidence
    count  after a token: add its evidence as the detector would count it

None of this reads anything back from the device where the watermark's format is native.
"""

import torch

from caw import ops
from caw.decoding.evidence import Evidence
from caw.decoding.row_marks import in_row_order, rows_by_mark
from caw.decoding.texts import Texts
from caw.detection.family import lone_target
from caw.detection.weights import TokenWeights
from caw.ladder import Ladder
from caw.policies import Target
from caw.policies.target import read_target
from caw.watermarks import Watermark
from caw.watermarks.base import MISSING, TokenScores


class ClosedLoop:
    """Keep the evidence of a batch, and scale strengths by it. ValueError for a payload; raises as `Target.weights`."""

    def __init__(self, target: Target, watermark: Watermark, vocab_size: int, device: torch.device) -> None:
        if watermark.code is not None:
            raise ValueError(
                "a target needs a watermark without a payload, whose evidence is known only from the whole text; "
                "leave target or payload out"
            )
        self.watermark, self.margin, self.native = watermark, target.margin, watermark.native is not None
        self.quantile = lone_target(target, watermark).quantile
        self.levels = _levels(target, watermark, vocab_size, device)
        self.moments = (*watermark.null_moments, watermark.null_third)
        probe = torch.zeros(watermark.window + 1, dtype=torch.int64)
        self.columns = watermark.score_tokens(probe).evidence.shape[1]
        # generation leaves a repeated context unmarked as it is, and no candidate is worth less than another
        self.all_gain = self.native and watermark.deduplicates and self.levels is None

    def evidence(self, batch: int, tokens: int, device: torch.device) -> Evidence:
        """Make the evidence of B = batch rows without a text; tokens: maximum of one."""
        return Evidence.empty(batch, tokens, self.columns, device)

    def steer(self, texts: Texts) -> None:
        """Set the factors of the next token."""
        evidence = _evidence(texts)
        z, skewness = evidence.standing.unbind(dim=1)
        # Cornish and Fisher's first term: the tail of a skewed score, which a normal one has not
        needed = self.quantile + self.margin + texts.margins + (self.quantile**2 - 1) / 6 * skewness
        torch.mul(texts.row_factors, (z < needed).float(), out=evidence.factors)

    def aim(self, texts: Texts, ladder: Ladder) -> Ladder:
        """Drop further candidates where none of them would add evidence."""
        if self.all_gain or ladder.candidates.shape[1] < 2:
            return ladder
        further = ladder.candidates[:, 1:]
        # compiled races: what counts once is the context, the same for all
        probed = further[:, :1] if self.native else further
        gains = self._show(texts, probed)[2]
        if self.levels is not None:
            gains = gains & (self.levels[further] > 0)
        there = torch.arange(1, further.shape[1] + 1, device=further.device)[None] < ladder.counts[:, None]
        return ladder.only_original(~(gains & there).any(dim=1))

    def count(self, texts: Texts, tokens: torch.Tensor, emitted: torch.Tensor) -> None:
        """Count tokens int64 [B] that are about to join their texts, where emitted (bool [B])."""
        tally = _evidence(texts)
        values, evidence, new = (part[:, 0] for part in self._show(texts, tokens[:, None]))
        tally.add(evidence, emitted & new, None if self.levels is None else self.levels[tokens], values, self.moments)

    def _show(self, texts: Texts, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Score tokens int64 [B, n], each as the next one.

        Returns (values float64 [B, n], evidence int64 [B, n, E], whether it is evidence of the key, and new [B, n]).
        """
        tally, native = _evidence(texts), self.watermark.native
        if native is not None:
            padded = texts.padded_tokens[:, texts.window - self.watermark.window :]  # another family may read more
            values, evidence, known = ops.show_evidence(
                padded.contiguous(), texts.counts, tokens, tally.seen, tally.distinct, self.watermark.window,
                texts.keys, native.scheme, native.threshold,
            )  # fmt: skip
            return values, evidence, ~known
        values, evidence, eligible = self._score(self._contexts(texts), tokens, texts)
        return values, evidence, eligible & ~tally.knows(evidence)

    def _contexts(self, texts: Texts) -> torch.Tensor:
        """Contexts int64 [B, W] as a detector sees them: without the prompt."""
        contexts = texts.contexts()
        if not self.watermark.reads_prompt:
            return contexts
        place = texts.counts[:, None] + torch.arange(texts.window, device=contexts.device)[None]
        return torch.where(place < texts.window, MISSING, contexts)

    def _score(
        self, contexts: torch.Tensor, tokens: torch.Tensor, state: Texts
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Score tokens int64 [B, n] after contexts [B, W] as the detector does in mode "exact", for any watermark.

        Returns (values float64 [B, n], evidence int64 [B, n, E], whether they are evidence of the key at all [B, n]).
        """
        count = tokens.shape[1]
        texts = torch.cat([contexts[:, None].expand(-1, count, -1), tokens[:, :, None]], dim=2)
        marks = [mark or self.watermark for mark in state.marks]
        if len(set(marks)) == 1:
            return _newest(texts, marks[0].score_tokens(texts.flatten()))
        groups = rows_by_mark(marks, texts.device)
        parts = [_newest(texts[at], mark.score_tokens(texts[at].flatten())) for mark, at in groups]
        values, evidence, eligible = in_row_order(groups, parts)
        return values, evidence, eligible


def _newest(texts: torch.Tensor, scores: TokenScores) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scores of the last token of each of the texts [B, n, W + 1], scored as one stream."""
    batch, count, length = texts.shape
    eligible = scores.scored if scores.keyless is None else scores.scored & ~scores.keyless
    values, evidence, eligible = (part[length - 1 :: length] for part in (scores.values, scores.evidence, eligible))
    return values.view(batch, count), evidence.view(batch, count, -1), eligible.view(batch, count)


def close_loop(
    target: Target | float | None, watermark: Watermark | None, vocab_size: int, device: torch.device
) -> ClosedLoop | None:
    """Make the loop for a policy's target; None without a target or a watermark."""
    target = read_target(target)
    if target is None or watermark is None:
        return None
    return ClosedLoop(target, watermark, vocab_size, device)


def _evidence(texts: Texts) -> Evidence:
    assert texts.evidence is not None
    return texts.evidence


def _levels(target: Target, watermark: Watermark, vocab_size: int, device: torch.device) -> torch.Tensor | None:
    """Return the weight level of each token id, int64 [V]; None = all count alike."""
    if target.weights is None:
        return None
    table = target.weights if isinstance(target.weights, TokenWeights) else TokenWeights.load(target.weights)
    table.check_for(watermark)
    ids = torch.arange(vocab_size)
    return torch.from_numpy(table.of(ids.numpy())).to(device)
