"""Watermarks in vLLM: a logits processor for its server, on `caw.Chooser`.

    CAW_VLLM_CONFIG=marks.json vllm serve MODEL --logits-processors caw.integrations.vllm:LogitsProcessor

vLLM has two interfaces, for the V1 model runner (rows of a batch that move, ids on the host) and for V2 (slots, ids on
the device). The class here has both, and vLLM calls the one of its runner. It is imported without vLLM too.
"""

import importlib
import logging
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from caw.decoding.penalties import COLUMNS
from caw.decoding.row_settings import RowSettings
from caw.integrations.engine_texts import EngineText, EngineTexts, row_settings
from caw.integrations.profiles import Profile, ProfileFile, marks
from caw.io.show import shown

VARIABLE = "CAW_VLLM_CONFIG"
LONGEST = 1 << 24  # tokens of a text of which no other limit is known
GREEDY = 1e-5  # temperature below which vLLM is greedy
# what can end or steer a text, so that it has no free beginning
BOUND = ("stop", "logit_bias", "allowed_token_ids", "bad_words", "structured_outputs")
# what vLLM forces after the choice
REFUSED = ("thinking_token_budget", "trace_decode_token_ids")
FORCED = 1e30  # of the chosen token: above every logit, and finite after any temperature
TRIED = (0, 32), (0, 34)  # from the one version up to, not with, the other
INTERFACES = ("vllm.v1.sample.logits_processor", "vllm.v1.worker.gpu.sample.logits_processor")


def _bases() -> tuple[type, ...]:
    """vLLM's classes of processors, those that it has."""
    found = []
    for name in INTERFACES:
        try:
            found.append(importlib.import_module(name).LogitsProcessor)
        except ImportError:
            continue
    return tuple(found)


class LogitsProcessor(*_bases()):  # type: ignore[misc]
    """Mark the texts of vLLM's server, with the tokens that `caw.generate` chooses from the same logits.

    Name it in `--logits-processors caw.integrations.vllm:LogitsProcessor`; profiles and keys are in the file that
    CAW_VLLM_CONFIG names (`caw.integrations.profiles`). A request chooses its profile by `vllm_xargs`:
    {"caw_profile": NAME}, or "off" where the file has opt_out. Greedy requests are marked too. Each step, the chosen
    token's logit becomes 1e30, so that vLLM's sampler takes it.

    A request that cannot be marked is refused with ValueError, which the server answers with 400: an unknown profile,
    a thinking budget, beam search. An engine that cannot be marked is refused with RuntimeError at its
    start: another version of vLLM, speculative decoding, prompts as embeddings, vLLM's own watermark. Where ids are
    missing or are not those chosen, the engine stops with ValueError; an unmarked text is never the result.

    Args:
        vllm_config: vLLM's.
        place: the device of the logits (V1), or the runner's state of its requests (V2).
        is_pin_memory: of V1 alone; not used.
    """

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a request that cannot be marked as it asks."""
        asked(marks(VARIABLE), sampling_params)

    def __init__(self, vllm_config: Any, place: Any, is_pin_memory: bool | None = None) -> None:
        check_version()
        _check_engine(vllm_config)
        of_v2 = is_pin_memory is None
        rows = place.max_num_reqs if of_v2 else vllm_config.scheduler_config.max_num_seqs
        texts = _Texts(vllm_config, rows, place.device if of_v2 else place)
        self._runner: Any = _V2(texts, place) if of_v2 else _V1(texts)

    def is_argmax_invariant(self) -> bool:
        """False: greedy requests are marked too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """V1: requests came, went or moved; None = they did not."""
        if batch_update is not None:
            self._runner.update_state(batch_update)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """V2: a request takes a slot; whether it is marked."""
        return bool(self._runner.add_request(req_idx, sampling_params))

    def apply_staged_writes(self) -> None:
        """V2: nothing is staged."""

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Logits float32 [rows, V], changed: the chosen token of each marked row has 1e30. ctx: of V2 alone."""
        self._runner.apply(logits, *[ctx][: ctx is not None])
        return logits


# Texts ------------------------------------------------------------------------------------------------------------


class _Texts:
    """The marked requests of an engine."""

    def __init__(self, vllm_config: Any, rows: int, device: torch.device) -> None:
        self.marks, model = marks(VARIABLE), vllm_config.model_config
        logging.getLogger("vllm.caw").info("%s", self.marks)  # vLLM's own handler shows what is below its name
        self.longest = model.max_model_len
        # processes that hold parts of one model must draw the same for a request without a seed
        rank = getattr(getattr(vllm_config, "parallel_config", None), "data_parallel_rank", 0)
        self._seeds = random.Random(f"{model.seed} {rank}")
        self.all = EngineTexts(
            self.marks.profiles.values(), model.get_vocab_size(), rows, device, getattr(model, "tokenizer", None),
            getattr(model, "tokenizer_revision", None),
        )  # fmt: skip

    def asked(self, params: Any, prompt: Sequence[int] | None, ids: list[int]) -> EngineText | None:
        """A text for a request, None where it is not marked."""
        profile = asked(self.marks, params)
        if profile is None:
            return None
        # V1 shows no logits with penalties: it applies them to what was chosen, which they do not undo
        penalties = COLUMNS if prompt is not None else ()
        seed = self._seeds.getrandbits(63)
        settings = settings_of(params, self.longest, seed, profile.watermark.window, penalties)
        form = getattr(params, "structured_outputs", None)
        json = getattr(form, "json", None) is not None or bool(getattr(form, "json_object", None))
        return EngineText(profile, settings, prompt, ids, json=json)

    def drop(self, text: EngineText | None) -> None:
        """A text has left the batch."""
        self.all.drop(text)

    def mark(self, logits: torch.Tensor, texts: Mapping[int, EngineText]) -> None:
        """Choose the tokens of texts, by row of the logits, whose ids are up to date."""
        for places, tokens in self.all.choose(logits, texts, repeated=True):  # unfinished prompts are asked about too
            logits[places, tokens] = FORCED


# Runners ----------------------------------------------------------------------------------------------------------


class _V1:
    """The V1 runner: requests have rows of the batch, and move in it."""

    def __init__(self, texts: _Texts) -> None:
        self._texts, self._rows = texts, dict[int, EngineText]()

    def update_state(self, update: Any) -> None:
        for row in update.removed:
            self._put(row, None)
        for row, params, prompt, ids in update.added:
            self._put(row, self._texts.asked(params, prompt, ids))
        for source, to, how in update.moved:
            moved, replaced = self._rows.pop(source, None), self._rows.pop(to, None)
            if how.name == "SWAP":
                self._put(source, replaced)
            else:  # who was there has ended, and is not among those removed
                self._texts.drop(replaced)
            self._put(to, moved)

    def apply(self, logits: torch.Tensor) -> None:
        self._texts.mark(logits, self._rows)

    def _put(self, row: int, text: EngineText | None) -> None:
        self._texts.drop(self._rows.pop(row, None))
        if text is not None:
            self._rows[row] = text


class _V2:
    """The V2 runner: requests have slots; their ids are on the device, and nobody says when one ends."""

    def __init__(self, texts: _Texts, states: Any) -> None:
        self._texts, self._states, self._slots = texts, states, dict[int, EngineText]()

    def add_request(self, slot: int, params: Any) -> bool:
        self._texts.drop(self._slots.pop(slot, None))
        text = self._texts.asked(params, None, [])
        if text is not None:
            self._slots[slot] = text
        return text is not None

    def apply(self, logits: torch.Tensor, context: Any) -> None:
        slots = context.expanded_idx_mapping.tolist()
        marked = {row: slot for row, slot in enumerate(slots) if slot in self._slots}
        if len(set(marked.values())) < len(marked):
            raise ValueError("a marked request must have one row a step, got drafts too; switch speculation off")
        if not marked:
            return
        totals = self._states.total_len.gpu[list(marked.values())].tolist()
        for slot, total in zip(marked.values(), totals, strict=True):
            self._read(self._slots[slot], slot, total)
        self._texts.mark(logits, {row: self._slots[slot] for row, slot in marked.items()})

    def _read(self, text: EngineText, slot: int, total: int) -> None:
        """Copy the ids of a slot that have come since."""
        ids, begin = self._states.all_token_ids.gpu[slot], int(self._states.prompt_len.np[slot])
        if text.prompt is None:
            text.prompt = ids[:begin].tolist()
        del text.ids[total - begin :]
        text.ids.extend(ids[begin + len(text.ids) : total].tolist())


# What requests ask for ----------------------------------------------------------------------------------------------


def asked(marks: ProfileFile, params: Any) -> Profile | None:
    """The profile of a request, None = unmarked. ValueError if it cannot be marked as its SamplingParams ask."""
    profile = marks.chosen(params.extra_args or {}, "vllm_xargs")
    if profile is not None:
        _refuse(params)
        settings_of(params, LONGEST, 0, penalties=COLUMNS)
    return profile


def settings_of(params: Any, longest: int, seed: int, window: int = 0, penalties: Sequence[str] = ()) -> RowSettings:
    """What vLLM's SamplingParams say of a text; ValueError for numbers that cannot be.

    longest: the most tokens of a text. seed: of a request that has none. window: of the watermark. penalties: those
    that the chooser applies.
    """
    drawn = params.temperature >= GREEDY
    most = longest if params.max_tokens is None else min(params.max_tokens, longest)
    return row_settings(
        params, most, seed if params.seed is None else params.seed, window, BOUND, drawn=drawn,
        top_k=max(params.top_k, 0), ends=tuple(sorted(params.all_stop_token_ids)), penalties=penalties,
    )  # fmt: skip


def _refuse(params: Any) -> None:
    for name in REFUSED:
        if (value := getattr(params, name, None)) is not None:
            raise ValueError(f"{name} must be None in a watermarked request, got {shown(value)}; leave it out")
    if params.max_tokens == 1 and (params.logprobs or 0) > 1:  # so vLLM asks for each step of a beam search
        raise ValueError(
            "a watermarked request must not be a step of a beam search (max_tokens 1 with several logprobs), whose "
            "texts would not be marked; ask for 2 tokens, or without logprobs"
        )


# What vLLM must be ------------------------------------------------------------------------------------------------


def check_version() -> None:
    """Raise RuntimeError unless the installed vLLM is one that this has been tried with."""
    version = str(getattr(importlib.import_module("vllm"), "__version__", "unknown"))
    found = re.match(r"([0-9]+)\.([0-9]+)", version)
    low, high = (".".join(map(str, own)) for own in TRIED)
    if found is None or not TRIED[0] <= (int(found[1]), int(found[2])) < TRIED[1]:
        raise RuntimeError(f"vllm must be >= {low} and < {high}, got {version}; install 'vllm>={low},<{high}'")


def _check_engine(vllm_config: Any) -> None:
    """Raise RuntimeError for what would take tokens that were not chosen, or hide what was read."""
    refused: dict[str, tuple[Any, str]] = {
        "speculative decoding": (vllm_config.speculative_config, "leave --speculative-config out"),
        "prompts as embeddings": (
            getattr(vllm_config.model_config, "enable_prompt_embeds", False), "leave --enable-prompt-embeds out",
        ),
        "vLLM's own watermark": (getattr(vllm_config, "watermark_config", None), "leave --watermark-config out"),
    }  # fmt: skip
    for what, (given, remedy) in refused.items():
        if given:
            raise RuntimeError(f"an engine that marks must not have {what}, got it; {remedy}")
