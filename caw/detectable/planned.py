"""Plan the attempts of a call: one, several that are tested, or one that is guarded."""

from collections.abc import Sequence
from typing import Any

from caw.decoding.prompt_cache import PromptCache
from caw.decoding.request import Request
from caw.decoding.stopping import StopStrings
from caw.detectable.attempts import Attempts, DetectableTexts, OneAttempt
from caw.detectable.efforts import check_guarded, check_strong, efforts, greatest_factor, refuse_idle, steered
from caw.detectable.guarding import GuardedTexts
from caw.detectable.search import TextRules
from caw.detectable.selection import Selection, selection_of, weakest
from caw.detectable.trial import Trial, make_trial
from caw.detection.detector import Detector
from caw.models.facts import ModelFacts
from caw.policies.base import MAX_STRENGTH
from caw.policies.mark import Mark
from caw.settings import Settings
from caw.watermarks import Signature


def plan_attempts(
    requests: Sequence[Request], facts: ModelFacts, mark: Mark, settings: Settings, *, model: Any, stops: StopStrings,
    detector: Detector | None, prompts: PromptCache | None, reader: Signature | None = None, streams: bool = False,
) -> Attempts:  # fmt: skip
    """Plan the attempts of a call's settings. TypeError or ValueError if they are impossible.

    reader: the caller's watermark, which the test reads; None = the one that marks. streams: whether the text is shown
    while it is made.
    """
    if settings.level is None:
        refuse_idle(settings, *(["detector"] if detector is not None else []))
        return OneAttempt(requests, mark.policy, prompts)
    watermark = None if mark.watermark is None else mark.watermark.with_vocabulary(facts.vocab_size)
    most = max((min(request.budget, request.row.max_new_tokens) for request in requests), default=1)
    tested = watermark if reader is None or reader is mark.watermark else reader
    trial = make_trial(settings, detector, tested, stops.tokenizer, most)
    assert watermark is not None
    policy = steered(mark.policy, trial.detector, watermark)
    check_guarded(settings, [request.row.do_sample for request in requests])
    return attempts_of(
        requests, trial, Mark(watermark, policy), settings, stops, prompts=prompts, shared=facts.mesh is None,
        selection=selection_of(settings.select, settings.best_of, model), streams=streams,
    )  # fmt: skip


def attempts_of(
    requests: Sequence[Request], trial: Trial, mark: Mark, settings: Settings, stops: StopStrings, *,
    selection: Selection | None = None, greatest: float = MAX_STRENGTH, prompts: PromptCache | None = None,
    shared: bool = False, rules: TextRules | None = None, streams: bool = False, subkey: int | None = None,
) -> Attempts:  # fmt: skip
    """Return the attempts at texts that are tested: guarded ones, if the settings have a guard, else marked ones.

    selection: None = the first that is detected. greatest: factor of the policy's strength that a text may have.
    shared: whether attempts may share a cache of prompts of their own. Of a guarded text: rules of its tokens; streams,
    whether it is shown while it is made; subkey, what marked its beginning, None = nothing did.
    """
    watermark, policy = mark
    assert watermark is not None
    if settings.guard is not None:
        check_strong(policy, watermark)
        assert len({one.row.strength_factor for one in requests}) <= 1, (
            "guarded texts are greedy, one server's or call's"
        )
        most, factor = min(greatest, greatest_factor(watermark, policy)), requests[0].row.strength_factor
        strengths = sorted({min(each * factor, most) for each in settings.guard.strengths})
        given = requests, settings.guard, strengths, trial, stops, settings, policy, prompts, rules
        return GuardedTexts(*given, streams=streams, subkey=subkey)
    selection = selection or Selection(weakest)
    planned = efforts(watermark, policy, settings, unmarked=selection.unmarked)
    # processes that split a model keep different prompts; one attempt reads each prompt once anyway
    apart = shared and prompts is None and len(planned) > 1
    return DetectableTexts(
        requests, trial, planned, selection, stops, settings, policy, PromptCache() if apart else prompts, forget=apart,
        greatest=greatest,
    )  # fmt: skip
