"""The transformers way in: model.generate(**inputs, custom_generate=caw.decode, watermark=..., policy=...).

transformers prepares inputs, generation config, logits processors and stopping criteria; the decoding is this
library's. transformers drops `streamer=` for callables, so a streamer comes as `caw_streamer=`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers.generation import GenerateDecoderOnlyOutput

from caw.decoding.eval_mode import active_dropout
from caw.decoding.prompts import fit_budget
from caw.decoding.settings import MAX_SLOTS, Branching, DecodeSettings, marks_eos
from caw.decoding.slots import Decoder, candidate_slots
from caw.decoding.state import DecodeState
from caw.entrance import check_policy, check_watermark, ended_on_error
from caw.policies import Policy
from caw.watermarks import Watermark

EXTRA_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def decode(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    watermark: Watermark | None = None,
    policy: Policy | None = None,
    branching: Branching = "tree",
    seed: int | None = None,
    caw_streamer: Any = None,
    mark_eos: bool | None = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with a watermark inside `model.generate`.

    Args:
        input_ids: int64 [B, T], left-padded where `attention_mask` says so.
        watermark, policy, branching, mark_eos: as in `caw.generate`.
        seed: of the sampling noise; None draws one from torch's generator, so torch.manual_seed governs it.
        caw_streamer: a transformers streamer; one sequence only. It is given the prompt's ids [1, T] first, then each
            token, and its end() is called whatever happens.

    Returns:
        int64 [B, T + new] with padding after each end, or GenerateDecoderOnlyOutput if the config asks for it.

    Raises ValueError for beam search, guidance and outputs other than sequences, and where the model's logits become
    NaN or infinite.
    """
    with ended_on_error(caw_streamer):
        _check(generation_config, input_ids, caw_streamer)
        check_watermark(watermark)
        policy = check_policy(policy, model)
        prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
        settings = _settings(generation_config, input_ids.shape[1], branching, seed, watermark, policy, mark_eos)
        budgets = [fit_budget(model, len(p), settings.max_new_tokens, i) for i, p in enumerate(prompts)]
        capacity = max(len(p) + budget for p, budget in zip(prompts, budgets, strict=True))
        _warn_of_dropout(model)
        decoder = Decoder(model, watermark, policy, settings, len(prompts), capacity, keep_rows=True, keep_mode=True)
        pad = _pad_id(generation_config, settings)
        if logits_processor:
            decoder.stepper.warper = _ProcessorWarper(logits_processor, input_ids, decoder.state, pad)
        outputs = _outputs(decoder, prompts, budgets, input_ids, stopping_criteria, caw_streamer)
    sequences = _padded(input_ids, outputs, pad)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _warn_of_dropout(model: Any) -> None:
    dropping = active_dropout(model)
    if dropping:
        warnings.warn(
            f"the model is in train mode and {dropping} drops at random, which model.generate leaves on: equal calls "
            "give different tokens; call model.eval() before",
            stacklevel=4,
        )


def _outputs(
    decoder: Decoder,
    prompts: list[list[int]],
    budgets: list[int],
    input_ids: torch.Tensor,
    stopping_criteria: Any,
    streamer: Any,
) -> list[list[int]]:
    """New tokens of each row."""
    outputs: list[list[int]] = [[] for _ in prompts]

    def on_token(index: int, tokens: list[int]) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor(tokens[-1:]))
        row = torch.cat([input_ids[index], input_ids.new_tensor(tokens)])[None]
        return bool(stopping_criteria(row, None).all()) if stopping_criteria else False

    if streamer is not None:
        streamer.put(input_ids.cpu())
    for sequence in decoder.run(prompts, budgets, on_token):
        if sequence.error:
            raise ValueError(f"prompt {sequence.index}: {sequence.error}")
        outputs[sequence.index] = sequence.tokens
    if streamer is not None:
        streamer.end()
    return outputs


class _ProcessorWarper:
    """transformers' processors as a warper: they want the whole ids of each row, prompt included."""

    def __init__(self, processors: Any, input_ids: torch.Tensor, state: DecodeState, pad: int) -> None:
        self.processors, self.input_ids, self.state, self.pad = processors, input_ids, state, pad

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        state, out = self.state, logits.clone()
        new = state.padded_tokens[:, state.window :]
        new = torch.where(new < 0, self.pad, new)  # an ended row is padded, as in transformers
        # a row can lag a token behind the others (see Stepper); processors know only rows of one length, and some of
        # them count rows, so they get the whole batch for each length
        for count in torch.unique(state.counts[state.active]).tolist():
            scores = self.processors(torch.cat([self.input_ids, new[:, :count]], dim=1), logits.clone())
            rows = state.active & (state.counts == count)
            out[rows] = scores[rows]
        return out


def _check(config: Any, input_ids: torch.Tensor, streamer: Any) -> None:
    """Raise TypeError or ValueError for what this decoding cannot honour."""
    if config is None:
        raise TypeError("decode is called by model.generate(custom_generate=caw.decode), got no generation_config")
    if not input_ids.shape[1]:
        raise ValueError("input_ids must have at least one token, got none; inputs_embeds are not supported")
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams must be 1 for watermarked decoding, got {config.num_beams}; leave it out")
    if config.watermarking_config is not None:
        raise ValueError(
            "watermarking_config must be None beside a watermark of this library, or the text would carry two; use "
            "caw.KGW(format='transformers') for transformers' own"
        )
    if config.guidance_scale not in (None, 1, 1.0):
        raise ValueError(
            f"guidance_scale must be 1 for watermarked decoding, got {config.guidance_scale}; leave it out"
        )
    wanted = [name for name in EXTRA_OUTPUTS if getattr(config, name, None)]
    if config.return_dict_in_generate and wanted:
        raise ValueError(f"watermarked decoding returns sequences only, got {wanted[0]}=True; leave it out")
    if streamer is not None and input_ids.shape[0] != 1:
        raise ValueError(f"a streamer shows one text, so the batch must be 1, got {input_ids.shape[0]}")


def _prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    """Left-padded rows to plain id lists."""
    if attention_mask is None:
        return input_ids.tolist()
    prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
    if not all(prompts):
        raise ValueError(f"every prompt must have a token, row {prompts.index([])} is all padding; drop it")
    return prompts


def _settings(
    config: Any,
    length: int,
    branching: Branching,
    seed: int | None,
    watermark: Watermark | None,
    policy: Policy,
    mark_eos: bool | None,
) -> DecodeSettings:
    eos = config.eos_token_id
    ends = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ()).item()) if config.do_sample else 0
    most = DecodeSettings(slots=MAX_SLOTS, branching=branching)
    # as many slots as the ladder can have rungs, so that rows do not lag one another
    rungs = watermark.max_candidates if watermark is not None else 1
    slots = max(1, min(candidate_slots(watermark, policy, most), rungs))
    return DecodeSettings(
        max_new_tokens=config.max_length - length,
        branching=branching,
        do_sample=bool(config.do_sample),
        seed=seed,
        slots=slots,
        eos_token_ids=ends,
        trace=False,
        mark_eos=marks_eos(mark_eos, watermark),
    )


def _pad_id(config: Any, settings: DecodeSettings) -> int:
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    return settings.eos_token_ids[0] if settings.eos_token_ids else 0


def _padded(input_ids: torch.Tensor, outputs: list[list[int]], pad: int) -> torch.Tensor:
    longest = max(len(o) for o in outputs)
    new = [o + [pad] * (longest - len(o)) for o in outputs]
    return torch.cat([input_ids, input_ids.new_tensor(new)], dim=1)
