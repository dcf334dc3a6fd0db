"""`caw detect --weights model:NAME`: a model reads each text. The only case in which this command loads one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caw.cli import options as opt
from caw.cli.errors import complain
from caw.cli.policy_choice import choose_policy
from caw.cli.quantised_option import prepare_place, quantised_option
from caw.io.inputs import read_text
from caw.io.progress import doing

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.models import ModelWeights
    from caw.watermarks import Watermark

READER, MODEL = "Weights from a model", "model:"

WeightsName = Annotated[
    str | None,
    opt.panel(
        "Test",
        "Weights per token: a shipped table, a file made by `caw detection-weights`, or model:NAME, a model that reads "
        "the texts.",
        "--weights",
        metavar="TABLE|model:NAME",
    ),
]
PromptFile = Annotated[
    str | None, opt.panel(READER, "File with the prompt that the texts answer; - is stdin.", "--prompt-file")
]
PromptField = Annotated[
    str | None, opt.panel(READER, "Field of a line of --input that holds its own prompt.", "--prompt-field")
]
CalibrationFile = Annotated[
    str | None,
    opt.panel(READER, "Without a prompt: what caw.fitting.fit_calibration learned, a JSON file.", "--calibration"),
]
Chat = Annotated[bool, opt.panel(READER, "Prompts were wrapped in the model's chat template.", "--chat")]
PolicyName = Annotated[
    str | None,
    opt.panel(READER, "How strongly the texts' tokens were marked [as in `caw generate`].", "--policy",
              metavar="|".join(opt.POLICIES)),
]  # fmt: skip


def _of_policy(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=READER)


Strength = Annotated[float | None, _of_policy("fixed, entropy, logit-delta: as in `caw generate`.")]
Nats = Annotated[float | None, _of_policy("entropy: as in `caw generate`.")]
Gap = Annotated[float | None, _of_policy("logit-delta: as in `caw generate`.")]
Theta = Annotated[float | None, _of_policy("capacity: as in `caw generate`.")]
Beta = Annotated[float | None, _of_policy("capacity: as in `caw generate`.")]
EvaluatorName = Annotated[str | None, _of_policy("capacity: as in `caw generate`.")]
Delta = Annotated[float | None, _of_policy("kgw, unigram: as in `caw generate`.")]
TopKExp = Annotated[int | None, _of_policy("exp: as in `caw generate`.")]
StrengthExp = Annotated[
    str | None, opt.panel(READER, "exp: as in `caw generate`.", "--strength-exp", metavar="top_k|scale")
]
Device = Annotated[str | None, opt.panel(READER, "cpu, cuda, cuda:1, ... [cuda if there is one].", "--device")]
DType = Annotated[
    str | None, opt.panel(READER, "Precision that the model runs in [auto].", "--dtype", metavar="auto|bfloat16|...")
]
Quantised = Annotated[str | None, quantised_option(READER)]
Threads = Annotated[int | None, opt.panel(READER, "CPU threads [all cores].", "--threads", min=1)]


@dataclass(frozen=True)
class ReaderSettings:
    """What the options ask of a model that reads the texts.

    model: None = no model reads them. prompt_file, prompt_field, chat: where prompts are. calibration: its file.
    policy, of_policy: name and options of the policy. of_mark: options that say how strongly a watermark marks.
    running: device, dtype, quantised, threads.
    """

    model: str | None
    prompt_file: str | None
    prompt_field: str | None
    calibration: str | None
    chat: bool
    policy: str | None
    of_policy: Mapping[str, Any]
    of_mark: Mapping[str, Any]
    running: Mapping[str, Any]

    def check(self, inputs: Mapping[str, str | None]) -> None:
        """Raise ValueError for options that would do nothing or exclude each other."""
        named = {"prompt-file": self.prompt_file, "prompt-field": self.prompt_field, "chat": self.chat or None}
        named["calibration"] = self.calibration
        named |= {"policy": self.policy, **self.of_policy, **self.of_mark, **self.running}
        given = [option for option, value in named.items() if value is not None]
        if self.model is None:
            if given:
                raise ValueError(f"--{given[0]} belongs to --weights model:NAME, which is missing; add it")
            return
        if not self.model:
            raise ValueError("--weights model:NAME must name a model, got none; give what --tokenizer would be")
        if self.prompt_file is not None and self.prompt_field is not None:
            raise ValueError("--prompt-file and --prompt-field are two ways, got both; leave one out")
        if self.prompt_file == "-" and "-" in inputs.values():
            raise ValueError("stdin holds one thing, got - for the text and for --prompt-file; put one in a file")
        if self.calibration is not None and (self.prompt_file or self.prompt_field or self.chat):
            raise ValueError("--calibration is for texts whose prompt is unknown, got a prompt; leave one of them out")
        if self.prompt_field is not None and inputs["--input"] is None:
            raise ValueError("--prompt-field belongs to --input, which is missing; use --prompt-file")
        if self.chat and self.prompt_file is None and self.prompt_field is None:
            raise ValueError("--chat wraps a prompt, got none; give --prompt-file or --prompt-field")

    def load(self, marks: Sequence[Watermark]) -> ModelWeights:
        """The model and what it is to know; raises as loading and `ModelWeights` do."""
        from caw.models import ModelWeights, load_model

        assert self.model is not None
        chosen, remark = choose_policy(self.policy, self.of_policy, self.model, marked=True)
        how = opt.build_policy(chosen, self.of_policy, self.model)
        for mark in marks:
            mark.check_strength(how.max_strength)
        prompt = None if self.prompt_file is None else read_text(self.prompt_file)
        dtype, quantised = self.running["dtype"] or "auto", self.running["quantised"]
        device = prepare_place(self.model, self.running["device"], self.running["threads"], dtype, quantised)
        with doing(f"loading {self.model}"):
            network, tokenizer = load_model(self.model, device=device, dtype=dtype, weights=quantised)
        weights = ModelWeights(network, tokenizer, prompt, how, self.chat, calibration=self.calibration)
        # a prompt of any line: what no line can have, such as a chat template, is refused before the first
        name = weights.name if self.prompt_field is None else weights.with_prompt("a prompt").name
        complain(f"weights by {name}{f': {remark}' if remark else ''}")
        return weights


def model_of(weights: str | None) -> str | None:
    """The model that --weights names; None where it names none."""
    return weights.removeprefix(MODEL) if weights is not None and weights.startswith(MODEL) else None


def stand_in() -> TokenWeights:
    """Weights that take a model's place until it is loaded: options that exclude weights are refused before."""
    import numpy as np

    from caw.detection import TokenWeights

    return TokenWeights(np.ones(1, dtype=np.uint8))
