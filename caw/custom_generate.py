"""The transformers entry point: model.generate(**inputs, custom_generate=caw.decode, watermark=..., policy=...).

transformers prepares inputs, generation config, logits processors and stopping criteria; this library decodes.
transformers drops `streamer=` and `tokenizer=` for callables, so pass them as `caw_streamer=` and `caw_tokenizer=`.
"""

from dataclasses import replace
from typing import Any

import torch
from transformers.generation import (
    GenerateDecoderOnlyOutput,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from caw.arguments import checked_mark, ended_on_error
from caw.decoding.decoder import Decoder
from caw.decoding.plan import make_plan
from caw.decoding.plan_defaults import candidate_slots
from caw.decoding.prompts import PromptWarning, Remark, fit_budget
from caw.decoding.request import ActiveSequence, requests_for
from caw.decoding.row_settings import RowLimits, RowSettings
from caw.decoding.texts import Texts
from caw.io.show import shown
from caw.io.warn import warn_caller
from caw.models.ends import ids_of
from caw.models.facts import ModelFacts
from caw.models.parts import looked_at_once
from caw.policies import Policy
from caw.policies.mark import check_kinds
from caw.policies.recommended import mark_of, row_of
from caw.settings import DRAWING, MAX_SLOTS, ONE_TOKEN, WHERE_IT_PAYS, Settings
from caw.watermarks import Signature, Watermark

# processors known to compute scores from their ids and scores alone, without state
FORGETFUL = (
    LogitNormalization, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor, MinPLogitsWarper,
    NoBadWordsLogitsProcessor, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper,
)  # fmt: skip
# whose texts are not those of the logits
OTHER_DECODING = ("penalty_alpha", "dola_layers", "force_words_ids", "constraints")
EXTRA_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def decode(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    watermark: Signature | None = None,
    policy: Policy | None = None,
    seed: int | None = None,
    caw_streamer: Any = None,
    mark_eos: bool | None = None,
    speculate: Any = "auto",
    caw_tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Decode with a watermark inside `model.generate`.

    Args:
        input_ids: int64 [B, T], left-padded where `attention_mask` says so.
        watermark, policy, mark_eos: as in `caw.generate`.
        speculate: as in `caw.generate`; "auto" and "own" draft nothing in train mode with dropout or with logits
            processors that may keep state, because drafts let the rows of a batch grow by different numbers of tokens.
        seed: seed of the sampling noise; None draws one from torch's generator, which torch.manual_seed controls.
        caw_streamer: a transformers streamer; one sequence only. It receives the prompt's ids [1, T], then each
            token; its end() is always called.
        caw_tokenizer: the model's, which a universal evaluator reads its token classes from; None = unknown.

    Returns:
        int64 [B, T + new] with padding after each end, or GenerateDecoderOnlyOutput if the config asks for it.

    Raises ValueError for beam search, guidance and outputs other than sequences, and where the model's logits become
    NaN or infinite.
    """
    with looked_at_once(), ended_on_error(caw_streamer):
        _check(generation_config, input_ids, caw_streamer)
        _check_inputs(input_ids, model_kwargs)
        check_kinds(watermark)
        facts = ModelFacts.of(model).ending_with(ids_of(generation_config.eos_token_id))
        drawn = _drawing(generation_config)
        own = row_of(watermark, drawn)
        if drawn.do_sample and not own.do_sample:
            raise ValueError(
                "the generation config samples from one token, which leaves nothing to mark, got do_sample=True with "
                f"{ONE_TOKEN}; use do_sample=False"
            )
        mark = mark_of(watermark, policy, own)
        watermark, policy = checked_mark(mark, facts, caw_tokenizer, sampled=bool(generation_config.do_sample))
        if facts.dropping:
            warn_caller(
                f"the model is in train mode and model.generate leaves the dropout of {facts.dropping} on, so equal "
                "calls give different tokens; call model.eval() first"
            )
        prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
        if speculate in WHERE_IT_PAYS and not all(type(each) in FORGETFUL for each in logits_processor or ()):
            speculate = None
        settings = _settings(generation_config, input_ids.shape[1], seed, watermark, policy, mark_eos, speculate)
        row = replace(RowSettings.of(settings), strength_factor=own.strength_factor)
        budgets = _budgets(facts, prompts, settings.max_new_tokens)
        longest = max(len(p) + budget for p, budget in zip(prompts, budgets, strict=True))
        pad = _pad_id(generation_config, facts)
        processors = _ProcessorWarper(logits_processor, input_ids, pad) if logits_processor else None
        plan = make_plan(
            facts, watermark, policy, settings, RowLimits.of([row], facts.ends, longest), len(prompts),
            inside_generate=True, processors=processors,
        )  # fmt: skip
        decoder = Decoder(model, plan)
        outputs = _outputs(decoder, row, prompts, budgets, input_ids, stopping_criteria, caw_streamer)
    sequences = _padded(input_ids, outputs, pad)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


def _outputs(
    decoder: Decoder,
    row: RowSettings,
    prompts: list[list[int]],
    budgets: list[int],
    input_ids: torch.Tensor,
    stopping_criteria: Any,
    streamer: Any,
) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in prompts]

    def on_token(sequence: ActiveSequence) -> bool:
        if streamer is not None:
            streamer.put(torch.tensor(sequence.tokens[-1:]))
        row = torch.cat([input_ids[sequence.index], input_ids.new_tensor(sequence.tokens)])[None]
        return bool(stopping_criteria(row, None).all()) if stopping_criteria else False

    if streamer is not None:
        streamer.put(input_ids.cpu())
    for sequence in decoder.run(requests_for(prompts, budgets, [row] * len(prompts)), on_token):
        if sequence.error:
            raise ValueError(f"prompt {sequence.index}: {sequence.error}")
        outputs[sequence.index] = sequence.tokens
    if streamer is not None:
        streamer.end()
    return outputs


class _ProcessorWarper:
    """transformers' logits processors as a warper; they receive each row's full ids, including the prompt."""

    def __init__(self, processors: Any, input_ids: torch.Tensor, pad: int) -> None:
        self.processors, self.input_ids, self.pad = processors, input_ids, pad

    def __call__(self, logits: torch.Tensor, texts: Texts) -> torch.Tensor:
        out = logits.clone()
        new = torch.where(texts.made < 0, self.pad, texts.made)  # an ended row is padded, as in transformers
        # a row can lag a token behind the others (see `Step.decide`); processors know only rows of one length, and
        # some of them count rows, so they get the whole batch for each length
        for count in torch.unique(texts.counts[texts.active]).tolist():
            scores = self.processors(torch.cat([self.input_ids, new[:, :count]], dim=1), logits.clone())
            rows = texts.active & (texts.counts == count)
            out[rows] = scores[rows]
        return out


def _check(config: Any, input_ids: torch.Tensor, streamer: Any) -> None:
    if config is None:
        raise TypeError("decode is called by model.generate(custom_generate=caw.decode), got no generation_config")
    if not input_ids.shape[1]:
        raise ValueError("input_ids must have at least one token, got none; inputs_embeds are not supported")
    if (config.num_beams or 1) > 1:
        raise ValueError(f"num_beams must be 1 for watermarked decoding, got {config.num_beams}; leave it out")
    if config.watermarking_config is not None:
        raise ValueError(
            "watermarking_config must be None when a caw watermark is given, or the text would carry two; use "
            "caw.KGW(format='transformers') for transformers' own"
        )
    if config.guidance_scale not in (None, 1, 1.0):
        raise ValueError(
            f"guidance_scale must be 1 for watermarked decoding, got {config.guidance_scale}; leave it out"
        )
    for name in OTHER_DECODING:
        if value := getattr(config, name, None):
            raise ValueError(f"{name} must be off in watermarked decoding, got {shown(value)}; leave it out")
    wanted = [name for name in EXTRA_OUTPUTS if getattr(config, name, None)]
    if config.return_dict_in_generate and wanted:
        raise ValueError(f"watermarked decoding returns sequences only, got {wanted[0]}=True; leave it out")
    if streamer is not None and input_ids.shape[0] != 1:
        raise ValueError(f"a streamer requires a batch of 1, got {input_ids.shape[0]}; leave it out")


def _check_inputs(input_ids: torch.Tensor, inputs: dict[str, Any]) -> None:
    """Raise ValueError for keys and values or positions of the caller's own: the prompt is read from its ids alone."""
    cache, positions, mask = (inputs.get(name) for name in ("past_key_values", "position_ids", "attention_mask"))
    if cache is not None and (length := int(cache.get_seq_length())):
        raise ValueError(
            f"past_key_values must be empty in watermarked decoding, got {length} positions; leave it out: the "
            "prompt is read again"
        )
    if positions is not None:
        steps = torch.ones_like(input_ids) if mask is None else mask
        usual = (steps.long().cumsum(-1) - 1).to(positions.device)
        shown_steps = steps.bool().to(usual.device)
        if positions.shape[-1] != usual.shape[-1] or bool(((positions != usual) & shown_steps).any()):
            raise ValueError("position_ids must count each prompt's tokens from 0 beside a watermark; leave it out")


def _prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    if attention_mask is None:
        return input_ids.tolist()
    prompts = [row[mask.bool()].tolist() for row, mask in zip(input_ids, attention_mask, strict=True)]
    if not all(prompts):
        raise ValueError(f"every prompt must have at least one token, row {prompts.index([])} is all padding; drop it")
    return prompts


def _budgets(facts: ModelFacts, prompts: list[list[int]], max_new_tokens: int) -> list[int]:
    """Return the maximum new tokens of each row. ValueError if a prompt leaves no room."""
    budgets = []
    for index, ids in enumerate(prompts):
        budget, said = fit_budget(facts, len(ids), max_new_tokens)
        if not budget:
            raise ValueError(str(Remark(index, said)))
        if said:
            warn_caller(str(Remark(index, said)), PromptWarning)
        budgets.append(budget)
    return budgets


def _settings(
    config: Any,
    length: int,
    seed: int | None,
    watermark: Watermark | None,
    policy: Policy,
    mark_eos: bool | None,
    speculate: Any,
) -> Settings:
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ()).item()) if config.do_sample else 0
    most = Settings(slots=MAX_SLOTS)
    # as many slots as the ladder can have rungs, so that rows do not lag one another
    rungs = watermark.max_candidates if watermark is not None else 1
    return Settings(
        max_new_tokens=config.max_length - length,
        do_sample=bool(config.do_sample),
        seed=seed,
        slots=max(1, min(candidate_slots(watermark, policy, most, policy.max_strength), rungs)),
        return_trace=False,
        mark_eos=mark_eos,
        speculate=speculate,
    )


def _drawing(config: Any) -> RowSettings:
    """Return how texts of a generation config are drawn; its processors do it."""
    if not config.do_sample:
        return RowSettings()
    said = {name: getattr(config, name, None) for name in DRAWING}
    return RowSettings(**{name: value for name, value in said.items() if value is not None})


def _pad_id(config: Any, facts: ModelFacts) -> int:
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    return facts.ends[0] if facts.ends else 0


def _padded(input_ids: torch.Tensor, outputs: list[list[int]], pad: int) -> torch.Tensor:
    longest = max(len(o) for o in outputs)
    new = [o + [pad] * (longest - len(o)) for o in outputs]
    return torch.cat([input_ids, input_ids.new_tensor(new)], dim=1)
