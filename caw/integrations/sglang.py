"""Watermarks in SGLang: a custom logit processor, on `caw.Chooser`.

    CAW_SGLANG_CONFIG=marks.json python -m sglang.launch_server --model-path MODEL \\
        --enable-custom-logit-processor --disable-overlap-schedule

SGLang takes a processor from each request, as a string: `LogitProcessor.to_str()`. It names this class and holds no
code. The module is imported without SGLang too.
"""

import functools
import importlib
import json
import pickle
import random
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import torch

from caw.decoding.row_settings import RowSettings
from caw.integrations.engine_texts import EngineText, EngineTexts, row_settings
from caw.integrations.profiles import Profile, marks
from caw.io.show import shown

VARIABLE = "CAW_SGLANG_CONFIG"
TRIED = (0, 5, 23)  # the version whose interface this follows
LONGEST = 1 << 24  # tokens of a text of which no other limit is known
ROWS = 256  # texts at once, where the server has no limit of its own
# what can end or steer a text, so that it has no free beginning
BOUND = ("stop_strs", "stop_regex_strs", "logit_bias", "json_schema", "regex", "ebnf", "structural_tag")


def _base() -> type:
    try:
        return importlib.import_module("sglang.srt.sampling.custom_logit_processor").CustomLogitProcessor
    except ImportError:
        return object


class LogitProcessor(_base()):  # type: ignore[misc]
    """Mark the texts of SGLang's server, with the tokens that `caw.generate` chooses from the same logits.

    A request has `custom_logit_processor=LogitProcessor.to_str()` and `custom_params`: {"caw_profile": NAME}, or {} for
    the default of the file that CAW_SGLANG_CONFIG names (`caw.integrations.profiles`). Greedy requests are marked too.
    Each step, all logits but the chosen token's become -inf.

    SGLang shows a processor no request before it runs, so what cannot be marked ends there: a request with another
    profile or of a beam search is answered with 400, and every request with 500 where the server has
    another version, overlapped scheduling or speculation. An unmarked text is never the result of a request that
    brought the processor; one that did not bring it is not marked.
    """

    @classmethod
    def to_str(cls) -> str:
        """What a request sends: the name of this class, in the form that SGLang reads."""
        return json.dumps({"callable": pickle.dumps(cls).hex()})

    def __call__(
        self, logits: torch.Tensor, custom_param_list: Sequence[Mapping[str, Any] | None] | None = None
    ) -> torch.Tensor:
        """Logits float [rows, V], changed: all but each row's chosen token are -inf.

        custom_param_list: of each row what its request gave, and the request itself as `__req__`.
        """
        _engine(logits.device, logits.shape[1]).mark(logits, custom_param_list or [])
        return logits


@functools.cache  # SGLang makes a processor for every batch; the texts outlive them
def _engine(device: torch.device, vocab_size: int) -> "_Engine":
    return _Engine(device, vocab_size)


@dataclass
class _Request:
    """A request of SGLang's that is marked. text: None where it cannot be, and has been told."""

    text: EngineText | None
    ends: tuple[int, ...] = field(default=())


class _Engine:
    """The texts of a scheduler's process. SGLang says nothing when a request ends: it is gone when it is freed."""

    def __init__(self, device: torch.device, vocab_size: int) -> None:
        server = importlib.import_module("sglang.srt.runtime_context").get_server_args()
        self.refusal = refusal_of(server)
        self._seeds = random.Random(f"{server.random_seed}")  # alike in all processes that hold parts of a model
        self._requests: weakref.WeakKeyDictionary[Any, _Request] = weakref.WeakKeyDictionary()
        self._gone: list[EngineText] = []
        try:
            self.marks = marks(VARIABLE)
            rows = server.max_running_requests or ROWS
            tokenizer = getattr(server, "tokenizer_path", None) or getattr(server, "model_path", None)
            self.texts = EngineTexts(
                self.marks.profiles.values(), vocab_size, rows, device, tokenizer, getattr(server, "revision", None)
            )
        except (ImportError, OSError, TypeError, ValueError) as error:
            self.refusal = self.refusal or str(error)

    def mark(self, logits: torch.Tensor, given: Sequence[Mapping[str, Any] | None]) -> None:
        """Choose the tokens of the rows of logits [rows, V]."""
        while self._gone:
            self.texts.drop(self._gone.pop())
        asked = {row: self._request(own) for row, own in enumerate(given)}
        asked = {row: request for row, request in asked.items() if request.inflight_middle_chunks <= 0}
        texts: dict[int, EngineText] = {}
        for row, request in asked.items():
            if request not in self._requests:
                self._begin(request, given[row] or {})
            text = self._requests[request].text
            if text is not None:
                text.ids = list(request.output_ids)
                texts[row] = text
        if len({id(text) for text in texts.values()}) < len(texts):
            self._end_all(asked, texts, "a marked request must have one row a step, got drafts too; leave them out")
        if texts:
            self._make_room(texts)
        for row in [*texts]:
            try:
                self.texts.follow(texts[row], logits.shape[1])
            except ValueError as error:
                self._end(asked[row], str(error), HTTPStatus.INTERNAL_SERVER_ERROR)
                del texts[row]
        if texts:
            self._choose(logits, asked, texts)
        for row, request in asked.items():
            if self._requests[request].text is None:  # what is emitted before the error arrives is empty
                logits[row] = -torch.inf
                logits[row, min(self._requests[request].ends, default=0)] = 0.0

    def _choose(self, logits: torch.Tensor, asked: Mapping[int, Any], texts: dict[int, EngineText]) -> None:
        try:
            for places, tokens in self.texts.choose(logits, texts, repeated=False):
                logits[places] = -torch.inf
                logits[places, tokens] = 0.0
        except ValueError as error:
            self._end_all(asked, texts, str(error))

    def _request(self, own: Mapping[str, Any] | None) -> Any:
        """The request of a row; SGLang gives a weak proxy, which is no key and cannot be watched."""
        if not own or "__req__" not in own:
            raise ValueError(
                "custom_params must be an object beside caw's processor, got none; send {} for the default"
            )
        return own["__req__"].finished.__self__

    def _begin(self, request: Any, given: Mapping[str, Any]) -> None:
        """Take up a request that has not been seen."""
        ends = ends_of(request)
        self._requests[request] = _Request(None, ends)
        if self.refusal is not None:
            self._end(request, self.refusal, HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        try:
            profile = self.marks.chosen({k: v for k, v in given.items() if k != "__req__"}, "custom_params")
            if profile is None:
                raise ValueError("caw_profile must not be 'off' beside caw's processor; leave the processor out")
            text = self._text(request, profile, ends)
        except (TypeError, ValueError) as error:
            self._end(request, str(error), HTTPStatus.BAD_REQUEST)
            return
        self._requests[request].text = text
        weakref.finalize(request, self._gone.append, text).atexit = False

    def _text(self, request: Any, profile: Profile, ends: tuple[int, ...]) -> EngineText:
        settings = settings_of(request.sampling_params, ends, self._seeds.getrandbits(63), profile.watermark.window)
        json = getattr(request.sampling_params, "json_schema", None) is not None
        return EngineText(profile, settings, list(request.origin_input_ids), [], json=json)

    def _make_room(self, texts: Mapping[int, EngineText]) -> None:
        """Take the rows of texts that wait; they begin again with the ids that they have."""
        now = {id(text) for text in texts.values()}
        held = [own.text for own in self._requests.values() if own.text is not None and own.text.chooser is not None]
        new = sum(text.chooser is None for text in texts.values())
        waiting = [text for text in held if id(text) not in now]
        for text in waiting[: max(0, len(held) + new - self.texts.rows)]:
            self.texts.drop(text)

    def _end_all(self, asked: Mapping[int, Any], texts: dict[int, EngineText], why: str) -> None:
        for row in [*texts]:
            self._end(asked[row], why, HTTPStatus.INTERNAL_SERVER_ERROR)
            del texts[row]

    def _end(self, request: Any, why: str, status: HTTPStatus) -> None:
        """End a request with an error in one sentence, and no text."""
        text, self._requests[request].text = self._requests[request].text, None
        if text is not None:
            self.texts.drop(text)
        kind = "BadRequestError" if status == HTTPStatus.BAD_REQUEST else "InternalServerError"
        abort = importlib.import_module("sglang.srt.managers.schedule_batch").FINISH_ABORT
        request.to_finish = abort(why, status, kind)


def settings_of(params: Any, ends: tuple[int, ...], seed: int, window: int = 0) -> RowSettings:
    """What SGLang's SamplingParams say of a text, whose penalties the logits have already; ValueError, in one sentence,
    for what cannot be marked.

    ends: token ids that end it. seed: of a request that has none. window: of the watermark.
    """
    if (width := getattr(params, "beam_width", None)) is not None:
        raise ValueError(f"beam_width must be None in a watermarked request, got {shown(width)}; leave it out")
    drawn = params.top_k > 1  # SGLang says 1 for greedy, and 2^30 for the whole vocabulary
    most = LONGEST if params.max_new_tokens is None else min(params.max_new_tokens, LONGEST)
    return row_settings(
        params, max(most, 1), seed if params.sampling_seed is None else params.sampling_seed, window, BOUND,
        drawn=drawn, top_k=params.top_k if drawn and params.top_k < 1 << 30 else 0, ends=ends,
    )  # fmt: skip


def ends_of(request: Any) -> tuple[int, ...]:
    """The token ids at which SGLang ends a request, ascending."""
    params, tokenizer = request.sampling_params, request.tokenizer
    if params.ignore_eos:  # the request's own end tokens too
        return ()
    own = getattr(tokenizer, "eos_token_id", None), *(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    ends = {*(params.stop_token_ids or ()), *(request.eos_token_ids or ()), *own}
    return tuple(sorted(ends - {None}))


def refusal_of(server: Any) -> str | None:
    """Why texts cannot be marked in a server with these arguments, in one sentence; None if they can."""
    version, low = str(importlib.import_module("sglang").__version__), ".".join(map(str, TRIED))
    found = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)", version)
    if found is None or tuple(map(int, found.groups())) != TRIED:
        return f"sglang must be {low}, got {version}; install 'sglang=={low}'"
    if not server.disable_overlap_schedule:
        return "overlapped scheduling hides each text's last token from processors; add --disable-overlap-schedule"
    if server.speculative_algorithm is not None:
        return "a server that marks must not have speculative decoding, got it; leave --speculative-algorithm out"
    return None
