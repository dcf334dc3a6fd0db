"""Client of an OpenAI-compatible endpoint; the official one handles timeouts, retries and `Retry-After`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caw.requirements import require

FATAL = (401, 403, 404)  # every other request would meet the same
NO_COMPLETION = "expected a chat completion, the endpoint sent something else; check --base-url"


class EndpointError(ValueError):
    """One request failed; the next may not."""


class RequestRefused(EndpointError):
    """Status 400 or 422: because of this text's length or content, or an argument that the endpoint does not know."""

    def __init__(self, status: int, remedy: str = "leave the text out") -> None:
        super().__init__(f"the endpoint refused the request ({status}); {remedy}")
        self.status = status


class RateLimit:
    """Allows at most `per_minute` requests to start per minute, evenly spaced; thread-safe. None = no limit."""

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


class Endpoint:
    """A model at an endpoint; threads may share it.

    Args:
        model: its name at the endpoint. key: the endpoint's key. base_url: None = the client's own default.
        timeout: seconds per request. retries: of transient failures (timeout, 429, 5xx).
        requests_per_minute: limit over all threads; the client's own retries are spaced by its back-off.
        purpose: purpose of the client, for the message if it is not installed.
        model_option: the command line's name of `model`, for messages.

    `used` counts the tokens the endpoint says were used: [input, output]. Raises ImportError without the client,
    ValueError for a time-out or a number of retries that cannot be.
    """

    def __init__(
        self,
        model: str,
        key: str,
        base_url: str | None = None,
        *,
        timeout: float = 60.0,
        retries: int = 5,
        requests_per_minute: float | None = None,
        purpose: str = "asking an endpoint",
        model_option: str = "--model",
    ) -> None:
        if retries < 0 or not timeout > 0:
            raise ValueError(f"retries must be >= 0 and timeout > 0, got {retries} and {timeout}; use the defaults")
        require("openai", purpose)
        import openai

        self.model, self.model_option, self.limit = model, model_option, RateLimit(requests_per_minute)
        self.client = openai.OpenAI(api_key=key, base_url=base_url, timeout=timeout, max_retries=retries)
        self.used, self.lock = [0, 0], threading.Lock()

    def ask(self, messages: Sequence[Mapping[str, str]], **arguments: Any) -> str:
        """Return the model's reply, not empty. arguments: of the request besides model and messages.

        Raises EndpointError for this request, ValueError where every other one would fail in the same way. No message
        holds the key or a text.
        """
        import openai

        self.limit.wait()
        create: Any = self.client.chat.completions.create
        try:
            completion = create(model=self.model, messages=list(messages), **arguments)
        except openai.APIStatusError as error:
            raise self._status_error(error.status_code) from None  # its own message may quote the key or the text
        except openai.APITimeoutError:
            raise EndpointError("the endpoint timed out, including retries; run again or raise the timeout") from None
        except openai.APIConnectionError:
            raise EndpointError("the endpoint could not be reached, including retries; check --base-url") from None
        except (openai.OpenAIError, ValueError):
            raise EndpointError(NO_COMPLETION) from None
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
            raise EndpointError(NO_COMPLETION)
        if getattr(message, "refusal", None):
            raise EndpointError("the model refused this text; leave it out, or handle it another way")
        if choices[0].finish_reason in ("length", "content_filter"):
            reason = choices[0].finish_reason
            raise EndpointError(f"the reply was cut off ({reason}); leave this text out, or handle it another way")
        if not isinstance(message.content, str) or not message.content.strip():
            raise EndpointError("expected a reply, the model sent an empty one; run again")
        return message.content

    def _status_error(self, status: int) -> ValueError:
        if status in (400, 422):
            return RequestRefused(status)
        if status not in FATAL:
            return EndpointError(f"the endpoint returned status {status}, including retries; run again later")
        reasons = {
            401: "a valid key, it refused ours (401); set the variable of --key-env",
            403: f"a key that may use the model, it refused ours (403); check {self.model_option} and the key",
            404: f"a model and an address it knows, it does not (404); check {self.model_option} and --base-url",
        }
        return ValueError(f"the endpoint expects {reasons[status]}")
