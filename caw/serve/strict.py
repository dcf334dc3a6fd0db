"""What a body is read into."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A part of a request: values of the very kinds it names, and no other fields unless a class says so."""

    model_config = ConfigDict(strict=True, extra="forbid")
