"""The plan of a server's decoder, which covers every possible request."""

import dataclasses
import functools
import secrets
from typing import Any

from caw.arguments import check_model, checked_mark
from caw.decoding.plan import Plan, make_plan
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.stopping import StopStrings
from caw.detectable.attempts import Attempts
from caw.detectable.efforts import check_strong, greatest_factor, steered
from caw.detectable.guarding import GuardedFirst
from caw.detectable.planned import attempts_of
from caw.detectable.search import TextRules
from caw.detectable.trial import Trial, beyond_reach, check_markable
from caw.detectable.windows import by_window
from caw.detection.detector import Detector
from caw.detection.family import level_of
from caw.models.facts import ModelFacts
from caw.models.sampling import model_sampling
from caw.policies import Policy
from caw.policies.base import MAX_STRENGTH
from caw.policies.mark import Mark
from caw.policies.recommended import Marks
from caw.serve.contracts import LEVEL, Key, MarkKey
from caw.serve.errors import BAD, ApiError
from caw.serve.marking import Marking, fewest_marked
from caw.serve.reading import Reading
from caw.serve.requests import MAX_TOP_K
from caw.serve.settings import ServerSettings
from caw.settings import Sampling, Settings
from caw.watermarks import Signature
from caw.watermarks.names import reads_alike

CACHED = 64  # levels whose tests are cached: one for each level of a tenant and number of its keys


class Planned(Reading):
    """The model, watermark, plan and tests of one server.

    Args:
        watermark: how texts are marked; its key is not used, every text brings its own.
        policy: None = the plain watermark, or the Recommended's own. With `rules.detectable_at` it gets that as its
            target, unless it has one.
        max_memory, compile: as in `caw.generate`.

    sampling: default sampling of requests, as from `caw.model_sampling`; {} = OpenAI's defaults.

    Raises TypeError or ValueError if these do not go together, NotImplementedError for a model that cannot branch.
    """

    def __init__(
        self, model: Any, tokenizer: Any, watermark: Signature, policy: Policy | None, settings: ServerSettings, *,
        max_memory: str | None = None, compile: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.facts = model, ModelFacts.of(model, tokenizer)
        facts = self.facts
        # a random key: a text marked by mistake without a tenant's own would be found by nobody, not by another tenant
        super().__init__(tokenizer, watermark.with_key(secrets.randbits(63)), settings, facts.vocab_size)
        check_markable(self.watermark)
        self.max_length = min(settings.max_length, facts.positions or settings.max_length)
        self.fewest = fewest_marked(self.watermark)
        self.sampling = model_sampling(model) if settings.sampling == "model" else {}
        RowSettings(**self.sampling)  # a config may suggest what cannot be
        level = settings.rules.detectable_at
        marks = Marks.of(self.watermark, policy, level)
        main, policy = checked_mark(marks.main, facts, tokenizer, sampled=True)
        check_model(facts, self.sampling)
        assert main is not None
        if level is not None:
            check_strong(policy, main)
            policy = steered(policy, Detector(tokenizer, self.watermark, level), main)
        self.marks = dataclasses.replace(marks, main=Mark(main, policy))
        self.factor = min(settings.max_factor, greatest_factor(main, policy))
        self.plan = self._plan(max_memory, compile)
        self._trial = functools.lru_cache(CACHED)(self._made_trial)

    def _plan(self, max_memory: str | None, compile: bool) -> Plan:
        limits = RowLimits(
            max_new_tokens=self.max_length, length=self.max_length, ends=max(1, len(self.facts.ends)), minimum=False,
            log_probs=True, strength_factor=self.factor if self.marks.race is None else MAX_STRENGTH,  # see `row_of`
            top_k=MAX_TOP_K, min_p=True, repetition_penalty=True, presence_penalty=True, frequency_penalty=True,
            logit_bias=True, counts_open=True,
        )  # fmt: skip
        # how fast one tenant's text is made must not say what is in another's
        settings = Settings(
            max_new_tokens=self.max_length, return_trace=False, max_memory=max_memory, compile=compile,
            speculate="own" if self.settings.drafts else None,
        )  # fmt: skip
        return make_plan(self.facts, *self.marks.main, settings, limits, self.settings.batch, race=self.marks.race)

    def check_key(self, key: MarkKey) -> None:
        """Raise ApiError for a key whose texts this server would mark differently from what detection expects."""
        if key.watermark and not reads_alike(self.watermark, self.mark_of(key)):
            raise ApiError(503, "this API key's watermark is not this server's; ask its operator")

    def factor_of(self, marking: Marking, sampling: Sampling) -> float:
        """Return the factor of a text's strength: a rule marks texts that race at full strength or not at all.

        Raises ApiError where a tenant's texts would need another strength than a race at full strength has.
        """
        mark = self.marks.kind(sampling)
        if mark is self.marks.race:
            return float(marking.factor > 0)
        if mark.races and marking.factor not in (0, 1):
            raise ApiError(500, "this server's race has one strength, this API key's rules another; ask its operator")
        return marking.factor

    def check_reach(self, marking: Marking, most: int, sampling: Sampling) -> None:
        """Raise ApiError if only detectable texts may be sent and none of `most` tokens can be detectable."""
        if not marking.strict or marking.level is None or most < marking.strict_from:
            return
        part = self.watermark.part_for(sampling)
        detectable = beyond_reach(part, level_of(marking.level, self.watermark, part), most)
        if fewest := detectable or marking.fewest * (most < marking.fewest):
            raise ApiError(
                BAD, f"this server sends only {'detectable' if detectable else 'marked'} texts, which have at least "
                f"{fewest} tokens, got max_tokens {most}; raise max_tokens",
                code="undetected", parameter="max_tokens",
            )  # fmt: skip

    def guards(self, row: RowSettings, *, whole: bool = False) -> bool:
        """Return whether texts like this are guarded if they are plain (`attempts`). whole: and not by windows."""
        guard = self.settings.guard
        return guard is not None and not (row.do_sample or row.log_probs or (whole and by_window(guard)))

    def attempts(
        self, request: Request, stops: StopStrings, level: float, *, once: bool, plain: bool = True,
        rules: TextRules | None = None, subkey: int | None = None,
    ) -> Attempts:  # fmt: skip
        """Return the attempts at a text with a test at this level; if `once`, as it is streamed, without retries.

        plain: whether all of its tokens are marked alike: only such texts are guarded. One that its guard cannot make
        detectable is marked as the others, unless it is streamed. rules: of its schema, None without one. subkey: what
        marked its beginning, None = nothing did.
        """
        row, most = request.row, 1 if once else self.settings.max_attempts
        settings = Settings(
            max_new_tokens=row.max_new_tokens, detectable_at=level, max_attempts=most, return_trace=False,
            do_sample=row.do_sample and row.begins,
        )  # fmt: skip
        greatest = self.factor
        if self.marks.race is not None and row.do_sample and not row.races:
            greatest = min(greatest / row.temperature, MAX_STRENGTH)  # see `row_of`
        given = [request], self._trial(level), self.marks.kind(row)
        marked = functools.partial(attempts_of, *given, settings, stops, greatest=greatest)
        if not (plain and self.guards(row)):
            return marked()
        asked = dataclasses.replace(settings, guard=self.settings.guard)
        guarded = attempts_of(*given, asked, stops, greatest=greatest, rules=rules, streams=once, subkey=subkey)
        return guarded if once else GuardedFirst(guarded, marked)

    def p_value(self, text: str, key: Key) -> float:
        """Return the p-value of a text under its marking key; thread-safe."""
        [result] = self._trial(LEVEL).under(key)([text])
        return float(result.p_value)

    def _made_trial(self, level: float) -> Trial:
        return Trial(Detector(self.tokenizer, self.watermark, level))
