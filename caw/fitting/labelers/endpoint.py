"""Key segments marked by a language model behind an OpenAI-compatible endpoint.

The official client does the talking: time-outs, retries with exponential back-off and jitter, `Retry-After`. What comes
back is held to a JSON schema where the endpoint supports one, and is checked here in any case: segments are exact
substrings in the order of the text, or the model is told what is wrong and asked once more.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from caw.fitting.labelers.base import LabelError, Spans, locate
from caw.fitting.labels import LabelledText
from caw.requirements import require

INSTRUCTION = """\
You mark the segments of a reference answer that carry its quality: the words, numbers, operators, names and short \
phrases that would make the answer wrong or misleading if they were replaced. Leave out filler: articles, \
conjunctions, linking phrases, and words that any paraphrase could change without harm.
Copy each segment exactly, character by character, from the answer, in the order in which they occur there, \
without overlap. Keep segments short, but keep an equation and its unit together. The final answer is always a segment.
Reply with JSON only: {"segments": ["...", "..."]}.

Example question: Tim has 30% less than 40 apples. How many does he have?
Example answer: He has 40*.30=12 fewer apples.
So he has 40-12=28 apples.
#### 28
Example reply: {"segments": ["40*.30=12 fewer", "40-12=28 apples", "28"]}"""
SCHEMA = {
    "type": "object",
    "properties": {"segments": {"type": "array", "items": {"type": "string"}}},
    "required": ["segments"],
    "additionalProperties": False,
}
ATTEMPTS = 2
BYTES_PER_TOKEN = 4.0  # of English, roughly; used only where no tokenizer is given
FATAL = (401, 403, 404)  # every other document would meet the same
REPLY_SHARE = 1.3  # of the answer's own tokens: a reply quotes at most the whole of it, plus quotes and commas


@dataclass(frozen=True)
class Cost:
    """What a run takes at most, one attempt a document: tokens, and money if prices (per million tokens) are known."""

    documents: int
    input_tokens: int
    output_tokens: int
    exact: bool
    input_price: float | None = None
    output_price: float | None = None

    @property
    def money(self) -> float | None:
        if self.input_price is None or self.output_price is None:
            return None
        return (self.input_tokens * self.input_price + self.output_tokens * self.output_price) / 1e6

    def __str__(self) -> str:
        about = "" if self.exact else "about "
        money = "unknown, give --input-price and --output-price" if self.money is None else f"at most {self.money:.2f}"
        return (
            f"{self.documents} documents, {about}{self.input_tokens} tokens in, at most {about}{self.output_tokens} "
            f"out; cost {money}"
        )


class RateLimit:
    """Lets at most `per_minute` requests begin in a minute, evenly spaced; shared by threads. None = no limit."""

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        if per_minute is not None and not per_minute > 0:
            raise ValueError(f"requests per minute must be above 0, got {per_minute}; leave the limit out for none")
        self.interval, self.clock = 60 / per_minute if per_minute else 0.0, clock
        self.next, self.lock = 0.0, threading.Lock()

    def wait(self, sleep: Callable[[float], None] = time.sleep) -> None:
        if not self.interval:
            return
        with self.lock:
            now = self.clock()
            begin = max(now, self.next)
            self.next = begin + self.interval
        sleep(begin - now)


class EndpointLabeler:
    """Asks a model for the segments of each document.

    Args:
        model: its name at the endpoint. key: the endpoint's key. base_url: None = the client's own default.
        timeout: seconds a request may take. retries: of a request that failed for a while (time-out, 429, 5xx).
        requests_per_minute: limit over all threads; the client's own retries are spaced by its back-off.
        schema: ask for output held to a JSON schema; off for endpoints that know none, which are then told in words.

    `used` counts the tokens the endpoint says were used: [input, output]. Raises ImportError without the client.
    """

    parallel = True

    def __init__(
        self,
        model: str,
        key: str,
        base_url: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        requests_per_minute: float | None = None,
        schema: bool = True,
    ) -> None:
        require("openai", "labels from an endpoint")
        import openai

        if retries < 0 or not timeout > 0:
            raise ValueError(f"retries must be >= 0 and timeout > 0, got {retries} and {timeout}; use the defaults")
        self.model, self.schema, self.limit = model, schema, RateLimit(requests_per_minute)
        self.client = openai.OpenAI(api_key=key, base_url=base_url, timeout=timeout, max_retries=retries)
        self.used, self.lock = [0, 0], threading.Lock()

    def describe(self) -> dict[str, Any]:
        return {
            "labeler": "openai",
            "model": self.model,
            "instruction_sha256": hashlib.sha256(INSTRUCTION.encode()).hexdigest(),
            "schema": self.schema,
        }

    def label(self, document: LabelledText) -> Spans:
        messages = messages_of(document)
        for attempt in range(1, ATTEMPTS + 1):
            reply = self._ask(messages)
            try:
                return locate(document.solution, parse_reply(reply))
            except LabelError as error:
                if attempt == ATTEMPTS:
                    raise LabelError(f"{error} (asked {ATTEMPTS} times)") from None
                correction = f"That cannot be used: {error}. Reply with the corrected JSON only."
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": correction}]
        raise AssertionError

    def _ask(self, messages: list[dict[str, str]]) -> str:
        """The model's reply. Raises LabelError for this document, ValueError where every request would fail alike."""
        import openai

        arguments: dict[str, Any] = {"model": self.model, "messages": messages}
        if self.schema:
            form = {"name": "key_segments", "strict": True, "schema": SCHEMA}
            arguments["response_format"] = {"type": "json_schema", "json_schema": form}
        self.limit.wait()
        try:
            completion = self.client.chat.completions.create(**arguments)
        except openai.APIStatusError as error:
            raise _status_error(error.status_code) from None  # its message may quote the key or the text
        except openai.APITimeoutError:
            raise LabelError("the endpoint took too long, retries included; run again, or raise --timeout") from None
        except openai.APIConnectionError:
            raise LabelError("the endpoint could not be reached, retries included; check --base-url") from None
        except (openai.OpenAIError, ValueError):
            raise LabelError("expected a chat completion, the endpoint sent something else; check --base-url") from None
        return self._reply(completion)

    def _reply(self, completion: Any) -> str:
        usage = getattr(completion, "usage", None)
        if usage is not None:
            with self.lock:
                self.used[0] += getattr(usage, "prompt_tokens", 0) or 0
                self.used[1] += getattr(usage, "completion_tokens", 0) or 0
        choices: Any = getattr(completion, "choices", None) or [None]
        message = getattr(choices[0], "message", None)
        if message is None:
            raise LabelError("expected a chat completion, the endpoint sent something else; check --base-url")
        if getattr(message, "refusal", None):
            raise LabelError("the model refused to mark this document; label it another way")
        if choices[0].finish_reason in ("length", "content_filter"):
            raise LabelError(f"the reply was cut off ({choices[0].finish_reason}); label the document another way")
        if not isinstance(message.content, str) or not message.content.strip():
            raise LabelError("expected a reply, the model sent an empty one; run again")
        return message.content


def _status_error(status: int) -> ValueError:
    if status in (400, 422):  # may be this document's length or content, or a schema that the endpoint does not know
        return LabelError(f"the endpoint refused the request ({status}); try --no-schema, or leave the document out")
    if status not in FATAL:
        return LabelError(f"the endpoint answered with status {status}, retries included; run again later")
    reasons = {
        401: "a valid key, it refused ours (401); set the variable of --key-env",
        403: "a key that may use the model, it refused ours (403); check --model and the key",
        404: "a model and an address it knows, it does not (404); check --model and --base-url",
    }
    return ValueError(f"the endpoint expects {reasons[status]}")


def messages_of(document: LabelledText) -> list[dict[str, str]]:
    content = f"Question: {document.question}\nAnswer: {document.solution}"
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}]


def parse_reply(reply: str) -> list[str]:
    """The segments of a reply; a fence of backquotes around the JSON is left out. Raises LabelError."""
    bare = reply.strip()
    if bare.startswith("```"):
        bare = bare.strip("`").removeprefix("json").strip()
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        raise LabelError("expected JSON, the model replied something else") from None
    segments = value.get("segments") if isinstance(value, dict) else None
    if not isinstance(segments, list) or not all(isinstance(s, str) for s in segments):
        raise LabelError('expected {"segments": [texts]}, the model replied another object')
    if not segments:
        raise LabelError("expected at least one segment, the model named none")
    return segments


def estimate_cost(
    documents: Sequence[LabelledText],
    count: Callable[[str], int] | None = None,
    input_price: float | None = None,
    output_price: float | None = None,
) -> Cost:
    """Tokens and money of labelling these documents. count: tokens of a text; None = estimated from its length."""
    counted = count or (lambda text: round(len(text.encode()) / BYTES_PER_TOKEN))
    fixed = counted(INSTRUCTION) + counted(json.dumps(SCHEMA)) + 10  # what the chat format itself adds
    inputs = sum(fixed + counted(messages_of(d)[1]["content"]) for d in documents)
    outputs = sum(round(REPLY_SHARE * counted(json.dumps({"segments": [d.solution]}))) for d in documents)
    return Cost(len(documents), inputs, outputs, count is not None, input_price, output_price)
