"""Paraphrase: a language model behind an OpenAI-compatible endpoint says it in other words."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from caw.evaluation.attacks.base import Attack, Attacked, AttackError
from caw.fitting.labelers.endpoint import FATAL, RateLimit
from caw.requirements import require

INSTRUCTION = """\
Rewrite the text in other words and other sentence structure. Keep the meaning, every number, name and result, and \
about the same length. Reply with the rewritten text only."""


@dataclass(frozen=True)
class Paraphrase(Attack):
    """Asks `model` to rewrite each text. The official client does the talking: time-outs, retries, `Retry-After`.

    Args:
        model: its name at the endpoint. key: the endpoint's key. base_url: None = the client's own default.
        temperature: of the endpoint's sampling. timeout: seconds a request may take. retries: of one that failed for a
            while (time-out, 429, 5xx). requests_per_minute: limit over all threads.

    A seed goes along with each request; endpoints that ignore it do not repeat themselves. edited: words of the text
    that the longest common subsequence of words leaves out. Raises ImportError without the client; a call raises
    AttackError for one text, ValueError where every request would fail alike.
    """

    kind: ClassVar[str] = "paraphrase"
    stream: ClassVar[str] = "paraphrase"
    parallel: ClassVar[bool] = True
    model: str
    key: str = field(repr=False)
    base_url: str | None = None
    temperature: float = 0.7
    timeout: float = 60.0
    retries: int = 5
    requests_per_minute: float | None = None

    def __post_init__(self) -> None:
        if self.retries < 0 or not self.timeout > 0:
            raise ValueError(f"retries must be >= 0 and timeout > 0, got {self.retries} and {self.timeout}")
        require("openai", "paraphrases from an endpoint")
        import openai

        client = openai.OpenAI(api_key=self.key, base_url=self.base_url, timeout=self.timeout, max_retries=self.retries)
        object.__setattr__(self, "_client", client)
        object.__setattr__(self, "_limit", RateLimit(self.requests_per_minute))

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
        import openai

        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": text}]
        self._limit.wait()  # type: ignore[attr-defined]
        try:
            completion = self._client.chat.completions.create(  # type: ignore[attr-defined]
                model=self.model, messages=messages, temperature=self.temperature, seed=seed
            )
        except openai.APIStatusError as error:
            raise _status_error(error.status_code) from None  # its message may quote the key or the text
        except openai.APITimeoutError:
            raise AttackError("the endpoint took too long, retries included; run again") from None
        except openai.APIConnectionError:
            raise AttackError("the endpoint could not be reached, retries included; check --base-url") from None
        except (openai.OpenAIError, ValueError):
            raise AttackError(
                "expected a chat completion, the endpoint sent something else; check --base-url"
            ) from None
        return _reply(completion)


def _reply(completion: Any) -> str:
    choices: Any = getattr(completion, "choices", None) or [None]
    message = getattr(choices[0], "message", None)
    if message is None:
        raise AttackError("expected a chat completion, the endpoint sent something else; check --base-url")
    if getattr(message, "refusal", None):
        raise AttackError("the model refused to rewrite this text; it is left out")
    if choices[0].finish_reason in ("length", "content_filter"):
        raise AttackError(f"the reply was cut off ({choices[0].finish_reason}); the text is left out")
    if not isinstance(message.content, str) or not message.content.strip():
        raise AttackError("expected a reply, the model sent an empty one; run again")
    return message.content.strip()


def _status_error(status: int) -> ValueError:
    if status not in FATAL:
        return AttackError(f"the endpoint answered with status {status}, retries included; run again later")
    reasons = {
        401: "a valid key, it refused ours (401); set the variable of --key-env",
        403: "a key that may use the model, it refused ours (403); check --paraphrase-model and the key",
        404: "a model and an address it knows, it does not (404); check --paraphrase-model and --base-url",
    }
    return ValueError(f"the endpoint expects {reasons[status]}")
