"""The marked requests of an engine: a chooser for each profile, and the place of each text in it."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from caw.decoding.chooser import Chooser
from caw.decoding.row_settings import RowSettings, may_begin_freely
from caw.integrations.layout import JsonLayout
from caw.integrations.profiles import Profile
from caw.models import load_tokenizer
from caw.policies import CapacityPolicy
from caw.policies.recommended import mark_of
from caw.settings import DRAWING

FILTERS = DRAWING[3:]  # which engines name as this library does


@dataclass(eq=False)
class EngineText:
    """A marked request.

    prompt: None until its ids are known. ids: its output, a list that grows. chooser, row: where its text is, None = it
    has not begun. known: how many ids the chooser has, or had. spent: by the number of ids, nats of their free
    beginning, of a text whose row was taken (`Chooser.spent`). json: whether a grammar makes it JSON.
    """

    profile: Profile
    settings: RowSettings
    prompt: Sequence[int] | None
    ids: list[int]
    chooser: Chooser | None = None
    row: int = -1
    known: int = 0
    spent: dict[int, float] = field(default_factory=dict)
    json: bool = False


def row_settings(
    params: Any, most: int, seed: int, window: int, bound: Sequence[str], *, drawn: bool, top_k: int,
    ends: tuple[int, ...], penalties: Sequence[str] = (),
) -> RowSettings:  # fmt: skip
    """Return the settings of a text by the sampling parameters of an engine; ValueError for numbers that cannot be.

    most: new tokens. window: of the watermark. bound: parameters that can end or steer a text, so that it has no free
    beginning. drawn: whether it is not greedy. penalties: those that the engine has not applied before the choice.
    """
    try:
        return RowSettings(
            max_new_tokens=most, do_sample=drawn, temperature=params.temperature if drawn else 1.0, top_k=top_k,
            **{name: getattr(params, name) for name in (*FILTERS, *penalties)}, seed=seed, ends=ends,
            begins=may_begin_freely(most, window, bound=any(getattr(params, name, None) for name in bound)),
        )  # fmt: skip
    except TypeError as error:
        raise ValueError(str(error)) from None


class EngineTexts:
    """The choosers of an engine.

    Args:
        profiles: what cannot be marked with one of them is said here, before the first request.
        vocab_size: V of the logits, by the engine's configuration; they may be wider.
        rows: the most texts at once. device: of the logits.
        tokenizer: folder or hub id of the engine's, for evaluators that read token classes from it; None = unknown.
        revision: of a hub id, None = its main branch.
    """

    def __init__(
        self,
        profiles: Iterable[Profile],
        vocab_size: int,
        rows: int,
        device: torch.device,
        tokenizer: str | None = None,
        revision: str | None = None,
    ) -> None:
        self.rows, self.device, self.tokenizer, self.revision = rows, device, tokenizer, revision
        self.choosers: dict[tuple[str, int], Chooser] = {}
        self._layout: JsonLayout | None = None
        for profile in profiles:
            self._chooser(profile, vocab_size)

    def drop(self, text: EngineText | None) -> None:
        """A text has left the engine, or will begin again."""
        if text is not None and text.chooser is not None:
            row = text.row
            text.spent = {text.known + n: text.chooser.spent(row, chosen=bool(n)) for n in (0, 1)}
            text.chooser.drop(text.row)
            text.chooser = None

    def choose(
        self, logits: torch.Tensor, texts: Mapping[int, EngineText], *, repeated: bool
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(rows of the logits, their tokens), int64, for the texts of each profile.

        Args:
            logits: float [rows, V], not changed.
            texts: by row of the logits; their ids are up to date.
            repeated: whether the engine may throw a choice away and ask again at the same place. Otherwise each token
                must have come back, or it is an error.
        """
        if rows := [row for row in texts if texts[row].json]:
            logits = logits.index_copy(
                0, torch.tensor(rows, device=logits.device),
                self._layout_of(logits.shape[1]).keep(logits[rows], [texts[row].ids for row in rows]),
            )  # fmt: skip
        groups: dict[Chooser, list[int]] = {}
        for row in sorted(texts):
            groups.setdefault(self.follow(texts[row], logits.shape[1]), []).append(row)
        for chooser, rows in groups.items():
            some, places = [texts[row] for row in rows], torch.tensor(rows, device=logits.device)
            lengths = [text.known for text in some] if repeated else None
            own = logits if len(rows) == logits.shape[0] else logits[places]  # a copy costs as much as a choice
            yield places, chooser.choose(own, [text.row for text in some], lengths)

    def follow(self, text: EngineText, vocab_size: int) -> Chooser:
        """The chooser of a text, which has learnt all of its ids; begins it again where the engine took some back."""
        chooser, spent = text.chooser, text.spent.get(len(text.ids), math.inf)
        if chooser is None or len(text.ids) < text.known:
            if text.prompt is None:
                raise ValueError("a marked request must have the ids of its prompt, got none; send text or ids")
            if chooser is None:
                chooser = self._chooser(text.profile, vocab_size)
                text.row = next(row for row in range(self.rows) if row not in chooser.started)
            chooser.start(text.row, text.prompt, text.settings)
            text.chooser = chooser
        chooser.resume(text.row, text.ids, spent=spent)
        text.known = len(text.ids)
        return chooser

    def _chooser(self, profile: Profile, vocab_size: int) -> Chooser:
        name = profile.name, vocab_size  # logits may be wider than the config says
        if name not in self.choosers:
            self.choosers[name] = Chooser(
                profile.watermark, profile.policy, vocab_size=vocab_size, rows=self.rows, device=self.device,
                tokenizer=self._tokenizer_for(profile),
            )  # fmt: skip
        return self.choosers[name]

    def _layout_of(self, vocab_size: int) -> JsonLayout:
        if self.tokenizer is None:
            raise ValueError("JSON must be marked with the engine's tokenizer at hand, which was not loaded; load it")
        self._layout = self._layout or JsonLayout(load_tokenizer(self.tokenizer, self.revision), vocab_size)
        return self._layout

    def _tokenizer_for(self, profile: Profile) -> Any:
        """The engine's tokenizer, loaded for an evaluator alone that has yet to read it and may be used here."""
        _, policy = mark_of(profile.watermark, profile.policy, RowSettings())
        reads = isinstance(policy, CapacityPolicy) and not policy.looks_ahead and policy.network.lacks_classes
        return load_tokenizer(self.tokenizer, self.revision) if reads and self.tokenizer is not None else None
