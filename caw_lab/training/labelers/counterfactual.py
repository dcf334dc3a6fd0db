"""Key segments by counterfactuals: how much less likely the model's continuation becomes if a token is replaced.

Each reference token is replaced by its most likely alternatives under the model in turn; the rest of the reference is
unchanged. A token's scores are the drop in log-probability of what follows, and of the final answer: replacing a filler
word does not make the following sums less likely, replacing a number does.

This holds for models that follow what they read. The demo model (135 million parameters) does not: on GSM8K answers its
scores rank key tokens of a strong model's labels below the others (AUROC 0.43 for the rest on 8 documents, 0.43 for the
final answer on 5), because a changed function word upsets it more than a changed number. Check a model with `caw label
--compare` before using its labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from caw.models.teacher import check_lengths, read_and_keep, token_log_probs
from caw_lab.training.labelers.base import LabelError, Spans, join_spans
from caw_lab.training.labels import TEMPLATE, EncodedText, LabelledText, digest, encode
from caw_lab.training.replacing import BATCH_TOKENS, replaced_logits

ANSWER_MARK = "####"


@dataclass(frozen=True)
class Falls:
    """Drops in log-probability per reference token (n of them), in nats, means over the alternatives; positive: the
    replacement hurts.

    rest: float64 [n], what the next `horizon` reference tokens (or fewer) lose in all; 0 for the last.
    answer: float64 [n], what the final answer's tokens lose; inf for those tokens themselves and any behind them;
        None where the labeler does not look at it.
    """

    rest: np.ndarray
    answer: np.ndarray | None
    coded: EncodedText


class CounterfactualLabeler:
    """Labels a token key if replacing it costs the rest at least `rest_nats` or the final answer `answer_nats`.

    Args:
        model, tokenizer: as `caw.load_model` gives them; a model with a key/value cache.
        alternatives: how many of the likeliest other tokens are tried in each place.
        horizon: how many following tokens `rest` looks at.
        answer_nats: None leaves the final answer out: each alternative then takes a forward of horizon tokens instead
            of one to the end of the text, a tenth of the work on a text of 160 tokens.
        template, prefix: the prompt; see `labels.encode`.
        batch_tokens: tokens of a forward, over all its rows (at least one row).
        quantization: the `weights` that the model was loaded with, for `describe`.
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
        quantization: str | None = None,
    ) -> None:
        if min(alternatives, horizon, batch_tokens) < 1:
            raise ValueError(
                f"alternatives, horizon and batch_tokens must be at least 1, got {alternatives}, {horizon} and "
                f"{batch_tokens}; use the defaults"
            )
        self.model, self.tokenizer = model, tokenizer
        self.alternatives, self.horizon, self.batch_tokens = alternatives, horizon, batch_tokens
        self.rest_nats, self.answer_nats, self.template, self.prefix = rest_nats, answer_nats, template, prefix
        self.quantization = quantization

    def describe(self) -> dict[str, Any]:
        names = ("alternatives", "horizon", "rest_nats", "answer_nats", "template")
        return {
            "labeler": "counterfactual",
            "model": str(self.model.config._name_or_path),
            **({"quantization": self.quantization} if self.quantization else {}),
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
        """Return both drops of every reference token. Deterministic.

        Raises LabelError if the text is longer than the model's positions or the logits are not finite.
        """
        coded = encode(self.tokenizer, document, self.template, self.prefix)
        try:
            check_lengths(self.model, [coded.ids], [document.name])
        except ValueError as error:
            raise LabelError(str(error)) from None
        logits, read = read_and_keep(self.model, coded.ids)
        if not bool(logits.isfinite().all()):
            raise LabelError("the model's logits must be finite, they are not; use --dtype float32")
        ids = torch.tensor(coded.ids, device=logits.device)
        plain = token_log_probs(logits[:-1], ids[1:])  # entry j: of token j + 1
        others = self._alternatives(logits, coded)
        answer = _answer_start(coded)
        n, m = len(coded.ids) - coded.first, self.alternatives
        rest, final = np.zeros((n, m)), np.full((n, m), np.inf)
        changes = [(i, other) for i in range(coded.first, len(coded.ids)) for other in others[i].tolist()]
        horizon = None if self.answer_nats is not None else self.horizon
        for at, after in replaced_logits(self.model, coded.ids, changes, read, horizon, self.batch_tokens):
            i = changes[at][0]
            lost = plain[i : i + len(after)] - token_log_probs(after, ids[i + 1 : i + 1 + len(after)])
            place = divmod(at, m)
            rest[place] = float(lost[: self.horizon].sum())
            if i < answer and self.answer_nats is not None:
                final[place] = float(lost[answer - i - 1 :].sum())
        return Falls(rest.mean(1), None if self.answer_nats is None else final.mean(1), coded)

    def _alternatives(self, logits: torch.Tensor, coded: EncodedText) -> torch.Tensor:
        """Return the most likely other tokens int64 [T, m] at each position; position 0 is undefined."""
        here = torch.tensor(coded.ids, device=logits.device)
        before = logits.roll(1, dims=0).clone()
        before[torch.arange(len(here)), here] = -torch.inf
        if before.shape[1] <= self.alternatives:
            raise LabelError(f"expected a vocabulary of more than {self.alternatives} tokens; lower --alternatives")
        return before.topk(self.alternatives, dim=1).indices


def _answer_start(coded: EncodedText) -> int:
    """Return the index of the first token of the final answer: after the last "####", otherwise the last line."""
    solution = coded.text.solution
    marked = solution.rfind(ANSWER_MARK)
    start = marked + len(ANSWER_MARK) if marked >= 0 else solution.rstrip().rfind("\n") + 1
    while start < len(solution) and solution[start].isspace():
        start += 1
    return coded.first + next((i for i, (_, end) in enumerate(coded.offsets) if end > start), len(coded.offsets) - 1)
