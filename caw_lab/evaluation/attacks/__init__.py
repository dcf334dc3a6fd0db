"""Attacks on texts: seeded functions of a text and its id, `parse_attack("word-d:0.1")` by name; see ATTACKS."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from caw_lab.evaluation.attacks.base import Attack, Attacked, AttackError
from caw_lab.evaluation.attacks.copy_paste import CopyPaste
from caw_lab.evaluation.attacks.paraphrase import Paraphrase
from caw_lab.evaluation.attacks.rankers import Ranker, make_ranker
from caw_lab.evaluation.attacks.wordnet import WordNet
from caw_lab.evaluation.attacks.words import WordD, WordS, WordSContext

__all__ = ["ATTACKS", "Attack", "AttackError", "AttackSetup", "Attacked", "parse_attack"]


@dataclass(frozen=True)
class AttackSetup:
    """What attacks need, loaded on first use. ranker, device: `make_ranker`'s. human: for copy-paste."""

    seed: int = 0
    wordnet: str | Path | None = None
    ranker: str | None = None
    device: str | None = None
    human: tuple[str, ...] = field(default=(), repr=False)
    endpoint: dict[str, object] = field(default_factory=dict, repr=False)

    @cached_property
    def words(self) -> WordNet:
        return WordNet.open(self.wordnet)

    @cached_property
    def loaded_ranker(self) -> Ranker:
        return make_ranker(self.ranker, self.device)


def _copy_paste(strength: str, setup: AttackSetup) -> Attack:
    rate, _, parts = strength.partition("x")
    if parts and not re.fullmatch(r"[0-9]+", parts):
        raise ValueError(
            f"copy-paste takes a share and optionally a number of parts, got {strength!r}; give e.g. 0.25x3"
        )
    return CopyPaste(_rate(rate, CopyPaste), setup.human, int(parts or 1), seed=setup.seed)


def _paraphrase(strength: str, setup: AttackSetup) -> Attack:
    if strength:
        raise ValueError(f"paraphrase takes no strength, got {strength!r}; leave it out")
    if not setup.endpoint.get("model") or not setup.endpoint.get("key"):
        raise ValueError(
            "paraphrase requires a model and a key, got none; give --paraphrase-model and set the variable of --key-env"
        )
    return Paraphrase(**setup.endpoint, seed=setup.seed)  # type: ignore[arg-type]


ATTACKS: dict[str, Callable[[str, AttackSetup], Attack]] = {
    WordD.kind: lambda rate, setup: WordD(_rate(rate, WordD), seed=setup.seed),
    WordS.kind: lambda rate, setup: WordS(_rate(rate, WordS), setup.words, seed=setup.seed),
    WordSContext.kind: lambda rate, setup: WordSContext(
        _rate(rate, WordSContext), setup.words, setup.loaded_ranker, seed=setup.seed
    ),
    CopyPaste.kind: _copy_paste,
    Paraphrase.kind: _paraphrase,
}


def parse_attack(spec: str, setup: AttackSetup | None = None) -> Attack:
    """Build the attack of "KIND:STRENGTH".

    word-d:0.1, word-s:0.3, word-s-context:0.3: the share of words. copy-paste:0.25: the share of the text in what comes
    out (0.25x3: in three parts). paraphrase has no strength.

    Raises ValueError for unknown kinds and bad strengths, FileNotFoundError or ImportError for what the attack needs.
    """
    kind, _, strength = spec.partition(":")
    if kind not in ATTACKS:
        raise ValueError(f"an attack must be one of {', '.join(ATTACKS)}, got {kind!r}; write e.g. word-d:0.1")
    return ATTACKS[kind](strength, setup or AttackSetup())


def _rate(text: str, kind: type[Attack]) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{kind.kind} requires a rate, got {text!r}; write e.g. {kind.kind}:0.1") from None
