"""Key segments by counterfactuals: how much worse the model itself continues once a token is replaced.

For each reference token, its likeliest alternatives under the model take its place in turn; the rest of the reference
stays as it is. The falls of the model's log-probability of what follows, and of the final answer, are the token's
scores: a filler word can be replaced without making the sums behind it less likely, a number cannot.

That holds for models that follow what they read. The demo model (135 million parameters) does not: on GSM8K answers its
falls rank key tokens of a strong model's labels below the others (AUROC .43 for the rest on 8 documents, .43 for the
final answer on 5), because a changed function word upsets it more than a changed number. Measure a model with
`caw label --compare` before its labels are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from caw.fitting.labelers.base import LabelError, Spans, join_spans
from caw.fitting.labels import TEMPLATE, EncodedText, LabelledText, digest, encode
from caw.models.facts import position_limit

BATCH_TOKENS = 512
ANSWER_MARK = "####"


@dataclass(frozen=True)
class Falls:
    """Per reference token (n of them), in nats, means over the alternatives; positive: the replacement hurts.

    rest: float64 [n], log-probability that the up to `horizon` following reference tokens lose in sum; 0 for the last.
    answer: float64 [n], what the final answer's tokens lose; inf for those tokens themselves and any behind them;
        None where the labeler does not look at it.
    """

    rest: np.ndarray
    answer: np.ndarray | None
    coded: EncodedText


class CounterfactualLabeler:
    """Calls a token key if replacing it costs the rest at least `rest_nats` or the final answer `answer_nats`.

    Args:
        model, tokenizer: as `caw.load_model` gives them; a model with a key/value cache.
        alternatives: how many of the likeliest other tokens are tried in each place.
        horizon: how many following tokens `rest` looks at.
        answer_nats: None leaves the final answer out: a forward of horizon tokens for each alternative instead of one
            to the end of the text, on a text of 160 tokens a tenth of the work.
        template, prefix: the prompt; see `labels.encode`.
        batch_tokens: tokens of a forward, over all its rows (at least one row).
    """

    parallel = False

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        alternatives: int = 2,
        horizon: int = 16,
        rest_nats: float = 4.0,
        answer_nats: float | None = 0.5,
        template: str = TEMPLATE,
        prefix: str = "",
        batch_tokens: int = BATCH_TOKENS,
    ) -> None:
        if min(alternatives, horizon, batch_tokens) < 1:
            raise ValueError(
                f"alternatives, horizon and batch_tokens must be at least 1, got {alternatives}, {horizon} and "
                f"{batch_tokens}; use the defaults"
            )
        self.model, self.tokenizer = model, tokenizer
        self.alternatives, self.horizon, self.batch_tokens = alternatives, horizon, batch_tokens
        self.rest_nats, self.answer_nats, self.template, self.prefix = rest_nats, answer_nats, template, prefix

    def describe(self) -> dict[str, Any]:
        names = ("alternatives", "horizon", "rest_nats", "answer_nats", "template")
        return {
            "labeler": "counterfactual",
            "model": str(self.model.config._name_or_path),
            **{name: getattr(self, name) for name in names},
            "prefix_sha256": digest(self.prefix) if self.prefix else None,
        }

    def label(self, document: LabelledText) -> Spans:
        falls = self.falls(document)
        key = falls.rest >= self.rest_nats
        if falls.answer is not None:
            key |= falls.answer >= self.answer_nats
        spans = [(max(start, 0), end) for (start, end), marked in zip(falls.coded.offsets, key, strict=True) if marked]
        return join_spans(document.solution, spans)

    @torch.inference_mode()
    def falls(self, document: LabelledText) -> Falls:
        """Both falls of every reference token. Deterministic.

        Raises LabelError if the text is longer than the model's positions or the logits are not finite.
        """
        coded = encode(self.tokenizer, document, self.template, self.prefix)
        limit = position_limit(self.model)
        if limit and len(coded.ids) > limit:
            raise LabelError(f"the model has {limit} positions, the text {len(coded.ids)} tokens; leave it out")
        ids = torch.tensor([coded.ids], device=self.model.device)
        cache = DynamicCache()
        logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        if not bool(logits.isfinite().all()):
            raise LabelError("expected finite logits, the model gives others; use --dtype float32")
        plain = token_log_probs(logits[None, :-1], ids[:, 1:])[0]  # entry j: of token j + 1
        others = self._alternatives(logits, coded)
        answer = _answer_start(coded)
        n, m = len(coded.ids) - coded.first, self.alternatives
        rest, final = np.zeros(n), np.full(n, np.inf)
        for begin, end, stop in self._groups(coded):
            replaced = self._replaced(
                ids[:, :stop], cache, others[begin:end], begin
            )  # of tokens begin + 1.. in each row
            lost = plain[begin : stop - 1] - replaced
            for i in range(begin, end):
                mine = lost[(i - begin) * m : (i - begin + 1) * m, i - begin :]
                rest[i - coded.first] = float(mine[:, : self.horizon].sum(1).mean())
                if i < answer and self.answer_nats is not None:
                    final[i - coded.first] = float(mine[:, answer - i - 1 :].sum(1).mean())
        return Falls(rest, None if self.answer_nats is None else final, coded)

    def _alternatives(self, logits: torch.Tensor, coded: EncodedText) -> torch.Tensor:
        """The likeliest tokens int64 [T, m] in each place but the one that stands there; place 0 is of no use."""
        here = torch.tensor(coded.ids, device=logits.device)
        before = logits.roll(1, dims=0).clone()
        before[torch.arange(len(here)), here] = -torch.inf
        if before.shape[1] <= self.alternatives:
            raise LabelError(f"expected a vocabulary of more than {self.alternatives} tokens; lower --alternatives")
        return before.topk(self.alternatives, dim=1).indices

    def _groups(self, coded: EncodedText) -> list[tuple[int, int, int]]:
        """Runs [begin, end) of reference places whose rows, each over places [begin, stop), fit a forward."""
        groups, begin, total = [], coded.first, len(coded.ids)
        behind = total if self.answer_nats is not None else self.horizon
        while begin < total:
            end = begin + 1
            while (
                end < total
                and (end + 1 - begin) * self.alternatives * (min(total, end + 1 + behind) - begin) <= self.batch_tokens
            ):
                end += 1
            groups.append((begin, end, min(total, end + behind)))
            begin = end
        return groups

    def _replaced(self, ids: torch.Tensor, cache: DynamicCache, others: torch.Tensor, begin: int) -> torch.Tensor:
        """Log-probabilities float64 [G * m, T - begin - 1] of the tokens behind `begin` in rows where one of the G
        places from `begin` on holds one of its others [G, m]; a row's own place and those before it are of no use."""
        m = self.alternatives
        rows = ids[:, begin:].repeat(others.numel(), 1)
        places = torch.arange(len(others), device=ids.device).repeat_interleave(m)
        rows[torch.arange(len(rows), device=ids.device), places] = others.reshape(-1)
        shared = DynamicCache()
        for index, layer in enumerate(cache.layers):
            size = (len(rows), -1, -1, -1)
            shared.update(layer.keys[:, :, :begin].expand(size), layer.values[:, :, :begin].expand(size), index)
        logits = self.model(input_ids=rows, past_key_values=shared, use_cache=True).logits
        return token_log_probs(logits[:, :-1], ids[:, begin + 1 :].expand(len(rows), -1))


def token_log_probs(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """log softmax at ids [R, T] of logits [R, T, V], float64 [R, T]; one row at a time bounds the memory."""
    rows = [
        row.float().gather(1, of[:, None])[:, 0].double() - row.float().logsumexp(1).double()
        for row, of in zip(logits, ids, strict=True)
    ]
    return torch.stack(rows)


def _answer_start(coded: EncodedText) -> int:
    """Index of the first token of the final answer: behind the last "####", else the last line."""
    solution = coded.text.solution
    marked = solution.rfind(ANSWER_MARK)
    start = marked + len(ANSWER_MARK) if marked >= 0 else solution.rstrip().rfind("\n") + 1
    while start < len(solution) and solution[start].isspace():
        start += 1
    return coded.first + next((i for i, (_, end) in enumerate(coded.offsets) if end > start), len(coded.offsets) - 1)
