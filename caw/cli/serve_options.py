"""Options of `caw serve`, and checks on who can reach it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.options import panel
from caw.cli.policy_choice import choose_watermark
from caw.serve.contracts import MarkRules
from caw.serve.settings import ServerSettings

if TYPE_CHECKING:
    from caw.registry import Registry
    from caw.watermarks import Signature

SERVING, LIMITS, MARKING = "Serving", "Limits", "What is marked"
DRAWS = "it draws greedy requests too, at temperature 1; --watermark recommended marks them without drawing"
ONLY = "default"  # id of the tenant where there is no registry

WatermarkName = Annotated[
    str | None,
    panel(opt.MARK, "Watermark [the registry keys' watermark; recommended; kgw if a policy or its option is given].",
          "--watermark",
          metavar="|".join(opt.WATERMARKS)),
]  # fmt: skip
Name = Annotated[str | None, panel(SERVING, "Model name in the API [the value of --model].", "--name")]
Receipts = Annotated[Path | None, panel(SERVING, "JSONL file for receipts; texts are never stored.", "--receipts")]

# by field of `ServerSettings`, whose defaults they have but for the factor
_SERVER: dict[str, Any] = {
    "host": Annotated[str, panel(SERVING, "Address to listen on; 127.0.0.1 accepts only local connections.", "--host")],
    "port": Annotated[int, panel(SERVING, "Port to listen on; 0 picks a free port.", "--port")],
    "grace": Annotated[float, panel(SERVING, "Grace period for running requests at shutdown, in seconds.", "--grace")],
    "sampling": Annotated[
        str,
        panel(SERVING, "Default sampling of requests: temperature 1 (openai), or the model's generation config "
              "(model).", "--sampling", metavar="openai|model"),
    ],
    "proxies": Annotated[
        list[str],
        panel(SERVING, "Address or network of a trusted proxy, whose X-Forwarded-For is used; repeatable.", "--proxy"),
    ],
    "drafts": Annotated[
        bool,
        panel(opt.RUNNING, "Speculative decoding by n-gram lookup; texts do not change.", "--drafts/--no-drafts"),
    ],
    "batch": Annotated[int, panel(LIMITS, "Batch size: texts decoded together.", "--batch-size")],
    "max_length": Annotated[int, panel(LIMITS, "Maximum tokens per text, including the prompt.", "--max-length")],
    "max_waiting": Annotated[
        int, panel(LIMITS, "Maximum queued texts; beyond that, requests get status 429.", "--max-waiting")
    ],
    "max_choices": Annotated[int, panel(LIMITS, "Maximum choices per request.", "--max-choices")],
    "max_connections": Annotated[int, panel(LIMITS, "Maximum open connections.", "--max-connections")],
    "max_body": Annotated[int, panel(LIMITS, "Maximum request size in bytes.", "--max-body")],
    "timeout": Annotated[float, panel(LIMITS, "Request timeout in seconds.", "--timeout")],
    "read_timeout": Annotated[
        float, panel(LIMITS, "Read timeout: seconds to receive a complete request.", "--read-timeout")
    ],
    "write_timeout": Annotated[
        float,
        panel(LIMITS, "Write timeout: seconds without the client reading before it is disconnected.",
              "--write-timeout"),
    ],
    "max_attempts": Annotated[int, panel(MARKING, "Maximum attempts per text.", "--max-attempts")],
    "guard": Annotated[
        str | None,
        panel(MARKING, "Change greedy texts that are tested and not streamed only where they keep this of the unmarked "
              "text.", "--guard", metavar="number|results|json[:FIELD,...]|python|content"),
    ],
}  # fmt: skip
SERVER = {name: (option, getattr(ServerSettings, name)) for name, option in _SERVER.items()} | {
    "max_factor": (
        Annotated[
            float,
            panel(
                MARKING,
                "Maximum strength of a retry, as a multiple of the policy's strength.",
                "--max-strength-factor",
            ),
        ],
        4.0,
    ),
}
# by field of `MarkRules`
_RULES: dict[str, Any] = {
    "detectable_at": Annotated[
        float | None,
        panel(MARKING, "Test finished texts at this false-positive rate; unless streamed, retry with a stronger mark "
              "until detected.", "--detectable-at"),
    ],
    "strict": Annotated[
        bool, panel(MARKING, "Send only texts that are detected; streams then send finished texts.", "--strict")
    ],
    "exempt_below": Annotated[
        int, panel(MARKING, "Do not mark requests for fewer new tokens than this; 0 marks all.", "--exempt-below")
    ],
    "exempt_json": Annotated[bool, panel(MARKING, "Do not mark JSON mode.", "--exempt-json")],
    "exempt_tools": Annotated[bool, panel(MARKING, "Do not mark tool calls.", "--exempt-tools")],
    "exempt_thinking": Annotated[
        bool, panel(MARKING, "Do not mark the thinking section at the start of a text.", "--exempt-thinking")
    ],
}  # fmt: skip
RULES = {name: (option, getattr(MarkRules, name)) for name, option in _RULES.items()}


def check_access(settings: ServerSettings, key: str | None) -> None:
    """Raise ValueError if a server without API keys could be reached from outside, or if nothing marks."""
    if settings.proxies:
        raise ValueError("a server without a registry accepts only local connections, got --proxy; leave it out or "
        "give --registry")  # fmt: skip
    if not settings.local:
        raise ValueError(
            "a server without a registry accepts only local connections, got another --host; leave it out or give "
            "--registry"
        )
    if key is None:
        raise ValueError("the server requires a marking key, got none; set CAW_KEY or give --key")


def check_registry(key: str | None, receipts: Path | None) -> str:
    """Return a placeholder key for a server whose registry has the keys. Raises ValueError for options that a registry
    replaces.
    """
    for option, given in (("--key or CAW_KEY", key), ("--receipts", receipts)):
        if given is not None:
            raise ValueError(f"a registry stores keys and receipts, got {option} as well; leave it out")
    return str(secrets.randbits(63))


def tell_sampling(model: Any, sampling: str) -> None:
    """Print the default sampling of requests. sampling: of `ServerSettings`."""
    from caw.models.sampling import model_sampling, sampling_text

    suggested = f"the model's generation config has {sampling_text(model_sampling(model))}"
    if sampling == "model":
        tell(f"default sampling of requests: {suggested}")
    else:
        tell(f"default sampling of requests: temperature 1; {suggested}, see --sampling")


def watermark_of(
    found: Registry | None, name: str | None, key: str, options: dict[str, Any], policy: str | None,
    of_policy: dict[str, Any],
) -> Signature:  # fmt: skip
    """Return the requested watermark, or that of the registry's active keys; if there are none, that of
    `choose_watermark`.

    Raises ValueError for none, and if an active key has another watermark: its texts would not be detected.
    """
    asked = name is not None or any(value is not None for value in options.values())
    mark = opt.build_watermark(choose_watermark(name, options, policy, of_policy), key, options)
    if mark is None:
        raise ValueError("the server marks every response, got --watermark none; choose another")
    if found is None:
        return mark
    from caw.registry.agreement import watermark_for

    mark, remarks = watermark_for(found, mark, asked=asked)
    for remark in remarks:
        tell(remark)
    return mark


def tell(line: str) -> None:
    typer.echo(f"caw: {line}", err=True)
