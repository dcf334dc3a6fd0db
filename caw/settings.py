"""How to generate: one frozen, validated set of settings for the library, the command line, YAML and Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from caw.checks import require_bool, require_choice, require_int, require_number
from caw.io.show import shown

Branching = Literal["tree", "sequential", "batch"]
BRANCHINGS = ("tree", "sequential", "batch")
PrefillAttention = Literal["sdpa", "flash_attention_2", "eager"]
PREFILL_ATTENTIONS = ("sdpa", "flash_attention_2", "eager")
OnUnfound = Literal["keep", "drop", "raise"]
MAX_SLOTS = 32
MAX_ATTEMPTS = 100
MAX_DRAFTS = 64
WHERE_IT_PAYS = ("auto", "own")  # tokens are looked up, and only where that is exact and pays
SELECTIONS, ON_UNFOUND = ("weakest", "likeliest"), ("keep", "drop", "raise")
OF_FOUND = ("max_attempts", "best_of", "select", "on_unfound", "edits")  # what has no effect without found_at
MIN_TEMPERATURE = 1e-6  # logits divided by less leave float32; this is greedy long before


@dataclass(frozen=True)
class Settings:
    """Settings of one call; see `caw.iter_generate` for their meaning.

    The text depends on all of them but batch_size, max_memory, prefill_attention, compile, backend and speculate, which
    say how to run (and on those only where rounding does).

    Raises TypeError or ValueError naming the argument.
    """

    max_new_tokens: int = 200
    min_new_tokens: int = 0
    branching: Branching = "tree"
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    slots: int | None = None
    stop: str | Sequence[str] | None = None
    chat: bool = False
    mark_eos: bool | None = None
    return_trace: bool = True
    batch_size: int | None = None
    max_memory: int | float | str | None = None
    prefill_attention: PrefillAttention = "sdpa"
    compile: bool = False
    backend: str | None = None
    found_at: float | None = None
    max_attempts: int = 4
    best_of: int = 1
    select: str | Callable[..., Any] = "weakest"
    on_unfound: OnUnfound = "keep"
    edits: float = 0.0
    speculate: Any = "auto"

    def __post_init__(self) -> None:
        check_row(self)
        check_found(self)
        for name, most in (("slots", MAX_SLOTS), ("batch_size", 1 << 20)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 1, most)
        for name in ("chat", "return_trace", "compile"):
            require_bool(name, getattr(self, name))
        if not isinstance(self.mark_eos, bool | None):
            raise TypeError(f"mark_eos must be True, False or None, got {shown(self.mark_eos)}; leave it out")
        require_choice("branching", self.branching, BRANCHINGS, "tree")
        check_speculate(self.speculate)

    def untested(self) -> Settings:
        """The same settings for texts that are not tested, as unmarked ones are."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self)}
        return replace(self, **{name: defaults[name] for name in ("found_at", *OF_FOUND)})

    def tested(self) -> dict[str, Any]:
        """How texts are tested and made again; nothing where they are not."""
        if self.found_at is None:
            return {}
        return {name: getattr(self, name) for name in ("found_at", *OF_FOUND)}


def check_speculate(speculate: Any) -> None:
    """Raise TypeError or ValueError for what can be no source of drafts; whether a model may be one, a plan says."""
    model = callable(speculate) and hasattr(speculate, "config")
    if speculate is None or model or callable(getattr(speculate, "follow", None)):
        return
    if isinstance(speculate, str):
        require_choice("speculate", speculate, WHERE_IT_PAYS, "auto")
    elif isinstance(speculate, int) and not isinstance(speculate, bool):
        require_int("speculate", speculate, 1, MAX_DRAFTS)
    else:
        raise TypeError(
            f"speculate must be 'auto', 'own', None, a number of tokens, a drafter or a small model, got "
            f"{type(speculate).__name__}; leave it out"
        )


def check_found(settings: Settings) -> None:
    """Raise TypeError or ValueError for how texts are tested and made again."""
    if settings.found_at is not None:
        require_number("found_at", settings.found_at, 0, 1, closed=False)
    require_int("max_attempts", settings.max_attempts, 1, MAX_ATTEMPTS)
    require_int("best_of", settings.best_of, 1, MAX_ATTEMPTS)
    if settings.best_of > settings.max_attempts:
        raise ValueError(
            f"best_of must be at most max_attempts, {settings.max_attempts}, got {settings.best_of}; "
            f"set max_attempts={settings.best_of}"
        )
    if not callable(settings.select):
        require_choice("select", settings.select, SELECTIONS, "weakest")
    require_choice("on_unfound", settings.on_unfound, ON_UNFOUND, "keep")
    require_number("edits", settings.edits, 0, 0.9, closed=True)


def check_row(settings: Any) -> None:
    """Raise TypeError or ValueError for what may differ between the texts of one call: length and sampling."""
    require_int("max_new_tokens", settings.max_new_tokens, 1, 1 << 24)
    require_int("min_new_tokens", settings.min_new_tokens, 0, settings.max_new_tokens)
    require_bool("do_sample", settings.do_sample)
    require_number("temperature", settings.temperature, MIN_TEMPERATURE, 1e4, closed=True)
    require_int("top_k", settings.top_k, 0, 1 << 31)
    require_number("top_p", settings.top_p, 0, 1, closed=True)
    if settings.top_p == 0:
        raise ValueError("top_p must be in (0, 1], got 0; use do_sample=False for greedy decoding")
    require_int("seed", settings.seed, 0, (1 << 64) - 1)
