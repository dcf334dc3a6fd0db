"""`caw detect --weights model:NAME`: token weights from a model that reads each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args

from caw.cli import options as opt
from caw.cli.command import group, options_of
from caw.cli.detect_lines import drawn_of
from caw.cli.detect_output import Item
from caw.cli.errors import complain
from caw.cli.place import Place
from caw.cli.policy_choice import choose_policy
from caw.flags import flag
from caw.io.inputs import read_text
from caw.io.progress import doing
from caw.settings import DRAWING, Settings

if TYPE_CHECKING:
    from caw.detection import TokenWeights
    from caw.models import ReaderWeights
    from caw.watermarks import Signature

READER, MODEL = "Weights from a model", "model:"

# by setting of `caw generate`
DRAWN: dict[str, Any] = {
    name: Annotated[
        get_args(kind)[0],
        opt.panel(
            READER,
            "Of texts that were drawn and marked by the race at full strength (recommended, exp)."
            if name == "temperature" else "With --temperature: as in `caw generate`.",
        ),
    ]
    for name, (kind, _) in options_of(Settings, *DRAWING[1:]).items()
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Options of token weights and of a model that reads texts; `drawn` says how those were drawn (none = greedily)."""

    weights: str | None = flag(
        None, "Token weights: a shipped table, a file from `caw detection-weights`, or model:NAME for a model that "
        "reads the texts.", "Test", metavar="TABLE|model:NAME",
    )  # fmt: skip
    prompt_file: str | None = flag(None, "File with the prompt of the texts; - reads stdin.", READER)
    prompt_field: str | None = flag(None, "Field of --input that holds the prompt of each text.", READER)
    calibration: str | None = flag(
        None, "For unknown prompts: calibration file (JSON) from `caw detection-weights --reader`.", READER
    )
    chat: bool = flag(False, "Apply the model's chat template to the prompts, as at generation.", READER)
    policy: str | None = flag(
        None, "Policy that marked the texts [as in `caw generate`].", READER, metavar="|".join(opt.POLICIES)
    )
    of_policy: Mapping[str, Any] = group(opt.OF_POLICY_READ)
    drawn: Mapping[str, Any] = group(DRAWN)
    of_mark: Mapping[str, Any] = group(opt.OF_STRENGTH)
    running: Mapping[str, Any] = group(options_of(Place, dtype=None))

    @property
    def model(self) -> str | None:
        """The model that reads the texts, None = none does."""
        return model_of(self.weights)

    @property
    def files(self) -> dict[str, str | None]:
        """The files that are read, by option."""
        return {"--prompt-file": self.prompt_file, "--calibration": self.calibration,
                "--weights": self.model or self.weights, "--evaluator": self.of_policy["evaluator"]}  # fmt: skip

    def check(self, inputs: Mapping[str, str | None]) -> None:
        """Raise ValueError for options that have no effect or exclude each other."""
        named = {"prompt-file": self.prompt_file, "prompt-field": self.prompt_field, "chat": self.chat or None}
        named["calibration"] = self.calibration
        named |= {"policy": self.policy, **self.of_policy, **self.of_mark, **self.drawn, **self.running}
        given = [option for option, value in named.items() if value is not None]
        if self.model is None:
            if given:
                raise ValueError(f"{opt.as_typed(given[0])} requires --weights model:NAME; add it")
            return
        if not self.model:
            raise ValueError("--weights model:NAME must name a model, got none; give a name such as model:smollm2-135m")
        if self.prompt_file is not None and self.prompt_field is not None:
            raise ValueError("--prompt-file and --prompt-field exclude each other, got both; leave one out")
        if self.prompt_file == "-" and "-" in inputs.values():
            raise ValueError("stdin can be read only once, got - for the text and for --prompt-file; put one in a file")
        if self.calibration is not None and (self.prompt_file or self.prompt_field or self.chat):
            raise ValueError("--calibration is for texts with unknown prompts, got a prompt; leave one out")
        if self.prompt_field is not None and inputs["--input"] is None:
            raise ValueError("--prompt-field requires --input; use --prompt-file")
        if self.chat and self.prompt_file is None and self.prompt_field is None:
            raise ValueError("--chat requires a prompt, got none; give --prompt-file or --prompt-field")

    def as_told(
        self, items: list[Item], marks: Sequence[Signature], *, alike: bool
    ) -> tuple[ReaderSettings, list[Item]]:
        """Return settings and texts with how those were drawn, where lines say it and no option does. alike: all so."""
        steered = self.policy is not None or any(value is not None for value in self.of_policy.values())
        if steered or self.calibration is not None or any(value is not None for value in self.drawn.values()):
            return self, items
        if not items or not all(any(part.races_whole for part in mark.parts) for mark in marks):
            return self, items
        drawn = [drawn_of(item.made, marks) for item in items]
        if None in drawn:
            complain(
                "--weights must know how drawn texts were drawn, got texts that do not say it, so those of a race are "
                "read without the model; give --temperature if they were drawn"
            )
        kinds = {tuple(sorted((each or {}).items())) for each in drawn}
        if kinds == {()}:
            return self, items
        if len(kinds) == 1:
            [kind] = kinds
            return replace(self, drawn=dict(kind)), items
        if alike:
            raise ValueError("texts that are read together must be drawn alike, got several ways; split the file")
        return self, [replace(item, drawn=own or None) for item, own in zip(items, drawn, strict=True)]

    def load(self, marks: Sequence[Signature]) -> ReaderWeights:
        """Load the model; return it with what it knows. Raises what loading and `ReaderWeights` raise."""
        from caw.models import ReaderWeights
        from caw.settings import Sampling

        assert self.model is not None
        drawn = {name: value for name, value in self.drawn.items() if value is not None}
        # drawn texts are marked at full strength: only a policy that is named is asked for
        chosen, remark = choose_policy(self.policy, self.of_policy, self.model, marked=not drawn)
        how = opt.build_policy(chosen, self.of_policy, self.model)
        for mark in marks:
            mark.part_for(Sampling()).check_strength(how.max_strength)
        prompt = None if self.prompt_file is None else read_text(self.prompt_file)
        place = Place(**{name: value for name, value in self.running.items() if value is not None})
        device = place.prepare(self.model)
        with doing(f"loading {self.model}"):
            network, tokenizer = place.load(self.model, device)
        weights = ReaderWeights(network, tokenizer, prompt, how, self.chat, calibration=self.calibration, **drawn)
        # a prompt of any line: what no line can have, such as a chat template, is refused before the first
        name = weights.name if self.prompt_field is None else weights.with_prompt("a prompt").name
        complain(f"weights by {name}{f': {remark}' if remark else ''}")
        return weights


def drawn_as(weights: ReaderWeights, drawn: Mapping[str, Any]) -> ReaderWeights:
    """Return the reader of a text that was drawn in this way."""
    from caw.policies import FixedStrength

    return replace(weights, policy=FixedStrength(), **drawn)


def model_of(weights: str | None) -> str | None:
    """Return the model that --weights names, or None if it names a table."""
    return weights.removeprefix(MODEL) if weights is not None and weights.startswith(MODEL) else None


def stand_in() -> TokenWeights:
    """Return placeholder weights until the model is loaded, so that options that exclude weights are rejected early."""
    import numpy as np

    from caw.detection import TokenWeights

    return TokenWeights(np.ones(1, dtype=np.uint8))
