"""Paraphrase: a language model behind an OpenAI-compatible endpoint rewrites the text."""

import difflib
import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw_lab.evaluation.attacks.base import Attack, Attacked, AttackError
from caw_lab.training.endpoint import Endpoint, EndpointError

INSTRUCTION = """\
Rewrite the text in other words and other sentence structure. Keep the meaning, every number, name and result, and \
about the same length. Reply with the rewritten text only."""


@dataclass(frozen=True)
class Paraphrase(Attack):
    """Asks a model to rewrite each text.

    Args:
        model, key, base_url, timeout, retries, requests_per_minute: see `Endpoint`.
        temperature: of the endpoint's sampling.

    Each request carries a seed; endpoints that ignore it give other texts each time. edited: words of the text outside
    the matching blocks of `difflib`. Raises ImportError without the client; a call raises AttackError for one text,
    ValueError where every request would fail in the same way.
    """

    kind: ClassVar[str] = "paraphrase"
    parallel: ClassVar[bool] = True
    model: str
    key: str = field(repr=False)
    base_url: str | None = field(default=None, repr=False)
    temperature: float = 0.7
    timeout: float = 60.0
    retries: int = 5
    requests_per_minute: float | None = None

    def __post_init__(self) -> None:
        endpoint = Endpoint(
            self.model, self.key, self.base_url, timeout=self.timeout, retries=self.retries,
            requests_per_minute=self.requests_per_minute, purpose="paraphrases from an endpoint",
            model_option="--paraphrase-model",
        )  # fmt: skip
        object.__setattr__(self, "_endpoint", endpoint)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.model}".replace("/", "-")

    def describe(self) -> dict[str, Any]:
        plain = {n: v for n, v in super().describe().items() if n not in ("key", "base_url", "timeout", "retries")}
        return {**plain, "instruction_sha256": hashlib.sha256(INSTRUCTION.encode()).hexdigest()}

    def apply(self, text: str, rng: np.random.Generator) -> Attacked:
        reply = self._ask(text, int(rng.integers(1 << 31)))
        before, after = text.split(), reply.split()
        blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        return Attacked(reply, len(before) - sum(block.size for block in blocks), len(before))

    def _ask(self, text: str, seed: int) -> str:
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}]
        endpoint: Endpoint = self._endpoint  # type: ignore[attr-defined]
        try:
            return endpoint.ask(messages, temperature=self.temperature, seed=seed).strip()
        except EndpointError as error:
            raise AttackError(str(error)) from None
