"""Errors in the shape of OpenAI's API."""

import json
from typing import Any

BAD, DENIED, FORBIDDEN, UNKNOWN, TOO_LONG, BUSY = 400, 401, 403, 404, 413, 429
KINDS = {
    BAD: "invalid_request_error", DENIED: "authentication_error", FORBIDDEN: "permission_error",
    UNKNOWN: "not_found_error", TOO_LONG: "invalid_request_error", BUSY: "rate_limit_error",
}  # fmt: skip


class ApiError(Exception):
    """A request that fails: its HTTP status, a sentence without keys, a code for programs, the invalid parameter."""

    def __init__(self, status: int, message: str, *, code: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.parameter = status, message, code, parameter

    @property
    def body(self) -> dict[str, Any]:
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.parameter, "code": self.code}}


def encoded(value: Any) -> bytes:
    """Encode JSON in ASCII, which can represent anything a client sends, including halves of surrogate pairs."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
