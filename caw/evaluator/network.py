"""The evaluator network: three fully connected layers, inputs -> h -> h -> 1, sigmoid (paper, appendix "Details of
Watermark Capacity Evaluator")."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.nn.functional import dropout

from caw.defaults import BETA, BETA_BY_MODEL
from caw.evaluator.features import FeatureSpec
from caw.evaluator.token_classes import CLASSES, class_table
from caw.io.files import write_whole
from caw.io.warn import warn_caller

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
GREATEST_INPUT = 24.0  # no feature is further from 0: the logarithm of the probability floor is -23.03
GREATEST_SUM = 1e30  # float32 ends at 3.4e38, and kernels may sum in any order


class Evaluator(torch.nn.Module):
    """Predicts capacity from features; inputs are standardised by the training set's mean and scale.

    Args:
        spec: what the inputs are.
        hidden: width h.
        provenance: what it was trained on; `provenance["model"]` names the model it is for.
        token_class: class of every token id, uint8 [V]; needed if the spec counts classes. It belongs to a tokenizer.

    Raises TypeError or ValueError naming the argument.
    """

    mean: torch.Tensor
    scale: torch.Tensor
    token_class: torch.Tensor | None

    def __init__(
        self,
        spec: FeatureSpec,
        hidden: int = 128,
        provenance: dict[str, Any] | None = None,
        token_class: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        if bool(spec.classes) != (token_class is not None):
            raise ValueError(
                f"an evaluator of {spec.classes} token classes needs {'a' if spec.classes else 'no'} table of them; "
                "make it with token_classes.class_table"
            )
        if token_class is not None:
            _check_classes(token_class)
        self.register_buffer("token_class", token_class)
        if not isinstance(provenance, dict | None):
            raise TypeError(f"provenance must be a dict, got {type(provenance).__name__}; leave it out")
        self.spec, self.hidden, self.provenance = spec, hidden, dict(provenance or {})
        self.register_buffer("mean", torch.zeros(spec.size))
        self.register_buffer("scale", torch.ones(spec.size))
        self.layer1 = torch.nn.Linear(spec.size, hidden)
        self.layer2 = torch.nn.Linear(hidden, hidden)
        self.layer3 = torch.nn.Linear(hidden, 1)
        self.dropout = 0.0  # of hidden units, while training only

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Features float32 [B, size] -> capacity before the sigmoid, float32 [B]."""
        x = (features - self.mean) / self.scale
        x = dropout(torch.relu(self.layer1(x)), self.dropout, self.training)
        x = dropout(torch.relu(self.layer2(x)), self.dropout, self.training)
        return self.layer3(x).squeeze(-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features float32 [B, size] -> capacity float32 [B] in (0, 1); high = important = protect."""
        return self.logits(features).sigmoid()

    @torch.no_grad()
    def check_numbers(self, name: str = "the evaluator") -> None:
        """Raise ValueError unless every input gives a capacity: a NaN would silently leave its token unmarked.

        Scales must be positive, and the greatest sums that any features can reach stay far inside float32.
        """
        tensors = [t.detach().double().cpu() for t in self.weights()]
        if not all(bool(t.isfinite().all()) for t in tensors):
            raise ValueError(f"evaluator weights must be finite, {name} holds others; train again")
        mean, scale, *layers = tensors
        if not bool((scale > 0).all()):
            raise ValueError(
                f"evaluator scales must be positive, {name} holds {float(scale.min()):g}; train again with `caw "
                "train-evaluator`"
            )
        most = (GREATEST_INPUT + mean.abs()) / scale
        reached = float(most.max())
        for weight, bias in zip(layers[::2], layers[1::2], strict=True):
            most = weight.abs() @ most + bias.abs()
            reached = max(reached, float(most.max()))
        if not reached < GREATEST_SUM:
            raise ValueError(
                f"evaluator weights must keep every sum below {GREATEST_SUM:g}, those of {name} can reach "
                f"{reached:.0e}, where capacities are no numbers; train again with `caw train-evaluator`"
            )

    def weights(self) -> list[torch.Tensor]:
        """What the op `evaluate_capacity` takes: mean, scale, W1, b1, W2, b2, W3, b3."""
        layers = (self.layer1, self.layer2, self.layer3)
        return [self.mean, self.scale, *(t for layer in layers for t in (layer.weight, layer.bias))]

    def for_tokenizer(self, tokenizer: Any, vocab_size: int) -> Evaluator:
        """The same network with token classes of another tokenizer, to be tried on another model.

        Args:
            tokenizer: of that model.
            vocab_size: number of its logits.

        Returns:
            A new evaluator in eval mode, which no gradient reaches; this one is left as it is.
        """
        table = class_table(tokenizer, vocab_size, self.spec.line_ends) if self.spec.classes else None
        other = Evaluator(self.spec, self.hidden, self.provenance, table)
        tensors = {name: t for name, t in self.state_dict().items() if name != "token_class"}
        other.load_state_dict(tensors, strict=False)
        return other.eval().requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write weights, spec and provenance to one .safetensors file."""
        metadata = {
            "spec": json.dumps(self.spec.to_dict()),
            "hidden": str(self.hidden),
            "provenance": json.dumps(self.provenance),
        }
        tensors = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        tensors = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
        # safetensors' save_file makes a file that only its owner may read, whatever the umask: no good in a package
        write_whole(path, save(tensors, metadata))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Evaluator:
        """Load shipped weights by name ("smollm2-135m") or any .safetensors file that `save` wrote.

        Raises FileNotFoundError or ValueError in one sentence: no such file, a file of something else, features this
        version does not know, weights of another shape, weights that are not finite or cannot give capacities.
        """
        path = WEIGHTS_FOLDER / f"{name_or_path}.safetensors" if str(name_or_path) in shipped() else Path(name_or_path)
        if not path.is_file():
            raise FileNotFoundError(
                f"evaluator must be a .safetensors file or one of {', '.join(shipped()) or 'none shipped'}, got "
                f"{str(name_or_path)!r}; train one with `caw train-evaluator`"
            )
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            spec = FeatureSpec(**json.loads(metadata["spec"]))
            provenance, table = json.loads(metadata["provenance"]), tensors.get("token_class")
            hidden = int(metadata["hidden"])
            if tensors["layer1.bias"].shape != (hidden,) or not hidden:  # before memory is asked for
                raise ValueError(f"width {hidden} in its metadata and weights of another")
            network = cls(spec, hidden, provenance, table)
            network.load_state_dict(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            found = f"no {error} in its metadata" if isinstance(error, KeyError) else str(error).replace("\n", " ")
            raise ValueError(
                f"expected evaluator weights of this version in {path}, found: {found}; train again with "
                "`caw train-evaluator`"
            ) from error
        network.check_numbers(str(path))
        return network.eval().requires_grad_(False)


def _check_classes(table: torch.Tensor) -> None:
    if table.dtype != torch.uint8 or table.ndim != 1 or not table.numel() or int(table.max()) >= len(CLASSES):
        raise ValueError(
            f"token_class must be uint8 [V] below {len(CLASSES)}, got {table.dtype} {list(table.shape)}; make it with "
            "token_classes.class_table"
        )


def warn_of_other_model(evaluator: Evaluator, model_name: str | Path) -> None:
    """Warn, once per call, if the evaluator was trained on another model than `model_name`.

    Names are compared without folders, file endings, quantisation and case, so that a .gguf file or a copy in a
    folder of the model's own name is the model. An evaluator that names no model says nothing.
    """
    trained = str(evaluator.provenance.get("model") or "")
    if trained and _plain_name(trained) != _plain_name(model_name):
        warn_caller(
            f"this evaluator was trained on {trained} and will read {model_name}: capacities may be off; train one for "
            "this model with `caw train-evaluator`"
        )


def _plain_name(name: str | Path) -> str:
    """The last part of a hub id or path, lower case, without .gguf, quantisation mark and "-instruct"."""
    last = str(name).rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".gguf")
    return re.sub(r"[-._](i?q\d\w*|f16|f32|bf16|fp16)$", "", last).removesuffix("-instruct")


def shipped_for(model_name: str | Path) -> str | None:
    """Name of the shipped evaluator of a model, however it is named (hub id, folder, .gguf file); None without one."""
    plain = _plain_name(model_name)
    return plain if plain in shipped() else None


def default_beta(evaluator: Evaluator | str | Path) -> float:
    """The beta of a capacity policy that names none: that of the model which the evaluator was trained for.

    Weights that cannot be read get the general default; loading them will say what is wrong.
    """
    if not isinstance(evaluator, Evaluator):
        try:
            evaluator = Evaluator.load(evaluator)
        except (OSError, ValueError):
            return BETA
    return beta_for(str(evaluator.provenance.get("model") or ""))


def beta_for(model_name: str | Path) -> float:
    """The beta that suits evaluators of a model, however it is named."""
    return BETA_BY_MODEL.get(_plain_name(model_name), BETA)


def shipped() -> list[str]:
    """Names of the evaluators that come with the library."""
    return sorted(p.stem for p in WEIGHTS_FOLDER.glob("*.safetensors"))
