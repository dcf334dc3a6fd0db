"""Strict models of request bodies."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """A part of a request: no type conversions, and no other fields unless a class allows them."""

    model_config = ConfigDict(strict=True, extra="forbid")


SENTENCE = "sentence"  # the kind of an error whose message is the whole of what is to be said


def sentence(text: str) -> PydanticCustomError:
    """Return a validation error with this message and no internals."""
    return PydanticCustomError(SENTENCE, "{text}", {"text": text})
