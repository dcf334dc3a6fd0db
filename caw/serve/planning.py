"""The plan of a server's decoder: for all that any request may ask."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from typing import Any

from caw.arguments import check_arguments
from caw.decoding.plan import Plan, make_plan
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits
from caw.decoding.stopping import StopStrings
from caw.decoding.workload import Workload
from caw.detection.detector import Detector
from caw.found.attempts import FoundTexts
from caw.found.efforts import Effort, check_strong, efforts, greatest_factor, steered
from caw.found.selection import Selection, weakest
from caw.found.trial import Trial, beyond_reach, check_markable
from caw.models.facts import ModelFacts
from caw.policies import Policy
from caw.serve.contracts import LEVEL, Key, MarkKey
from caw.serve.errors import BAD, ApiError
from caw.serve.marking import Marking
from caw.serve.settings import ServerSettings
from caw.settings import Settings
from caw.watermarks import Watermark
from caw.watermarks.registry import reads_alike, watermark_from

KEPT = 64  # levels whose tests are kept ready: one for each level of a tenant and number of its keys


class Planned:
    """What one server decodes with.

    Args:
        watermark: how texts are marked; its key marks nothing, every text brings one.
        policy: None = the plain watermark. With `rules.found_at` it gets that as its target, unless it has one.
        max_memory, compile: as in `caw.generate`.

    Raises TypeError or ValueError where these do not go together, NotImplementedError for a model that cannot branch.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        watermark: Watermark,
        policy: Policy | None,
        settings: ServerSettings,
        *,
        max_memory: str | None = None,
        compile: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.facts = facts = ModelFacts.of(model, tokenizer)
        positions = facts.positions or settings.max_length
        self.max_length = min(settings.max_length, positions)
        # nobody's key: a text whose own was forgotten would be found by no one, rather than by another tenant
        nobodys = watermark.with_key(secrets.randbits(63)).with_vocabulary(facts.vocab_size)
        self.watermark = check_markable(nobodys)
        policy = check_arguments(facts, tokenizer, self.watermark, policy, None)
        level = settings.rules.found_at
        if level is not None:
            check_strong(policy, self.watermark)
        self.policy = policy if level is None else steered(policy, Detector(tokenizer, self.watermark, level))
        self.factor = min(settings.max_factor, greatest_factor(self.watermark, self.policy))
        self.plan = self._plan(max_memory, compile)
        self._trial = functools.lru_cache(KEPT)(self._made_trial)

    def _plan(self, max_memory: str | None, compile: bool) -> Plan:
        limits = RowLimits(
            max_new_tokens=self.max_length, ends=max(1, len(self.facts.ends)), minimum=False, log_probs=True,
            strength_factor=self.factor,
        )  # fmt: skip
        work = Workload(self.settings.batch, self.max_length, limits)
        # how fast one tenant's text is made must not say what is in another's
        own = Settings(
            max_new_tokens=self.max_length, return_trace=False, max_memory=max_memory, compile=compile,
            speculate="own" if self.settings.drafts else None,
        )  # fmt: skip
        return make_plan(self.facts, self.watermark, self.policy, own, work)

    def mark_of(self, key: MarkKey) -> Watermark:
        """The watermark of a key, whether this server marks with it or not."""
        if not key.watermark:
            return self.watermark.with_key(key.key)
        return watermark_from(key.watermark, key.key).with_vocabulary(self.facts.vocab_size)

    def check_key(self, key: MarkKey) -> None:
        """Raise ApiError for a key whose texts this server would mark otherwise than detection expects."""
        if key.watermark and not reads_alike(self.watermark, self.mark_of(key)):
            raise ApiError(503, "this API key's texts are marked otherwise than this server does; ask its operator")

    def check_reach(self, marking: Marking, most: int) -> None:
        """Raise ApiError where only a found text may leave, and none of `most` tokens can be found."""
        if not marking.strict or marking.found_at is None:
            return
        if fewest := beyond_reach(self.watermark, marking.found_at, most):
            said = f"only found texts leave here, and one takes at least {fewest} tokens, got max_tokens {most}"
            raise ApiError(BAD, f"{said}; ask for more", code="unfound", parameter="max_tokens")

    def attempts(self, request: Request, stops: StopStrings, level: float, *, once: bool) -> FoundTexts:
        """How a text is tested at a level, and made again unless `once`."""
        most = 1 if once else self.settings.max_attempts
        settings = Settings(max_new_tokens=request.row.max_new_tokens, found_at=level, max_attempts=most)
        tries = [self._within(effort, request.row.strength_factor) for effort in self._efforts(settings)]
        return FoundTexts([request], self._trial(level), tries, Selection(weakest), stops, settings, self.policy)

    def p_value(self, text: str, key: Key) -> float:
        """Of a text under the key that marked it; safe to use from several threads."""
        [result] = self._trial(LEVEL).under(key)([text])  # type: ignore[misc]
        return float(result.p_value)

    def _made_trial(self, level: float) -> Trial:
        return Trial(Detector(self.tokenizer, self.watermark, level))

    def _efforts(self, settings: Settings) -> list[Effort]:
        return efforts(self.watermark, self.policy, settings)

    def _within(self, effort: Effort, own: float) -> Effort:
        """An effort no stronger than the plan, for a text whose own factor is `own`."""
        factor = min(effort.factor, self.factor / own)
        while factor * own > self.factor:  # rounding
            factor *= 1 - 2**-52
        return dataclasses.replace(effort, factor=factor)
