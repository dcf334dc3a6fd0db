"""`caw generate`: watermarked texts of prompts, one JSONL line as soon as each text is finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.checks import require_choice
from caw.cli import options as opt
from caw.cli.command import command, options_of
from caw.cli.errors import BAD_LINES, complain, user_errors
from caw.cli.generate_prompts import (
    Output,
    RunSettings,
    accept_entries,
    generate_lines,
    open_output,
    print_text,
    read_prompts,
)
from caw.cli.options import panel
from caw.cli.place import Place
from caw.cli.policy_choice import COOL, GREEDY, RACED, choose_policy, choose_watermark, recommended_of, what_marks
from caw.flags import DECODING, DETECTABLE, flag
from caw.io.files import check_paths
from caw.io.inputs import name_of
from caw.io.progress import doing
from caw.models.gguf import is_gguf
from caw.models.sources import file_or_folder
from caw.settings import DRAWING, Settings, greedy_if_one_token

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.policies import Policy
    from caw.watermarks import Signature


Weights = Annotated[
    str | None, panel(DETECTABLE, "Token weights for the test, as for `caw detect --weights`.", "--weights")
]
SAMPLINGS = ("plain", "model")
Sampling = Annotated[
    str,
    panel(DECODING, "Defaults of the other sampling options: greedy without filters, or the model's generation "
    "config.", "--sampling", metavar="|".join(SAMPLINGS)),
]  # fmt: skip
COMMON = (
    "model prompt input output chat watermark key max-new-tokens sample temperature top-p seed detectable-at "
    "quantization device"
)


def check_detectable(
    settings: Settings, mark: Signature | None, family: Signature | None, policy: Policy, weights: str | None
) -> TokenWeights | None:
    """Reject, before loading, texts that could never be detected. Return the weights to test `family` with."""
    from caw.detectable.efforts import check_early
    from caw.detection import TokenWeights

    if settings.level is None and weights is not None:
        raise ValueError("--weights requires --detectable-at; add it or leave --weights out")
    check_early(settings, family, policy)
    if weights is None or mark is None:
        return None
    if len(mark.parts) > 1:
        raise ValueError("--weights are for one watermark, got recommended, which has two; give --watermark kgw")
    table = TokenWeights.load(weights)
    table.check_for(mark.parts[0])
    return table


def sampling_settings(sampling: str, model: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `Settings`: options given (not None), others by `--sampling`, said on stderr."""
    require_choice("--sampling", sampling, SAMPLINGS, "plain")
    found = {name: value for name, value in given.items() if value is not None}
    if sampling == "model":
        from caw.models.sampling import sampling_of_source, sampling_text

        suggested = {name: value for name, value in sampling_of_source(model).items() if name not in found}
        complain(f"sampling from the generation config of {model}: {sampling_text(suggested)}")
        found = {**suggested, **found}
    return found


def check_sampling(settings: Settings, given: dict[str, Any]) -> None:
    """Raise ValueError for options of sampling (given, None = not given) that greedy texts make useless."""
    for name in DRAWING[1:]:
        if not settings.do_sample and given[name] is not None and name in settings.applied():
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is only for sampled texts, got greedy ones; add --sample, or leave it out")


@dataclass(frozen=True)
class Lines:
    """Where prompts come from, and where the lines of their texts go."""

    prompt: str | None = flag(None, "Prompt; - reads stdin.")
    input: str | None = flag(
        None, 'JSONL file, one prompt per line: {"prompt": ..., "id": ...}, or {"messages": [...]} with --chat; - '
        "reads stdin.", None, "--input", "-i",
    )  # fmt: skip
    output: Path | None = flag(None, "Output JSONL file [stdout].", None, "--output", "-o")
    resume: bool = flag(False, "Continue an interrupted --output.")
    field: str = flag("prompt", "Field of --input that holds the prompt.")
    with_prompt: bool = flag(False, "Include the prompt in each output line.")


@command(
    COMMON,
    of_mark={**opt.OF_TEST, **opt.OF_STRENGTH, **options_of(opt.MarkOptions, "payload", "payload_bits")},
    of_policy=opt.OF_POLICY,
    given=options_of(Settings),
)
def generate(
    *,
    model: opt.ModelName,
    lines: Lines,
    watermark: opt.WatermarkName = None,
    key: opt.Key = None,
    of_mark: dict[str, Any],
    policy: opt.PolicyName = None,
    of_policy: dict[str, Any],
    sampling: Sampling = "plain",
    given: dict[str, Any],
    weights: Weights = None,
    place: Place,
) -> None:
    """Generate watermarked text from one prompt or from a JSONL file of prompts.

    Sampled texts are marked at no cost in quality, greedy ones until they are detectable, and no longer. A line on
    stderr says how.

    Each output line has id, text, tokens, finish_reason, prompt_digest, watermark, policy, key_id (never the key) and
    settings. It is written as soon as its text is finished; at the end the file is sorted into input order. The id is
    the input's, or the line number.

    After an interruption, --resume with the same command generates the missing texts; in float32 the file is the same
    as without the interruption. Prompts may be added, and those with an id moved or removed. A line whose prompt
    changed under the same id is an error, as are lines made with other settings (model, dtype, key, or any option that
    changes the text).

    With --detectable-at each text is tested before it is written, and generated again with a stronger mark until it is
    detected. Its line has a receipt, which `caw detect --receipt` verifies.

    Examples:

    - read -rs CAW_KEY; export CAW_KEY
    - caw generate --model smollm2-135m --prompt "Why is the sky blue?" --chat
    - caw generate --model smollm2-135m --input prompts.jsonl --output out.jsonl
    - caw generate --model smollm2-135m --policy fixed --strength 0.5 --input prompts.jsonl --output out.jsonl
    - caw generate --model smollm2-135m --detectable-at 1e-3 --input prompts.jsonl --output out.jsonl
    - caw generate --model ./my-model --watermark exp --sample --seed 1 -i prompts.jsonl -o out.jsonl --resume
    """
    with user_errors():
        import torch

        from caw.decoding.plan_defaults import marks_eos
        from caw.models.arithmetic import Arithmetic

        read = {"--input": lines.input, "--model": model, "--evaluator": of_policy["evaluator"], "--weights": weights}
        check_paths(read, {"--output": lines.output})
        mark = opt.build_watermark(
            choose_watermark(watermark, {**of_mark, "weights": weights}, policy, of_policy), key, of_mark
        )
        settings = Settings(
            **sampling_settings(sampling, model, {**given, "speculate": None, "stop": None}), return_trace=False,
            speculate=opt.parse_speculate(given["speculate"]), stop=tuple(given["stop"] or ()),
        )  # fmt: skip
        steered = [name for name, value in {"policy": policy, **of_policy}.items() if value is not None]
        if mark is None and steered:
            raise ValueError(f"--{steered[0]} is only for marked texts, got --watermark none; leave one of them out")
        texts = greedy_if_one_token(settings)
        family = None if mark is None else mark.part_for(texts)
        if mark is not None and len(mark.parts) > 1:
            kind = RACED if texts.races else COOL if texts.do_sample else GREEDY
            mark, policies, marking = recommended_of(mark, policy, of_policy, settings.level, [kind])
            how = policies[kind]
        else:
            races = family is not None and family.races_whole
            chosen, remark = choose_policy(policy, of_policy, model, marked=mark is not None, races=races)
            how = opt.build_policy(chosen, of_policy, model)
            marking = "" if family is None else what_marks(family, how, remark)
        if family is not None:
            family.check_strength(how.max_strength)
        elif settings.mark_eos is not None:
            raise ValueError("--mark-eos and --keep-eos require a watermark, got none; leave them out")
        settings = replace(settings, mark_eos=marks_eos(settings.mark_eos, family, how))
        check_sampling(settings, given)
        table = check_detectable(settings, mark, family, how, weights)
        run = RunSettings(model, mark, how if mark else None, settings, lines.with_prompt, table)
        run.check()
        loaded = Loaded(model, place.prepare(model), place)
        numbers = Arithmetic.of(model, torch.device(loaded.device), place.dtype, place.quantization)
        run = replace(run, numbers=numbers)
        entries, bad = read_prompts(lines.prompt, lines.input, lines.field, chat=settings.chat)
        digest = partial(loaded.digest, settings.chat)
        with open_output(lines.output, run, entries, digest, resume=lines.resume) as out:
            if out.written and not out.todo:
                complain(f"nothing to do: all {out.written} texts are written")
            elif not out.todo and not bad:
                complain(f"{name_of(lines.input or 'the prompt')} has no lines; nothing to generate")
            if out.todo:
                out = out if lines.output or lines.input else replace(out, write=print_text)
                bad += _make(out, run, marking, loaded, source=lines.input)
        if bad:
            raise typer.Exit(BAD_LINES)


def _make(out: Output, run: RunSettings, marking: str, loaded: Loaded, *, source: str | None) -> int:
    """Load the model, print `marking`, write the missing texts. Return the number of prompts that failed."""
    network, tokenizer = loaded.both
    run = replace(run, model_digest=loaded.model_digest)
    if out.checked is not None:
        out.checked.check_model(run.model_digest)
    accepted = accept_entries(out.todo, network, tokenizer, run, source=source)
    if marking and accepted.ids:
        complain(marking)
    return len(accepted.refused) + generate_lines(out.todo, accepted, network, tokenizer, run, out.write, source=source)


@dataclass(frozen=True)
class Loaded:
    """A model and its tokenizer, loaded once they are needed."""

    name: str
    device: str
    place: Place

    @cached_property
    def both(self) -> tuple[Any, Any]:
        with doing(f"loading {self.name}"):
            return self.place.load(self.name, self.device)

    @cached_property
    def model_digest(self) -> str:
        from caw.models.arithmetic import model_digest

        return model_digest(*self.both)

    def digest(self, chat: bool) -> Callable[[Any], str]:
        """Return the function that gives a prompt's digest for this model. chat: with its chat template."""
        from caw.decoding.prompts import prompt_digest

        # the tokenizer of a .gguf file is made in another way where the model is loaded
        from caw.models.tokenizer import load_tokenizer

        tokenizer = self.both[1] if is_gguf(file_or_folder(self.name)) else load_tokenizer(self.name)
        return lambda prompt: prompt_digest(tokenizer, prompt, chat=chat)
