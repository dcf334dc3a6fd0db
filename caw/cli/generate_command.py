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
from caw.cli.options import DECODING, panel
from caw.cli.policy_choice import (
    COOL,
    GREEDY,
    RACED,
    choose_policy,
    choose_watermark,
    recommended_of,
    what_marks,
)
from caw.cli.quantization_option import Quantized, prepare_place
from caw.io.files import check_paths
from caw.io.inputs import name_of
from caw.io.progress import doing
from caw.models import DEMO_MODEL, load_model, load_tokenizer

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.policies import Policy
    from caw.settings import Settings
    from caw.watermarks import Signature


# ---- options about texts that are tested before they are written
FOUND = "Detectable texts"

DETECTABLE: dict[str, Any] = {
    "detectable_at": Annotated[
        float | None,
        panel(FOUND, "Test each text at this false-positive rate before it is written, and retry with a stronger mark "
              "until it is detected.", "--detectable-at"),
    ],
    "max_attempts": (Annotated[int, panel(FOUND, "Maximum attempts per text.", "--max-attempts")], 4),
    "guard": Annotated[
        str | None,
        panel(FOUND, "Change greedy texts only where they keep this of the unmarked text (docs/guard.md).", "--guard",
              metavar="number|results|json[:FIELD,...]|python|content"),
    ],
    "on_undetected": (
        Annotated[
            str,
            panel(FOUND, "What to do with a text that no attempt made detectable.", "--on-undetected",
                  metavar="keep|unmarked|drop|raise"),
        ],
        "keep",
    ),
    "edits": (
        Annotated[
            float, panel(FOUND, "Share of words that a later edit may delete without losing the mark.", "--edits")
        ],
        0.0,
    ),
}  # fmt: skip
Weights = Annotated[str | None, panel(FOUND, "Token weights for the test, as for `caw detect --weights`.", "--weights")]


def check_detectable(
    settings: Settings, mark: Signature | None, family: Signature | None, policy: Policy, weights: str | None
) -> TokenWeights | None:
    """Reject, before a model is loaded, texts that could never be detected. Return the token weights to test with.

    family: of the mark, the one that the texts get.
    """
    from caw.detectable.efforts import check_early
    from caw.detection import TokenWeights

    if settings.detectable_at is None and weights is not None:
        raise ValueError("--weights requires --detectable-at; add it or leave --weights out")
    check_early(settings, family, policy)
    if weights is None or mark is None:
        return None
    if len(mark.parts) > 1:
        raise ValueError("--weights are for one watermark, got recommended, which has two; give --watermark kgw")
    table = TokenWeights.load(weights)
    table.check_for(mark.parts[0])
    return table


# ---- options about how tokens are drawn, and what they are where they are left out
SAMPLINGS = ("plain", "model")

Sampling = Annotated[
    str,
    panel(DECODING, "Defaults of the other sampling options: greedy without filters, or the model's generation "
    "config.", "--sampling", metavar="plain|model"),
]  # fmt: skip
DRAWN: dict[str, Any] = {
    "do_sample": Annotated[
        bool | None, panel(DECODING, "Sample instead of decoding greedily [--greedy].", "--sample/--greedy")
    ],
    "temperature": Annotated[float | None, panel(DECODING, "Sampling temperature [1].", "--temperature")],
    "top_k": Annotated[int | None, panel(DECODING, "Sample from the top k tokens [0, off].", "--top-k")],
    "top_p": Annotated[
        float | None, panel(DECODING, "Nucleus sampling: total probability to sample from [1, off].", "--top-p")
    ],
    "min_p": Annotated[
        float | None, panel(DECODING, "Minimum probability relative to the most likely token [0, off].", "--min-p")
    ],
    "seed": (Annotated[int, panel(DECODING, "Random seed of the sampling.", "--seed")], 0),
    "repetition_penalty": Annotated[
        float | None,
        panel(DECODING, "Penalty on tokens of the prompt and the text, also for greedy decoding [1, off].",
              "--repetition-penalty"),
    ],
    "presence_penalty": (
        Annotated[float, panel(DECODING, "Penalty on tokens that are in the text, -2 to 2.", "--presence-penalty")],
        0.0,
    ),
    "frequency_penalty": (
        Annotated[
            float, panel(DECODING, "Penalty on tokens per occurrence in the text, -2 to 2.", "--frequency-penalty")
        ],
        0.0,
    ),
}  # fmt: skip


def sampling_settings(sampling: str, model: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `Settings`: the options that were given, otherwise the defaults of `--sampling`.

    given: by setting name, None = not given. A line on stderr shows what comes from the model's config.
    """
    require_choice("--sampling", sampling, SAMPLINGS, "plain")
    found = {name: value for name, value in given.items() if value is not None}
    if sampling == "model":
        from caw.models.sampling import sampling_of_source, sampling_text

        suggested = {name: value for name, value in sampling_of_source(model).items() if name not in found}
        complain(f"sampling from the generation config of {model}: {sampling_text(suggested)}")
        found = {**suggested, **found}
    return found


def check_sampling(settings: Settings, given: dict[str, Any]) -> None:
    """Raise ValueError for options of sampling that have no effect, because texts are greedy. given: by setting name,
    None = not given.
    """
    from caw.settings import DRAWING

    for name in DRAWING[1:]:
        if not settings.do_sample and given[name] is not None and name in settings.applied():
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is only for sampled texts, got greedy ones; add --sample, or leave it out")


@opt.grouped(
    of_mark={**opt.OF_TEST, **opt.OF_STRENGTH, "payload": opt.Payload, "payload-bits": opt.PayloadBits},
    of_policy={**opt.OF_POLICY, "target": opt.TargetP},
    tested=DETECTABLE,
    drawn=DRAWN,
)
def generate(
    *,
    model: Annotated[str, typer.Option(help=f"{DEMO_MODEL} (the demo model), a .gguf file, a folder or a hub id.")],
    prompt: Annotated[str | None, typer.Option(help="Prompt; - reads stdin.")] = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            help='JSONL file, one prompt per line: {"prompt": ..., "id": ...}, or {"messages": [...]} with --chat; - '
            "reads stdin.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output JSONL file [stdout].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted --output.")] = False,
    remake: Annotated[
        bool, typer.Option("--remake", help="With --resume: regenerate texts whose prompts have changed.")
    ] = False,
    field: Annotated[str, typer.Option(help="Field of --input that holds the prompt.")] = "prompt",
    with_prompt: Annotated[bool, typer.Option("--with-prompt", help="Include the prompt in each output line.")] = False,
    watermark: opt.WatermarkName = None,
    key: opt.Key = None,
    of_mark: dict[str, Any],
    policy: opt.PolicyName = None,
    of_policy: dict[str, Any],
    max_new_tokens: Annotated[int, typer.Option(help="Maximum new tokens.", rich_help_panel=opt.DECODING)] = 200,
    min_new_tokens: Annotated[int, typer.Option(help="Minimum new tokens.", rich_help_panel=opt.DECODING)] = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Apply the model's chat template to prompts.", rich_help_panel=opt.DECODING)
    ] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop string: ends the text; repeatable.", rich_help_panel=opt.DECODING)
    ] = None,
    mark_eos: opt.MarkEos = None,
    tested: dict[str, Any],
    weights: Weights = None,
    sampling: Sampling = "plain",
    drawn: dict[str, Any],
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size: texts decoded together [8].", min=1, rich_help_panel=opt.RUNNING)
    ] = None,
    max_memory: opt.MaxMemory = None,
    compile: opt.Compile = False,
    speculate: opt.Speculate = "auto",
    dtype: opt.DType = "auto",
    quantization: Quantized = None,
    device: opt.Device = None,
    threads: opt.Threads = None,
) -> None:
    """Generate watermarked text from one prompt or from a JSONL file of prompts.

    Sampled texts are marked at no cost in quality, greedy ones no more strongly than detection needs and more gently
    where a token matters (CAW, by the model's own evaluator or the universal one). A line on stderr says how.

    Each output line has id, text, tokens, finish_reason, prompt_digest, watermark, policy, key_id (never the key) and
    settings. It is written as soon as its text is finished; at the end the file is sorted into input order. The id is
    the input's, or the line number.

    After an interruption, --resume with the same command generates the missing texts; in float32 the file is the same
    as without the interruption. Lines are matched to prompts by digest, so prompts may be added, moved or removed. A
    line whose prompt changed under the same id is an error, or dropped with --remake. Lines made with other settings
    (model, dtype, key, or any option that changes the text) are an error.

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
        from caw.settings import Sampling as SamplingSettings
        from caw.settings import Settings, greedy_if_one_token

        read = {"--input": input, "--model": model, "--evaluator": of_policy["evaluator"], "--weights": weights}
        check_paths(read, {"--output": output})
        mark = opt.build_watermark(
            choose_watermark(watermark, {**of_mark, "weights": weights}, policy, of_policy), key, of_mark
        )
        of_sampling = sampling_settings(sampling, model, drawn)
        steered = [name for name, value in {"policy": policy, **of_policy}.items() if value is not None]
        if mark is None and steered:
            raise ValueError(f"--{steered[0]} is only for marked texts, got --watermark none; leave one of them out")
        texts = greedy_if_one_token(SamplingSettings(**of_sampling))
        family = None if mark is None else mark.part_for(texts)
        if mark is not None and len(mark.parts) > 1:
            kind = RACED if texts.races else COOL if texts.do_sample else GREEDY
            mark, policies, marking = recommended_of(mark, policy, of_policy, model, tested["detectable_at"], [kind])
            how = policies[kind]
        else:
            races = family is not None and family.races_whole
            chosen, remark = choose_policy(policy, of_policy, model, marked=mark is not None, races=races)
            how = opt.build_policy(chosen, of_policy, model)
            marking = "" if family is None else what_marks(family, how, remark)
        if family is not None:
            family.check_strength(how.max_strength)
        elif mark_eos is not None:
            raise ValueError("--mark-eos and --keep-eos require a watermark, got none; leave them out")
        settings = Settings(
            max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens, **of_sampling, stop=tuple(stop or ()),
            chat=chat, mark_eos=marks_eos(mark_eos, family, how), return_trace=False, batch_size=batch_size,
            max_memory=max_memory, compile=compile, **tested,
            speculate=opt.parse_speculate(speculate),
        )  # fmt: skip
        check_sampling(settings, drawn)
        table = check_detectable(settings, mark, family, how, weights)
        run = RunSettings(model, mark, how if mark else None, settings, with_prompt, table)
        run.check()
        device = prepare_place(model, device, threads, dtype, quantization)
        run = replace(run, numbers=Arithmetic.of(model, torch.device(device), dtype, quantization))
        entries, bad = read_prompts(prompt, input, field, chat=chat)
        loaded = Loaded(model, device, dtype, quantization)
        with open_output(output, run, entries, partial(loaded.digest, chat), resume=resume, remake=remake) as out:
            if out.written and not out.todo:
                complain(f"nothing to do: all {out.written} texts are written")
            elif not out.todo and not bad:
                complain(f"{name_of(input or 'the prompt')} has no lines; nothing to generate")
            if out.todo:
                out = out if output or input else replace(out, write=print_text)
                bad += _make(out, run, marking, loaded, source=input)
        if bad:
            raise typer.Exit(BAD_LINES)


def _make(out: Output, run: RunSettings, marking: str, loaded: Loaded, *, source: str | None) -> int:
    """Load the model and write the missing texts. Return the number of prompts that failed.

    marking: line to print first.
    """
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
    """The arguments of `load_model` and, once requested, its result."""

    name: str
    device: str
    dtype: str
    weights: str | None

    @cached_property
    def both(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        with doing(f"loading {self.name}"):
            model, tokenizer = load_model(self.name, device=self.device, dtype=self.dtype, quantization=self.weights)
        return model, tokenizer

    @cached_property
    def model_digest(self) -> str:
        from caw.models.arithmetic import model_digest

        return model_digest(*self.both)

    def digest(self, chat: bool) -> Callable[[Any], str]:
        """Return the function that gives a prompt's digest for this model. chat: with its chat template."""
        from caw.decoding.prompts import prompt_digest

        # the tokenizer of a .gguf file is made in another way where the model is loaded
        tokenizer = self.both[1] if self.name.endswith(".gguf") else load_tokenizer(self.name)
        return lambda prompt: prompt_digest(tokenizer, prompt, chat=chat)
