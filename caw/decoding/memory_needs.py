"""How much memory decoding needs, worked out before it starts.

Every large tensor of decoding has a shape known beforehand: keys and values, candidates, logits, the activations of
the largest prefill, the part of packed weights that it makes dense, and a GPU's table of rotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caw.decoding.forward.prefill_attention import EAGER_BLOCK
from caw.decoding.forward.rotary_table import table_bytes
from caw.decoding.reading import CHUNK, MAX_ROWS, MAX_TOKENS
from caw.models.facts import ModelFacts
from caw.record import RECORD_SIZE

FLOAT, INT = 4, 8


@dataclass(frozen=True)
class Needs:
    """Bytes: of one sequence, and once for all of them."""

    per_sequence: int
    fixed: int

    def of(self, batch: int) -> int:
        """Bytes of this many sequences at once."""
        return self.fixed + batch * self.per_sequence


def decoding_needs(
    facts: ModelFacts,
    capacity: int,
    slots: int,
    copies: int,
    history: int,
    limit: int | None = None,
    compiled: bool = False,
) -> Needs:
    """Memory of decoding with caches of `capacity` tokens, `slots` candidates and `copies` of each prefix.

    limit: length from which the rotary embedding changes, so that prompts are read whole (`Plan.limit`).
    compiled: whether prompts are attended to by `prefix_attention`, which writes no scores down.
    """
    config, vocab_size, size = facts.config, facts.vocab_size, facts.dtype.itemsize
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    keys_and_values = 2 * config.num_hidden_layers * kv_heads * dim * size
    record = RECORD_SIZE * (2 * FLOAT + INT) + FLOAT
    # the model's logits, their float32 copy, and what the sampler makes of the current ones
    logits = vocab_size * (slots * (size + FLOAT) + 5 * FLOAT)
    per_sequence = keys_and_values * (capacity * copies + slots) + logits + (history + 2) * record + capacity * INT
    tokens = min(MAX_TOKENS, MAX_ROWS * min(capacity, CHUNK)) if limit is None else capacity
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    activations = tokens * size * (6 * config.hidden_size + 3 * inner)
    places = max(tokens, MAX_TOKENS // CHUNK * capacity if capacity > CHUNK else 0)  # rows times positions of a prefill
    if (
        by_scores(config, capacity) and not compiled
    ):  # keys and values in float32 for each query head; scores, three more made of them
        activations += places * heads * FLOAT * (2 * dim + 4 * EAGER_BLOCK)
    # each row gives logits at the last positions of all rows; with a copy that a cap on logits makes
    kept = MAX_ROWS * min(MAX_ROWS * (history + 1), capacity)
    first_logits = kept * vocab_size * (2 * size + FLOAT)
    fixed = activations + first_logits + facts.dense_bytes + table_bytes(facts, capacity)
    return Needs(per_sequence, fixed)


def by_scores(config: Any, capacity: int) -> bool:
    """Whether some layer's prompts are attended to by scores that are written down (`prefill_attention`, "eager")."""
    window = getattr(config, "sliding_window", None)
    capped = bool(getattr(config, "attn_logit_softcapping", None)) or config.model_type == "gpt_oss"
    return capped or (isinstance(window, int) and window < capacity)
