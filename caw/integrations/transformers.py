"""Watermarks in transformers' own `model.generate`: as a logits processor, and as a `custom_generate` folder."""

import copy
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers
from transformers import StopStringCriteria

from caw.arguments import check_policy, ended_on_error
from caw.custom_generate import decode
from caw.decoding.chooser import Chooser
from caw.decoding.request import requests_for
from caw.decoding.row_settings import RowSettings
from caw.io.show import shown
from caw.io.warn import warn_caller
from caw.models.ends import ids_of
from caw.policies import Policy
from caw.policies.mark import check_kinds
from caw.watermarks import Signature

FOLDER = str(Path(__file__).parent / "hub")  # for custom_generate=, in the layout of the hub
# decoding that does not take the token which the logits say; each with what turns it off
OTHER_DECODING: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "watermarking_config": (None,),
}


class LogitsProcessor(transformers.LogitsProcessor):
    """Mark what transformers' own `generate` writes: greedy and with do_sample=True.

        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        processor = LogitsProcessor(model, caw.KGW(key=42), attention_mask=inputs["attention_mask"])
        model.generate(**inputs, logits_processor=[processor], max_new_tokens=100)

    The tokens are those of `caw.generate` with the same settings. Each step, all scores but the chosen token's become
    -inf, so that whatever `generate` does afterwards takes it. Temperature, top-k, top-p and min-p of `generate` come
    after the choice and have no effect: give them in `settings`. Its penalties and bans come before it and count.

    A processor serves one call of `generate`. For every text that goes on otherwise than chosen (sampled beams,
    assisted generation, a processor that forces tokens) the call raises ValueError; an unmarked text is never the
    result.

    Args:
        model: the model that generates; its generation config says which tokens end a text and pad.
        watermark: KGW, Unigram, EXP or SynthID.
        policy: how strongly each token is marked; None = FixedStrength(1.0). No policy that reads the next position.
        settings: of all texts, or one per row; None = greedy, with a warning if `generate` samples.
        attention_mask: int [B, T], the one that `generate` gets; None = no row is padded. With num_return_sequences
            each of its rows stands for that many texts.
        generation_config: the one that `generate` gets; None = the model's.
        mark_eos: as in `caw.generate`.
        tokenizer: the model's, which a universal evaluator reads its token classes from; None = unknown.

    Raises TypeError or ValueError, in one sentence, for decoding that does not take the chosen token where the
    generation config asks for it: beam search, contrastive search, DoLa, assisted generation. Where only an argument of
    `generate` asks for beams, greedy ones all write the marked text, and sampled ones raise.
    """

    def __init__(
        self,
        model: Any,
        watermark: Signature,
        policy: Policy | None = None,
        *,
        settings: RowSettings | Sequence[RowSettings] | None = None,
        attention_mask: torch.Tensor | None = None,
        generation_config: Any = None,
        mark_eos: bool | None = None,
        tokenizer: Any = None,
    ) -> None:
        check_kinds(watermark)
        self._watermark, self._mark_eos, self._tokenizer = watermark, mark_eos, tokenizer
        name = str(getattr(model.config, "_name_or_path", "") or "")
        self._policy = None if policy is None else check_policy(policy, name, tokenizer)
        config = model.generation_config if generation_config is None else generation_config
        _refuse_other_decoding(config)
        self._given = settings is not None
        if config.do_sample:
            self._warn_of_sampling("the generation config")
        self._ends = ids_of(config.eos_token_id)
        self._pad = next(iter([*ids_of(config.pad_token_id), *self._ends]), 0)
        self._settings, self._mask = settings or RowSettings(), attention_mask
        self._chooser: Chooser | None = None
        self._seen = torch.empty(0)
        self._made: list[list[int]] = []
        self._chosen: dict[int, int] = {}  # by row that goes on

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [B, V], -inf but for each row's chosen token; input_ids: int64 [B, T], the texts so far."""
        if self._chooser is None:
            self._start(input_ids, scores)
        else:
            self._follow(input_ids)
        self._seen = input_ids.clone()
        marked = torch.full_like(scores, -torch.inf)
        going = sorted(self._chosen)
        rested = [row for row in range(len(scores)) if row not in self._chosen]
        marked[rested, self._pad] = 0.0  # `generate` writes padding there anyway
        if going:
            assert self._chooser is not None
            tokens = self._chooser.choose(scores[going], going)
            marked[going, tokens] = scores[going, tokens]
            self._chosen = dict(zip(going, tokens.tolist(), strict=True))
        return marked

    def _warn_of_sampling(self, what: str) -> None:
        if not self._given:
            warn_caller(
                f"{what} samples, but the processor chooses by its own settings, got none, so texts are greedy; give "
                "settings=caw.RowSettings(do_sample=True, temperature=...), or caw.RowSettings()"
            )
        self._given = True

    def _start(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        if not self._given and _samples():
            self._warn_of_sampling("this call of generate")
        prompts = self._prompts(input_ids)
        rows = [self._settings] * len(prompts) if isinstance(self._settings, RowSettings) else list(self._settings)
        if len(rows) != len(prompts):
            raise ValueError(f"settings must be one per row, {len(prompts)}, got {len(rows)}; give one for all")
        self._chooser = Chooser(
            self._watermark, self._policy, vocab_size=scores.shape[1], rows=len(prompts), ends=self._ends,
            mark_eos=self._mark_eos, device=scores.device, tokenizer=self._tokenizer,
        )  # fmt: skip
        for row, request in enumerate(requests_for(prompts, [own.max_new_tokens for own in rows], rows)):
            self._chooser.start(row, request.ids, request.row, occurrence=request.occurrence)
        self._made = [[] for _ in prompts]
        self._chosen = dict.fromkeys(range(len(prompts)), -1)

    def _prompts(self, input_ids: torch.Tensor) -> list[list[int]]:
        """The ids of each row without padding."""
        if self._mask is None:
            return input_ids.tolist()
        mask = self._mask.to(input_ids.device).bool()
        if mask.shape[1] != input_ids.shape[1] or input_ids.shape[0] % mask.shape[0]:
            raise ValueError(
                f"attention_mask must be the one that generate gets, for ids {list(input_ids.shape)}, got "
                f"{list(mask.shape)}; give each call of generate a processor of its own"
            )
        mask = mask.repeat_interleave(input_ids.shape[0] // mask.shape[0], dim=0)
        return [ids[own].tolist() for ids, own in zip(input_ids, mask, strict=True)]

    def _follow(self, input_ids: torch.Tensor) -> None:
        """Take up what `generate` has written since; ValueError where that is not what was chosen."""
        assert self._chooser is not None
        before, last = self._seen, input_ids[:, -1].tolist()
        if input_ids.shape != (before.shape[0], before.shape[1] + 1) or not torch.equal(input_ids[:, :-1], before):
            raise ValueError(
                "a processor must see each text of one call of generate grow by a token at a time, got other ids; "
                "leave out beam search and assisted generation, and give each call a processor of its own"
            )
        for row, chosen in list(self._chosen.items()):
            token = last[row]
            if token not in (chosen, self._pad):
                raise ValueError(
                    f"row {row} must go on with the token chosen for it, got another; leave out beam search, assisted "
                    "generation and processors that force tokens"
                )
            self._made[row].append(token)
            if token == chosen:
                self._chooser.resume(row, self._made[row])
            if token != chosen or token in self._ends:  # `generate` pads a row that a stopping criterion has ended
                self._chooser.drop(row)
                del self._chosen[row]


def generate(
    model: Any,
    watermark: Signature | None = None,
    policy: Policy | None = None,
    *,
    streamer: Any = None,
    tokenizer: Any = None,
    assistant_model: Any = None,
    **options: Any,
) -> Any:
    """What `model.generate(custom_generate=FOLDER, trust_remote_code=True, ...)` calls: texts by `caw.decode`.

    Unlike `custom_generate=caw.decode`, which transformers calls without them, it takes `streamer`, and
    `tokenizer` for `stop_strings`.

    Args:
        watermark, policy: as in `caw.generate`.
        options: all others of `model.generate` and of `caw.decode`.

    Returns:
        What `caw.decode` returns. Raises what it raises, and ValueError for an assistant model.
    """
    with ended_on_error(streamer):
        if assistant_model is not None:
            raise ValueError("assistant_model must be None, as drafts are looked up in the text, got one; leave it out")
        given = {name: value for name, value in options.items() if value is not None or name == "speculate"}
        given = _with_stop_strings(model, tokenizer, given)
        own = functools.partial(decode, watermark=watermark, policy=policy)
        named = {"caw_streamer": streamer, "caw_tokenizer": tokenizer}
        given |= {name: value for name, value in named.items() if value is not None}
        return model.generate(custom_generate=own, **given)


def _with_stop_strings(model: Any, tokenizer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options with stop strings as a stopping criterion, which is all that reaches `caw.decode`."""
    config = options.get("generation_config") or model.generation_config
    strings = options.pop("stop_strings", None) or config.stop_strings
    if not strings:
        return options
    if tokenizer is None:
        raise ValueError(f"stop_strings need tokenizer=, the model's, got {shown(strings)} without; give both")
    config = copy.deepcopy(config)
    config.stop_strings = None
    criterion = StopStringCriteria(tokenizer, strings)
    return {
        **options,
        "generation_config": config,
        "stopping_criteria": [*options.get("stopping_criteria", ()), criterion],
    }


def _samples() -> bool:
    """Return whether the `generate` around this call samples. Its arguments reach no processor: its frame has them."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        config = frame.f_locals.get("generation_config")
        if isinstance(config, transformers.GenerationConfig):
            return bool(config.do_sample)
        frame = frame.f_back
    return False


def _refuse_other_decoding(config: Any) -> None:
    for name, off in OTHER_DECODING.items():
        value = getattr(config, name, None)
        if value not in off:
            raise ValueError(
                f"{name} must be off beside a watermark's processor, got {shown(value)}; leave it out: what it decodes "
                "with does not take the token that was chosen"
            )
