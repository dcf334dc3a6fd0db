"""One call of `caw.generate` as an object, and a decorator that turns its fields into keyword arguments.

The list of options stands once, in `caw/settings.py`: signature, types and documentation are derived from it here.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ParamSpec, TypeVar, get_type_hints

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.prompts import Prompts
from caw.detection.detector import Detector
from caw.policies import Policy
from caw.settings import Settings
from caw.watermarks import Signature

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True, eq=False, repr=False)
class Call(Settings):
    """Arguments of one call: what it works with, and its settings (checked when `settings` is read).

    Args:
        model: a transformers causal LM; its weights and settings are left unchanged. It decodes in eval mode.
        tokenizer: its tokenizer.
        prompts: a str, a list of str (tokenizer(p), no chat template unless chat=True), or a list of id lists. With
            chat=True also a conversation, [{"role": ..., "content": ...}, ...], or a list of them; one that the
            assistant speaks last in is continued there.
        watermark: Recommended, KGW, Unigram, EXP or SynthID; None = this library's own unwatermarked decode.
        policy: decides how strongly each token is marked; None = FixedStrength(1.0), the plain watermark. A Recommended
            brings its own.
        detector: a `caw.Detector` for the test of each text, of the same key; None = `caw.detect`
            without options.
        streamer: a transformers streamer, for one prompt only. As in transformers, it gets the prompt's ids [1, T]
            first, then each token (those of a stop string too); its end() is always called.
        prompt_cache: a `PromptCache` shared by several calls with this model: cached prompts are not prefilled again.
            Not used where texts may reach the length at which the model's rotary embedding changes.
        report: called with the name of what is being prepared (a CUDA graph), and with "" when that is done.
    """

    model: Any
    tokenizer: Any
    prompts: Prompts
    _: KW_ONLY
    watermark: Signature | None = None
    policy: Policy | None = None
    detector: Detector | None = None
    streamer: Any = None
    prompt_cache: PromptCache | None = None
    report: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        """Check nothing yet: the streamer must be ended if a check fails."""

    @property
    def settings(self) -> Settings:
        """Its settings alone, checked. Raises TypeError or ValueError naming the argument."""
        settings, given = object.__new__(Settings), vars(self)  # not by name: that would take longer than the checks
        vars(settings).update({name: given[name] for name in SETTINGS})
        settings.__post_init__()
        return settings


@dataclass(frozen=True, eq=False, repr=False)
class WatchedCall(Call):
    """A call that waits for all its texts.

    Args:
        progress: show a progress bar if stderr is a terminal.
    """

    _: KW_ONLY
    progress: bool = True


SETTINGS = tuple(field.name for field in fields(Settings))


def takes_fields(kind: Callable[P, C]) -> Callable[[Callable[[C], R]], Callable[P, R]]:
    """Decorate a function of one `kind`, a dataclass, so that it is called with the fields of `kind` instead.

    Its signature and the Args section of its docstring, before "Returns:" or at its end, are those of the dataclass and
    of its bases. An unknown keyword raises TypeError with the name that it is nearest to.
    """

    def decorate(function: Callable[[C], R]) -> Callable[P, R]:
        signature = signature_of(kind)
        known = signature.parameters.keys()

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs.keys() <= known:
                raise TypeError(f"{function.__name__}() {unknown(kwargs, known)}")
            try:
                call = kind(*args, **kwargs)
            except TypeError as error:  # begins with the dataclass's name
                why = str(error).partition("() ")[2]
                raise TypeError(f"{function.__name__}() {why}") from None
            return function(call)

        result = get_type_hints(function).get("return", Any)
        called.__signature__ = signature.replace(return_annotation=result)  # type: ignore[attr-defined]
        hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        called.__annotations__ = {**hints, "return": result}
        called.__doc__ = with_arguments(function.__doc__ or "", kind)
        return called

    return decorate


def signature_of(kind: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a dataclass with its types resolved, its own keywords before those of its bases."""
    hints = get_type_hints(kind)
    given = [p.replace(annotation=hints[p.name]) for p in inspect.signature(kind).parameters.values()]
    inherited = [p for p in given if p.name in SETTINGS]
    return inspect.Signature([*(p for p in given if p.name not in SETTINGS), *inherited])


def unknown(given: Iterable[str], known: Iterable[str]) -> str:
    """Say which keyword is unknown, and the nearest known one."""
    name = next(name for name in given if name not in known)
    near = difflib.get_close_matches(name, list(known), 1)
    return f"got an unexpected keyword argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def with_arguments(text: str, kind: Any) -> str:
    """Add the Args section of a dataclass to a docstring: its own entries first, then those of its bases."""
    bases = [base for base in reversed(kind.__mro__) if "Args:" in (base.__dict__.get("__doc__") or "")]
    own, groups = [b for b in bases if not issubclass(Settings, b)], [b for b in bases if issubclass(Settings, b)]
    entries = [line for base in (*own, *groups) for line in arguments_of(base)]
    section = "\n".join(["    Args:", *(f"    {line}".rstrip() for line in entries)])
    head, returns, rest = text.partition("    Returns:")
    return f"{head.rstrip()}\n\n{section}\n\n{returns}{rest}" if returns else f"{text.rstrip()}\n\n{section}\n    "


def arguments_of(kind: type) -> list[str]:
    """Return the lines of a docstring's Args section, indented by four."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    return section.partition("\n\n")[0].splitlines()
