"""Weights from a model: how likely a mark is at each token of a text, according to a model that reads it.

A model that reads the text knows where a mark had freedom. `detection.expected_signal` derives the weight and explains
why p-values stay exact: nothing here knows the tested key.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from caw.checks import require_bool, require_number
from caw.detection.calibration import Calibration, signal_features
from caw.detection.expected_signal import Reading, expected_signal, levels_of_signal
from caw.detection.ids import flat_ids, unreadable
from caw.detection.ratios import ratio_levels
from caw.detection.text_weights import TextWeights, check_own_key, check_weighable
from caw.detection.weight_estimates import token_kinds
from caw.evaluator.network import check_serves
from caw.io.token_texts import require_tokenizer
from caw.io.vocabulary import Vocabulary
from caw.models.facts import position_limit, vocabulary_size
from caw.models.fingerprint import fingerprint
from caw.models.text_reading import TextReader
from caw.policies import CapacityPolicy, FixedStrength, Policy
from caw.policies.base import MAX_STRENGTH
from caw.policies.target import policy_text
from caw.settings import Drawn, check_warping
from caw.watermarks import EXP, Watermark
from caw.watermarks.green_list import GreenList

CUTS = {each.name: each.default for each in fields(Drawn)[1:]}  # where nothing is cut
CACHED = 4096  # texts whose levels are cached: a text is read once, however many keys are tested
LEAST_USED = 0.9  # of a model's logits that its own tokenizer names; the rest is padding


@dataclass(frozen=True, eq=False)
class ReaderWeights(TextWeights):
    """Token weights from a model that reads the text, for `caw.detect(..., weights=...)`.

    Args:
        model, tokenizer: from `caw.load_model`. The model that wrote the text is best; a smaller one with the same
            tokenizer also works.
        prompt: the prompt of the text, a str or token ids; None = unknown: the text is read after the tokenizer's begin
            or end token. Without it the reader is overconfident; see `calibration`.
        policy: the marking policy. Weights must not depend on the text's evidence under its own key, so only the
            maximum strength of one with a target is used; see `factors`.
        chat: put a prompt that is a str into the tokenizer's chat template, as `generate(chat=True)` does.
        factors: factor of the strength at each token, the last one from there on: means by position of a closed loop,
            learned under other keys.
        calibration: correction for a reader without the prompt, learned under other keys by
            `caw_lab.training.fit_calibration`, or its file.
        key_ids: of the texts that `factors` were learned from; the weights are rejected for these keys, and for those
            that the calibration names.
        temperature, top_k, top_p, min_p: how a text was drawn whose words the race at full strength marked
            (`caw.Recommended`, `EXP(strength="scale")`): each token is tested by its likelihood ratio, see
            `detection.ratios`. temperature=None: the text is greedy.

    P-values stay exact for any model, prompt and policy; those of the writer detect most. They must be chosen without
    the tested key: the prompt must not contain text marked with it, and the model must not have been trained on such
    text. gamma, delta and top_k come from the watermark given to the detector.

    Each text is read once by the teacher-forced pass; levels are cached, so further keys cost no pass. Deterministic.
    Raises TypeError or ValueError naming the argument; when used, ValueError for a text that does not fit the model's
    positions after the prompt, and for ids that the model does not have.
    """

    model: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    prompt: Any = None
    policy: Policy = field(default_factory=FixedStrength)
    chat: bool = False
    factors: Sequence[float] = ()
    calibration: Calibration | str | Path | None = None
    key_ids: Sequence[str] = ()
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    _cached: OrderedDict[tuple[Any, ...], np.ndarray] = field(default_factory=OrderedDict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_tokenizer(self.tokenizer)
        require_bool("chat", self.chat)
        if not isinstance(self.policy, Policy):
            raise TypeError(f"policy must be a caw policy, got {type(self.policy).__name__}; use caw.FixedStrength()")
        if not callable(getattr(self.model, "get_output_embeddings", None)):
            kind = type(self.model).__name__
            raise TypeError(f"model must be a causal language model, got {kind}; pass what caw.load_model gives")
        keys = tuple(self.key_ids) if isinstance(self.key_ids, Iterable) else (None,)
        if isinstance(self.key_ids, str) or not all(isinstance(key, str) for key in keys):
            raise TypeError("key_ids must be a list of texts, got another; pass [watermark.key_id for each]")
        object.__setattr__(self, "key_ids", keys)  # a generator can be read once only
        if not isinstance(self.factors, Iterable):
            raise TypeError(f"factors must be a list of numbers, got {type(self.factors).__name__}; pass [] for none")
        object.__setattr__(self, "factors", tuple(self.factors))
        for factor in self.factors:
            require_number("factors", factor, 0, MAX_STRENGTH, closed=True)
        self._check_drawn()
        self._check_vocabulary()
        if self.calibration is not None:
            self._check_calibration()
        if isinstance(self.policy, CapacityPolicy):
            object.__setattr__(self, "policy", self.policy.serving(self.tokenizer))
            check_serves(self.policy.network, "", self.tokenizer)
        limit = position_limit(self.model)
        if limit and len(self.prompt_ids) >= limit:
            raise ValueError(
                f"prompt must be shorter than the model's {limit} positions, got {len(self.prompt_ids)} tokens; "
                "shorten it, or leave it out"
            )

    def _check_drawn(self) -> None:
        if self.temperature is None:
            given = [name for name, off in CUTS.items() if getattr(self, name) != off]
            if given:
                raise ValueError(f"{given[0]} says how a text was drawn, got no temperature; give it, e.g. 1.0")
            return
        check_warping(self)
        others = {"policy": self.policy != FixedStrength(), "factors": bool(self.factors)}
        others["calibration"] = self.calibration is not None
        given = [name for name, value in others.items() if value]
        if given:
            raise ValueError(
                f"drawn texts are marked at full strength, got a temperature and {given[0]}; leave one out"
            )

    @property
    def ratios(self) -> bool:
        return self.temperature is not None

    @property
    def _drawn(self) -> Drawn | None:
        if self.temperature is None:
            return None
        return Drawn(float(self.temperature), self.top_k, float(self.top_p), float(self.min_p))

    def _check_vocabulary(self) -> None:
        named, logits = len(self.tokenizer), vocabulary_size(self.model)
        if not LEAST_USED * logits <= named <= logits:
            raise ValueError(
                f"model and tokenizer must have one vocabulary, got {logits} logits for {named} tokens; pass those "
                "that caw.load_model gives together"
            )

    def _check_calibration(self) -> None:
        if isinstance(self.calibration, (str, Path)):
            object.__setattr__(self, "calibration", Calibration.load(self.calibration))
        if not isinstance(self.calibration, Calibration):
            raise TypeError(
                f"calibration must be a Calibration or its file, got {type(self.calibration).__name__}; see "
                "caw_lab.training.fit_calibration"
            )
        if self.prompt is not None:
            raise ValueError("a calibration is for texts whose prompt is unknown, got a prompt; leave one of them out")

    @cached_property
    def prompt_ids(self) -> tuple[int, ...]:
        """Token ids that the model reads before a text."""
        if self.prompt is None:
            return self._nothing
        if isinstance(self.prompt, str):
            return self._encoded(self.prompt)
        if self.chat:
            raise TypeError(f"prompt must be a str with chat=True, got {type(self.prompt).__name__}; leave chat out")
        if isinstance(self.prompt, (list, tuple)) and any(isinstance(part, str) for part in self.prompt):
            raise TypeError(
                f"prompt must be one text or the ids of one, got a list of {len(self.prompt)}; use with_prompt for each"
            )
        found = tuple(flat_ids(self.prompt, "prompt").tolist())
        if not found or max(found) >= vocabulary_size(self.model):
            raise ValueError(
                f"prompt must hold token ids below the model's {vocabulary_size(self.model)}, got "
                f"{max(found) if found else 'none'}; use the model's own tokenizer, or leave it out"
            )
        return found

    @property
    def _known_prompt(self) -> tuple[int, ...] | None:
        """Return whether the prompt is known; the stand-in for an unknown one is read alike but trusted less."""
        return None if self.prompt is None else self.prompt_ids

    @property
    def _nothing(self) -> tuple[int, ...]:
        """Return the stand-in for an unknown prompt."""
        begins = self.tokenizer("")["input_ids"]
        ends = [i for i in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id) if i is not None]
        if not begins and not ends:
            raise ValueError(
                "the tokenizer must begin or end texts with a token of its own, it has none; give a prompt"
            )
        return tuple(begins or ends[:1])

    def _encoded(self, prompt: str) -> tuple[int, ...]:
        if complaint := unreadable(prompt, "prompt"):
            raise ValueError(complaint)
        if not self.chat:
            found = self.tokenizer(prompt)["input_ids"]
        elif not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("chat=True requires a tokenizer with a chat template, this one has none; leave chat out")
        else:
            message = [{"role": "user", "content": prompt}]
            text = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
            found = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not found:
            raise ValueError("prompt must have at least one token, got none; leave it out where it is unknown")
        return tuple(found)

    @property
    def name(self) -> str:
        """The model's name, what it knew, and the policy."""
        model = Path(str(getattr(self.model.config, "_name_or_path", "") or "model")).name
        knew = "without the prompt" if self.prompt is None else "with the prompt"
        if self._drawn is not None:
            return f"model:{model} {knew}, {_text_of(self._drawn)}"
        calibrated = "" if self.calibration is None else ", calibrated"
        return f"model:{model} {knew}{calibrated}, {policy_text(self.policy)}"

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of the model's weights, the prompt's ids, the policy, its evaluator and the factors."""
        said: list[object] = [fingerprint(self.model), self._known_prompt, policy_text(self.policy), self.factors]
        if self._drawn is not None:
            said.append(self._drawn)
        if isinstance(self.calibration, Calibration):
            said.append(self.calibration.digest)
        if isinstance(self.policy, CapacityPolicy):
            said.append(fingerprint(self.policy.network))
        return hashlib.sha256(repr(said).encode()).hexdigest()

    def with_prompt(self, prompt: Any) -> "ReaderWeights":
        """Return the same reader for texts with another prompt."""
        other = replace(self, prompt=prompt)
        object.__setattr__(other, "_cached", self._cached)
        return other

    def check_for(self, watermark: Watermark) -> None:
        """Raise ValueError for an unsupported watermark, or the calibration's own key."""
        check_weighable(watermark)
        if self.ratios and not watermark.races_whole:
            raise ValueError(
                f"a temperature is for texts of EXP(strength='scale') or caw.Recommended, got {watermark.name}; leave "
                "it out"
            )
        check_own_key(watermark, self.key_ids)
        if isinstance(self.calibration, Calibration):
            self.calibration.check_for(watermark)

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise ValueError unless the ids of `tokenizer` (None = ids are given) mean the same tokens to the model."""
        if tokenizer is None or tokenizer is self.tokenizer:
            return
        Vocabulary.of(self.tokenizer).check(
            tokenizer, "the model that reads is", "take a model of the same family as the one that wrote the texts"
        )

    def text_levels(self, texts: Sequence[np.ndarray], watermark: Watermark) -> list[np.ndarray]:
        return [self._levels_of(text, watermark) for text in texts]

    def _levels_of(self, text: np.ndarray, watermark: Watermark) -> np.ndarray:
        if not len(text):
            return np.empty(0, dtype=np.int64)
        name = self._name_of(text, watermark)
        if name not in self._cached:
            self._keep(name, self._read(text, watermark))
        self._cached.move_to_end(name)
        return self._cached[name].astype(np.int64)

    def _read(self, text: np.ndarray, watermark: Watermark) -> np.ndarray:
        """Return the levels of a text int64 [n], n > 0, uint8 [n]."""
        if self._drawn is None:
            return self._levels(self.reading(text), watermark)
        own = watermark.temperature if isinstance(watermark, EXP) else 1.0
        return ratio_levels(self.shares(text, own)).astype(np.uint8)

    def shares(self, text: np.ndarray, cooling: float = 1.0) -> np.ndarray:
        """Return the probabilities float64 [n] with which the tokens of a drawn text int64 [n] were drawn, n > 0.

        cooling: divides the logits in addition to the temperature. ValueError without a temperature.
        """
        if self._drawn is None:
            raise ValueError("probabilities are those of a drawn text, got no temperature; give it, e.g. 1.0")
        self._check_ids(text)
        drawn = replace(self._drawn, temperature=self._drawn.temperature * cooling)
        return self._reader.shares(text, drawn)

    def reading(self, text: np.ndarray) -> Reading:
        """Return the model's record along a text int64 [n], n > 0."""
        self._check_ids(text)
        return self._reader(text)

    @cached_property
    def kinds(self) -> np.ndarray:
        """Kind of each token id, int64 [V]; see `weight_estimates.token_kinds`."""
        return token_kinds(self.tokenizer, vocabulary_size(self.model))

    @cached_property
    def _reader(self) -> TextReader:
        return TextReader(self.model, self.policy, self.prompt_ids)

    def _levels(self, reading: Reading, watermark: Watermark) -> np.ndarray:
        """Return the levels of a text that was read, uint8 [n]."""
        if self.factors:
            places = np.minimum(np.arange(len(reading.tokens)), len(self.factors) - 1)
            factors = np.array(self.factors, dtype=np.float32)[places]
            # means by position: under a target a text may be marked at full strength where the mean is less
            most = self.policy.max_strength * (1.0 if self.policy.target is not None else max(self.factors))
            reading = replace(reading, strength=reading.strength * factors, greatest=most)
        if isinstance(self.calibration, Calibration):
            signal = self.calibration.signal(signal_features(reading, watermark, self.kinds))
            return levels_of_signal(signal, watermark, self.calibration.most).astype(np.uint8)
        signal = expected_signal(reading, watermark, self.prompt is not None)
        return levels_of_signal(signal, watermark).astype(np.uint8)

    def _check_ids(self, text: np.ndarray) -> None:
        if int(text.max()) >= vocabulary_size(self.model):
            raise ValueError(
                f"texts must hold ids below the {vocabulary_size(self.model)} logits of the model that reads them, got "
                f"{int(text.max())}; take the tokenizer's own model"
            )

    def _name_of(self, text: np.ndarray, watermark: Watermark) -> tuple[Any, ...]:
        """Return the cache key of a text's levels, apart from what is the same for all prompts."""
        null = watermark.green_fraction if isinstance(watermark, GreenList) else getattr(watermark, "temperature", 1.0)
        return (self._known_prompt, self._drawn, text.tobytes(), watermark.rule, watermark.full, null)

    def _keep(self, name: tuple[Any, ...], levels: np.ndarray) -> None:
        self._cached[name] = levels
        while len(self._cached) > CACHED:
            self._cached.popitem(last=False)


def _text_of(drawn: Drawn) -> str:
    """Return how a text was drawn, for a name."""
    values = {name: getattr(drawn, name) for name, off in CUTS.items() if getattr(drawn, name) != off}
    own = [f"{name.replace('_', '-')} {value:g}" for name, value in values.items()]
    return ", ".join([f"drawn at temperature {drawn.temperature:g}", *own])
