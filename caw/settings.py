"""Settings of generation: one frozen, validated set for the library, the command line, YAML files and Ray."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from caw.checks import require_bool, require_choice, require_int, require_number
from caw.flags import DECODING, DETECTABLE, RUNNING, flag
from caw.guard import Guard, read_guard
from caw.io.show import shown

Branching = Literal["tree", "sequential", "batch"]
BRANCHINGS = ("tree", "sequential", "batch")
PrefillAttention = Literal["sdpa", "flash_attention_2", "eager"]
PREFILL_ATTENTIONS = ("sdpa", "flash_attention_2", "eager")
LogitBias = Mapping[int, float] | tuple[tuple[int, float], ...]  # settings keep the latter
OnUndetected = Literal["keep", "unmarked", "drop", "raise"]
MAX_SLOTS = 32
MAX_ATTEMPTS = 100
MAX_DRAFTS = 64
WHERE_IT_PAYS = ("auto", "own")  # tokens are looked up, and only where that is exact and pays
SELECTIONS, ON_UNDETECTED = ("weakest", "likeliest"), ("keep", "unmarked", "drop", "raise")
KEEPS = "number|results|json[:FIELD,...]|python|content"  # what a command's --guard takes
MAX_PENALTY, MAX_BIAS, MAX_BIASES = 2.0, 100.0, 1024  # OpenAI's ranges
DRAWING = ("do_sample", "temperature", "top_k", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0
LEAST_DRAWN = 0.01  # temperature and top_p up to which a text of `caw.Recommended` is greedy
ONE_TOKEN = f"a temperature or top_p up to {LEAST_DRAWN:g}, top_k=1 or min_p=1"  # see `leaves_one_token`
# temperature from which a race marks a drawn text of `caw.Recommended`; cooler ones get green lists. A race has as
# much evidence as the words have freedom: of texts of up to 200 tokens (demo model, everyday prompts, 16 of each
# temperature) it is found at 1e-3 in 0, 1 and 4 at temperatures 0.1, 0.2 and 0.29, the lists in 16, 14 and 15. But they
# cost quality: 0.90, 0.99 and 1.08 nats a token under the model, where unmarked texts have 0.64, 0.68 and 0.71
LEAST_RACED = 0.3
MIN_TEMPERATURE = 1e-6  # logits divided by less leave float32; this is greedy long before


@dataclass(frozen=True)
class Drawn:
    """How the words of a text are drawn: temperature, then top-k, top-p and min-p, as in `caw.generate`."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, settings: Any) -> "Drawn":
        """Take it from settings that have its fields."""
        return cls(*(getattr(settings, each.name) for each in fields(cls)))

    @property
    def cuts(self) -> tuple[float, int, float, float]:
        """Temperature, top-k, 1 - top_p and min-p as the op `warp_logits` takes them; 1 - top_p = -1 cuts nothing."""
        return self.temperature, self.top_k, 1 - self.top_p if self.top_p < 1 else -1.0, self.min_p


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How many tokens to generate and how to choose them; may differ between the texts of a batch.

    Args:
        max_new_tokens, min_new_tokens: maximum and minimum per sequence; end tokens are masked before the ladder up to
            the minimum.
        do_sample, temperature, top_k, top_p, min_p: as in transformers and in this order; 0, 1.0 and 0.0 turn top_k,
            top_p and min_p off; the temperature is at least 1e-6. A `caw.Recommended` marks a text as a greedy one
            below temperature 0.3, and makes it a greedy one where they leave one token to draw: top_k=1, min_p=1,
            temperature or top_p up to 0.01.
        seed: seed of the sampling noise, in [0, 2^64); None draws one for each text, so that equal calls give different
            texts.
        repetition_penalty: divides positive logits, and multiplies others, of tokens of the prompt and of the text so
            far; as in transformers, 1.0 is off, in [0.01, 100].
        presence_penalty, frequency_penalty: subtracted from the logits of tokens of the text so far (not of the
            prompt), once or once per occurrence; as in vLLM, 0.0 is off, in [-2, 2].
        logit_bias: mapping of token ids to numbers added to their logits, each in [-100, 100]. Bias and penalties are
            applied first and change greedy texts too; see docs/choosing.md for the formula.
    """

    max_new_tokens: int = flag(200, "Maximum new tokens.", DECODING)
    min_new_tokens: int = flag(0, "Minimum new tokens.", DECODING)
    do_sample: bool = flag(False, "Sample instead of decoding greedily [--greedy].", DECODING, "--sample/--greedy")
    temperature: float = flag(1.0, "Sampling temperature [1].", DECODING)
    top_k: int = flag(0, "Sample from the top k tokens [0, off].", DECODING)
    top_p: float = flag(1.0, "Nucleus sampling: total probability to sample from [1, off].", DECODING)
    min_p: float = flag(0.0, "Minimum probability relative to the most likely token [0, off].", DECODING)
    seed: int | None = flag(0, "Random seed of the sampling.", DECODING, kind=int)
    repetition_penalty: float = flag(
        1.0, "Penalty on tokens of the prompt and the text, also for greedy decoding [1, off].", DECODING
    )
    presence_penalty: float = flag(0.0, "Penalty on tokens that are in the text, -2 to 2.", DECODING)
    frequency_penalty: float = flag(0.0, "Penalty on tokens per occurrence in the text, -2 to 2.", DECODING)
    logit_bias: LogitBias | None = None

    @property
    def races(self) -> bool:
        """Whether a `caw.Recommended` races: drawn at temperature LEAST_RACED or above, from more than one token."""
        return self.temperature >= LEAST_RACED and greedy_if_one_token(self).do_sample


_Row = TypeVar("_Row", bound=Sampling)


@dataclass(frozen=True, kw_only=True)
class Detectability:
    """What is marked, and how texts are tested before they are returned.

    Args:
        mark_eos: whether the mark may change where a text ends. With False the original token is used wherever an end
            token is among the candidates within reach of the policy's maximum strength: marking ends gains nothing, and
            a key that disfavours them makes texts run on. Stop strings are marked like any text. None = True where
            texts must equal another system's, token for token (foreign formats, SynthID), False in this library's own
            formats.
        detectable_at: test every text before it is returned, as `caw.detect` does at this false-positive rate, and
            retry those that are not detected with a stronger mark, up to `max_attempts` in total; see `receipts`.
        max_attempts: maximum attempts per text, including candidates.
        best_of: number of candidates per text, at the policy's own strength and weaker. All are generated and
            tested; with select="weakest" only up to the first that is detected.
        select: which detected candidate to return: "weakest", "likeliest" (under the unmarked model), or a function
            that receives all candidates and returns a detected one (`caw.detectable.selection`).
        on_undetected: what to do if no attempt is detected: "keep" the text, return it "unmarked" (with a guard only),
            "drop" it (its text is empty) or "raise" a ValueError.
        edits: share of words to delete; the text must still be detected in 90 % of 50 seeded draws.
        guard: what a greedy text must keep of the unmarked one, as a `caw.Guard`: tokens are changed one by one where
            the unmarked model finds back to its text, until the text is detected. It takes the place of retries
            (max_attempts, best_of, select); no sampling.
    """

    mark_eos: bool | None = flag(
        None, "Allow the mark to change where a text ends [as the format's own system does].", DECODING,
        "--mark-eos/--keep-eos",
    )  # fmt: skip
    detectable_at: float | None = flag(
        None, "Test each text at this false-positive rate before it is written, and retry with a stronger mark until "
        "it is detected.", DETECTABLE,
    )  # fmt: skip
    max_attempts: int = flag(4, "Maximum attempts per text.", DETECTABLE)
    best_of: int = 1
    select: str | Callable[..., Any] = "weakest"
    on_undetected: OnUndetected = flag(
        "keep", "What to do with a text that no attempt made detectable.", DETECTABLE, kind=str,
        metavar="|".join(ON_UNDETECTED),
    )  # fmt: skip
    edits: float = flag(0.0, "Share of words that a later edit may delete without losing the mark.", DETECTABLE)
    guard: Guard | None = flag(
        None, "Change greedy texts only where they keep this of the unmarked text (docs/guard.md).", DETECTABLE,
        kind=str, metavar=KEEPS,
    )  # fmt: skip


OF_DETECTABLE = tuple(each.name for each in fields(Detectability))[2:]  # what has no effect without detectable_at


@dataclass(frozen=True, kw_only=True)
class Running:
    """How a call runs; texts depend on `stop` and `chat`, on the others only through rounding.

    Args:
        chat: apply the tokenizer's chat template to each prompt: a str as a user message, a conversation as it is.
        stop: strings that end a sequence; they are not part of its text.
        return_trace: record capacity, strength, candidates and choice of every token.
        branching: "tree" (one forward for all candidates), "sequential" or "batch" (the paper's baselines, run
            eagerly and without drafts); equal text.
        slots: candidates per forward pass; None = 2 for green lists, up to 8 for EXP.
        speculate: speculative decoding, which changes no text, on a CPU: "auto" = n-gram lookup in all texts of the
            call where it pays; "own" = lookup within each text only; None = off; a number = always that many tokens;
            or a `Drafter`.
        batch_size: sequences decoded together; None = 8 or fewer. Texts do not depend on it in float32, nor in bfloat16
            on a CPU with the compiled extension; elsewhere near ties may.
        max_memory: memory limit of decoding besides the model weights: bytes, a share of free memory as a float, or a
            text such as "8GiB"; None = 0.9 of free memory. A batch that does not fit is reduced.
        prefill_attention: attention kernel of the prefill: "sdpa" (on a CPU this library's own), "flash_attention_2"
            (the
            flash-attn package) or "eager".
        compile: compile the model's body with torch.compile: about a minute of preparation, fewer kernels per step.
            Requires a model on one device in one process, and a watermark and policy that run without the host
            (docs/results/gpu.md).
        backend: kernels to use: None = this library's; "reference" = plain PyTorch.
    """

    chat: bool = flag(False, "Apply the model's chat template to prompts.", DECODING)
    stop: str | Sequence[str] | None = flag(None, "Stop string: ends the text; repeatable.", DECODING, kind=list[str])
    return_trace: bool = True
    branching: Branching = "tree"
    slots: int | None = None
    speculate: Any = flag(
        "auto", "Speculative decoding; texts do not change: auto (n-gram lookup where it pays), own (lookup within "
        "each text only), none, or a number of tokens to look up.", RUNNING, kind=str,
    )  # fmt: skip
    batch_size: int | None = flag(None, "Batch size: texts decoded together [8].", RUNNING, min=1)
    max_memory: int | float | str | None = flag(
        None, "Memory limit besides the model weights, e.g. 8GiB [90 % of free memory].", RUNNING, kind=str
    )
    prefill_attention: PrefillAttention = "sdpa"
    compile: bool = flag(False, "Compile the model with torch.compile, which takes about a minute.", RUNNING)
    backend: str | None = None


@dataclass(frozen=True, kw_only=True)
class Settings(Running, Detectability, Sampling):
    """Every option of a call, with type, default and meaning: the only list of them, and the keyword arguments of
    `caw.generate`.

    Raises TypeError or ValueError naming the argument.
    """

    def __post_init__(self) -> None:
        check_row(self)
        check_detectable(self)
        for name, most in (("slots", MAX_SLOTS), ("batch_size", 1 << 20)):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), 1, most)
        for name in ("chat", "return_trace", "compile"):
            require_bool(name, getattr(self, name))
        if not isinstance(self.mark_eos, bool | None):
            raise TypeError(f"mark_eos must be True, False or None, got {shown(self.mark_eos)}; leave it out")
        require_choice("branching", self.branching, BRANCHINGS, "tree")
        check_speculate(self.speculate)

    @property
    def level(self) -> float | None:
        """The p-value that a text is tested at before it is returned: `detectable_at`."""
        return self.detectable_at

    def applied(self) -> dict[str, Any]:
        """Return the settings that differ from plain decoding."""
        return {each.name: own for each in fields(self) if (own := getattr(self, each.name)) != each.default}

    def penalties(self) -> dict[str, Any]:
        """Return bias and penalties that have an effect, for JSON."""
        own = {name: value for name, value in self.applied().items() if name in PENALTIES}
        return own | ({"logit_bias": {str(t): bias for t, bias in own["logit_bias"]}} if "logit_bias" in own else {})

    def untested(self) -> "Settings":
        """Return the settings without tests, as for unmarked texts."""
        defaults: dict[str, Any] = {field.name: field.default for field in fields(self)}
        return replace(self, **{name: defaults[name] for name in ("detectable_at", *OF_DETECTABLE)})

    def tested(self) -> dict[str, Any]:
        """Return how texts are tested and retried; empty if they are not."""
        if self.detectable_at is None:
            return {}
        found = {name: getattr(self, name) for name in ("detectable_at", *OF_DETECTABLE)}
        guard = found.pop("guard")
        return found if guard is None else {**found, "guard": guard.described()}


def check_speculate(speculate: Any) -> None:
    """Raise TypeError or ValueError for an invalid source of drafts."""
    if speculate is None or callable(getattr(speculate, "follow", None)):
        return
    if isinstance(speculate, str):
        require_choice("speculate", speculate, WHERE_IT_PAYS, "auto")
    elif isinstance(speculate, int) and not isinstance(speculate, bool):
        require_int("speculate", speculate, 1, MAX_DRAFTS)
    else:
        raise TypeError(
            "speculate must be 'auto', 'own', None, a number of tokens or a drafter, got "
            f"{type(speculate).__name__}; leave it out"
        )


def check_detectable(settings: Settings) -> None:
    """Raise TypeError or ValueError for invalid settings of tests and retries."""
    if settings.detectable_at is not None:
        require_number("detectable_at", settings.detectable_at, 0, 1, closed=False)
    require_int("max_attempts", settings.max_attempts, 1, MAX_ATTEMPTS)
    require_int("best_of", settings.best_of, 1, MAX_ATTEMPTS)
    if settings.best_of > settings.max_attempts:
        raise ValueError(
            f"best_of must be at most max_attempts, {settings.max_attempts}, got {settings.best_of}; "
            f"set max_attempts={settings.best_of}"
        )
    if not callable(settings.select):
        require_choice("select", settings.select, SELECTIONS, "weakest")
    require_choice("on_undetected", settings.on_undetected, ON_UNDETECTED, "keep")
    require_number("edits", settings.edits, 0, 0.9, closed=True)
    object.__setattr__(settings, "guard", read_guard(settings.guard))
    if settings.on_undetected == "unmarked" and settings.guard is None:
        raise ValueError(
            "on_undetected='unmarked' needs a guard, which begins with the unmarked text, got guard=None; use 'keep', "
            "or give one, e.g. caw.Guard(keeps='results')"
        )


def check_row(settings: Any) -> None:
    """Raise TypeError or ValueError for invalid settings that may differ between texts: length and sampling."""
    require_int("max_new_tokens", settings.max_new_tokens, 1, 1 << 24)
    require_int("min_new_tokens", settings.min_new_tokens, 0, settings.max_new_tokens)
    require_bool("do_sample", settings.do_sample)
    check_warping(settings)
    if settings.seed is not None:
        require_int("seed", settings.seed, 0, (1 << 64) - 1)
    require_number("repetition_penalty", settings.repetition_penalty, MIN_REPETITION, MAX_REPETITION, closed=True)
    for name in ("presence_penalty", "frequency_penalty"):
        require_number(name, getattr(settings, name), -MAX_PENALTY, MAX_PENALTY, closed=True)
    object.__setattr__(settings, "logit_bias", read_bias(settings.logit_bias))


def leaves_one_token(*, temperature: float, top_k: int, top_p: float, min_p: float) -> bool:
    """Whether sampling has (nearly) one token to choose from: temperature or top_p up to LEAST_DRAWN, top_k 1, min_p 1.

    A race among drawn tokens would find none to choose among, so that a text would be unmarked: it counts as greedy.
    """
    return temperature <= LEAST_DRAWN or top_p <= LEAST_DRAWN or top_k == 1 or min_p >= 1


def greedy_if_one_token(settings: _Row) -> _Row:
    """Return settings of a text as those of a greedy one if sampling has one token to choose from; else as they are."""
    if not settings.do_sample or not leaves_one_token(**{name: getattr(settings, name) for name in DRAWING[1:]}):
        return settings
    return replace(settings, do_sample=False, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def check_warping(settings: Any) -> None:
    """Raise TypeError or ValueError for an invalid temperature, top_k, top_p or min_p."""
    require_number("temperature", settings.temperature, MIN_TEMPERATURE, 1e4, closed=True)
    require_int("top_k", settings.top_k, 0, 1 << 31)
    require_number("top_p", settings.top_p, 0, 1, closed=True)
    if settings.top_p == 0:
        raise ValueError("top_p must be in (0, 1], got 0; use do_sample=False for greedy decoding")
    require_number("min_p", settings.min_p, 0, 1, closed=True)


def read_bias(bias: Any) -> tuple[tuple[int, float], ...] | None:
    """Return the additions to logits by token id, in ascending order; None if there are none."""
    if bias is None:
        return None
    if not isinstance(bias, Mapping | tuple):
        raise TypeError(
            f"logit_bias must be a mapping of token ids to numbers, got {type(bias).__name__}; write {{42: -1.5}}"
        )
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    require_int("the number of tokens in logit_bias", len(pairs), 0, MAX_BIASES)
    for token, value in pairs:
        require_int("a token id in logit_bias", token, 0, (1 << 31) - 1)
        require_number(f"logit_bias of token {token}", value, -MAX_BIAS, MAX_BIAS, closed=True)
    return tuple(sorted((token, float(value)) for token, value in pairs)) or None
