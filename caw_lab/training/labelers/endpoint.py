"""Key segments from a model behind an endpoint: exact substrings in text order, or it is asked once more."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from caw_lab.training.endpoint import Endpoint, EndpointError, RequestRefused
from caw_lab.training.labelers.base import LabelError, Spans, locate
from caw_lab.training.labels import LabelledText

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


@dataclass(frozen=True)
class EndpointLabeler:
    """Asks a model for the segments of each document.

    schema: ask for output held to a JSON schema; off for endpoints that know none, which are then told in words.
    """

    endpoint: Endpoint
    schema: bool = True
    parallel = True

    def describe(self) -> dict[str, Any]:
        return {
            "labeler": "openai",
            "model": self.endpoint.model,
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
        """Return the model's reply. LabelError for this document, ValueError if every request would fail alike."""
        form = {"name": "key_segments", "strict": True, "schema": SCHEMA}
        arguments = {"response_format": {"type": "json_schema", "json_schema": form}} if self.schema else {}
        try:
            return self.endpoint.ask(messages, **arguments)
        except RequestRefused as error:
            raise LabelError(str(RequestRefused(error.status, "try --no-schema, or leave the document out"))) from None
        except EndpointError as error:
            raise LabelError(str(error)) from None


def messages_of(document: LabelledText) -> list[dict[str, str]]:
    content = f"Question: {document.question}\nAnswer: {document.solution}"
    return [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": content}]


def parse_reply(reply: str) -> list[str]:
    """Return the segments of a reply, ignoring a code fence around the JSON. Raises LabelError."""
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
