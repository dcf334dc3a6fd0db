"""The evaluator: three fully connected layers, inputs -> h -> h -> 1, sigmoid. Its file is checked before use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch.nn.functional import dropout

from caw.defaults import BETA
from caw.evaluator.features import FeatureSpec
from caw.evaluator.shelf import WEIGHTS_FOLDER, beta_for, plain_name, shipped
from caw.evaluator.token_classes import CLASSES, check_tokenizer, class_table, class_table_of, reads_classes
from caw.io.files import write_whole
from caw.io.vocabulary import Vocabulary
from caw.io.warn import warn_caller

# in the order of `Evaluator.weights`
WEIGHTS = ("mean", "scale", *(f"layer{n}.{part}" for n in (1, 2, 3) for part in ("weight", "bias")))
TELL = "pass the model's own as tokenizer= (to caw.decode as caw_tokenizer=), or CapacityPolicy(...).serving(tokenizer)"
GREATEST_INPUT = 24.0  # no feature is further from 0: the logarithm of the probability floor is -23.03
GREATEST_SUM = 1e30  # float32 ends at 3.4e38, and kernels may sum in any order


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class Evaluator(torch.nn.Module):
    """Predicts capacity from features; inputs are standardised by the training set's mean and scale.

    Args:
        spec: layout of the inputs.
        hidden: width h.
        provenance: its training data; `provenance["model"]` names the model that it is for.
        token_class: class of every token id, uint8 [V]; required if the spec has classes, unless it is universal.
            Belongs to one tokenizer.
        vocabulary: vocabulary of the model that it is for; None = unknown.
        universal: whether it supports every model: no warning for another model, and no error for another vocabulary,
            which token classes belong to: it reads them from the model's tokenizer (`serving`).

    source: the file it was loaded from, or "".

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
        vocabulary: Vocabulary | None = None,
        universal: bool = False,
    ) -> None:
        super().__init__()
        if bool(spec.classes) != (token_class is not None) and not (universal and token_class is None):
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
        self.vocabulary, self.universal, self.source = vocabulary, universal, ""
        self.register_buffer("mean", torch.zeros(spec.size))
        self.register_buffer("scale", torch.ones(spec.size))
        self.layer1 = torch.nn.Linear(spec.size, hidden)
        self.layer2 = torch.nn.Linear(hidden, hidden)
        self.layer3 = torch.nn.Linear(hidden, 1)
        self.dropout = 0.0  # of hidden units, while training only
        self._sound: list[torch.Tensor] = []  # weights that passed `check_numbers`: to compare takes a tenth as long

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """Map features float32 [B, size] to capacity before the sigmoid, float32 [B]."""
        x = (features - self.mean) / self.scale
        x = dropout(torch.relu(self.layer1(x)), self.dropout, self.training)
        x = dropout(torch.relu(self.layer2(x)), self.dropout, self.training)
        return self.layer3(x).squeeze(-1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map features float32 [B, size] to capacity float32 [B] in (0, 1); high = important = protect."""
        return self.logits(features).sigmoid()

    @torch.no_grad()
    def check_numbers(self, name: str = "the evaluator") -> None:
        """Raise ValueError unless every input gives a capacity: a NaN would silently leave its token unmarked.

        Scales must be positive, and the greatest sums that any features can reach stay far inside float32.
        """
        given = [t.detach() for t in self.weights()]
        if len(self._sound) == len(given) and all(map(_same, self._sound, given)):
            return
        tensors = [t.double().cpu() for t in given]
        for which, tensor in zip(WEIGHTS, tensors, strict=True):
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"evaluator weights must be finite, {which} of {name} is not; train again")
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
                f"{reached:.0e} and give NaN; train again with `caw train-evaluator`"
            )
        self._sound = [t.clone() for t in given]

    @property
    def lacks_classes(self) -> bool:
        """Whether it has yet to read token classes from a tokenizer."""
        return bool(self.spec.classes) and self.token_class is None

    def check_served(self) -> None:
        """Raise ValueError for an evaluator that lacks token classes."""
        if self.lacks_classes:
            name = f"evaluator {self.source}" if self.source else "the evaluator"
            raise ValueError(
                f"{name} needs the token classes of the model's tokenizer, which is not known here; {TELL}"
            )

    def weights(self) -> list[torch.Tensor]:
        """Arguments of the op `evaluate_capacity`: mean, scale, W1, b1, W2, b2, W3, b3."""
        layers = (self.layer1, self.layer2, self.layer3)
        return [self.mean, self.scale, *(t for layer in layers for t in (layer.weight, layer.bias))]

    def for_tokenizer(self, tokenizer: Any, vocab_size: int) -> Evaluator:
        """Return the same network with the token classes of another tokenizer, to try on another model.

        Args:
            tokenizer: of that model.
            vocab_size: size of its logits.

        Returns:
            A new evaluator in eval mode, without gradients; this one is unchanged.
        """
        table = class_table(tokenizer, vocab_size, self.spec.line_ends) if self.spec.classes else None
        return self._with(table, Vocabulary.of(tokenizer))

    def serving(self, tokenizer: Any) -> Evaluator:
        """Return the network as it reads this tokenizer's model: a universal one with token classes reads them here.

        It returns itself if it reads none, is not universal, or has the same table, and if it has one and the tokenizer
        is unknown (None). Raises TypeError for a tokenizer whose classes cannot be read.
        """
        if not (self.universal and self.spec.classes) or (tokenizer is None and self.token_class is not None):
            return self
        if not reads_classes(tokenizer):
            found = "none" if tokenizer is None else type(tokenizer).__name__
            name = f"evaluator {self.source}" if self.source else "this evaluator"
            raise TypeError(
                f"{name} reads token classes from the model's tokenizer, which must decode ids and name its tokens as "
                f"transformers' do, got {found}; {TELL}"
            )
        table = class_table_of(tokenizer, self.spec.line_ends)
        if self.token_class is not None and torch.equal(self.token_class.cpu(), table):
            return self
        other = self._with(table, self.vocabulary)
        other.source = self.source
        return other

    def _with(self, table: torch.Tensor | None, vocabulary: Vocabulary | None) -> Evaluator:
        other = Evaluator(self.spec, self.hidden, self.provenance, table, vocabulary, self.universal)
        tensors = {name: t for name, t in self.state_dict().items() if name != "token_class"}
        other.load_state_dict(tensors, strict=False)
        other.to(self.mean.device)
        return other.eval().requires_grad_(False)

    def save(self, path: str | Path) -> None:
        """Write weights, spec, provenance and supported models to one .safetensors file."""
        metadata = {
            "spec": json.dumps(self.spec.to_dict()),
            "hidden": str(self.hidden),
            "provenance": json.dumps(self.provenance),
            "universal": json.dumps(self.universal),
        }
        if self.vocabulary is not None:
            metadata["vocabulary"] = self.vocabulary.as_text()
        tensors = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        tensors = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
        # safetensors' save_file makes a file that only its owner may read, whatever the umask: no good in a package
        write_whole(path, save(tensors, metadata))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Evaluator:
        """Load shipped weights by name ("smollm2-135m") or any .safetensors file written by `save`.

        Raises FileNotFoundError or ValueError in one sentence: no such file, a file of something else, features this
        version does not know, a tensor that is missing, too many or of another shape or dtype, weights that are not
        finite or cannot give capacities.
        """
        path = WEIGHTS_FOLDER / f"{name_or_path}.safetensors" if str(name_or_path) in shipped() else Path(name_or_path)
        if not path.is_file():
            raise FileNotFoundError(
                f"evaluator must be a .safetensors file or one of {', '.join(shipped()) or 'none shipped'}, got "
                f"{str(name_or_path)!r}; train one with `caw train-evaluator`"
            )
        about, tensors = read_file(path)
        network = cls(
            about.spec, about.hidden, about.provenance, tensors.get("token_class"), about.vocabulary, about.universal
        )
        network.load_state_dict(tensors)
        network.source = str(name_or_path)
        network.check_numbers(str(path))
        return network.eval().requires_grad_(False)


def _check_classes(table: torch.Tensor) -> None:
    if table.dtype != torch.uint8 or table.ndim != 1 or not table.numel() or int(table.max()) >= len(CLASSES):
        raise ValueError(
            f"token_class must be uint8 [V] below {len(CLASSES)}, got {table.dtype} {list(table.shape)}; make it with "
            "token_classes.class_table"
        )


def check_serves(evaluator: Evaluator, model_name: str | Path, tokenizer: Any) -> None:
    """Raise ValueError for an evaluator of another vocabulary, warn of another model's; universal ones serve all."""
    if model_name:
        warn_of_other_model(evaluator, model_name)
    if tokenizer is None:
        return
    if evaluator.vocabulary is not None and not evaluator.universal:
        name = f"evaluator {evaluator.source}" if evaluator.source else "the evaluator"
        remedy = "train one for this model with `caw train-evaluator`, or try Evaluator.for_tokenizer"
        evaluator.vocabulary.check(tokenizer, f"{name} was", remedy)
    if evaluator.token_class is not None and reads_classes(tokenizer):
        check_tokenizer(evaluator.token_class.cpu(), tokenizer, evaluator.spec.line_ends)


def warn_of_other_model(evaluator: Evaluator, model_name: str | Path) -> None:
    """Warn, once per call, if the evaluator was trained on another model than `model_name`.

    Names are compared without folders, file extensions, quantization and case, so that a .gguf file, or a copy in a
    folder with the model's name, is the same model. No warning for an evaluator that names no model or is universal.
    """
    trained = "" if evaluator.universal else str(evaluator.provenance.get("model") or "")
    if trained and plain_name(trained) != plain_name(model_name):
        warn_caller(
            f"this evaluator was trained on {trained}, not on {model_name}, so capacities may be inaccurate; train "
            "one for this model with `caw train-evaluator`"
        )


def default_beta(evaluator: Evaluator | str | Path) -> float:
    """Return a capacity policy's default beta for the evaluator's model; unreadable weights raise when loaded."""
    if not isinstance(evaluator, Evaluator):
        try:
            evaluator = Evaluator.load(evaluator)
        except (OSError, ValueError):
            return BETA
    return beta_for(str(evaluator.provenance.get("model") or ""))


FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
MOST_HIDDEN = 1 << 16
REMEDY = "train again with `caw train-evaluator`"


@dataclass(frozen=True)
class About:
    """The metadata of a file; see `Evaluator`."""

    spec: FeatureSpec
    hidden: int
    provenance: dict[str, Any]
    vocabulary: Vocabulary | None
    universal: bool


def read_file(path: Path) -> tuple[About, dict[str, torch.Tensor]]:
    """Return a file's metadata and its tensors as float32. ValueError for another file, naming the wrong tensor."""
    try:
        with safe_open(str(path), framework="pt") as file:
            about = _about(file.metadata() or {})
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            _check(about, {name: (part.get_dtype(), list(part.get_shape())) for name, part in slices.items()})
            tensors = {name: file.get_tensor(name) for name in slices}
            table = tensors.get("token_class")
            if table is not None and (most := int(table.max())) >= about.spec.classes:
                raise ValueError(f"tensor token_class with class {most}, where {about.spec.classes} are known")
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        found = f"no {error} in its metadata" if isinstance(error, KeyError) else str(error).replace("\n", " ")
        raise ValueError(f"expected evaluator weights of this version in {path}, found: {found}; {REMEDY}") from error
    return about, {name: part if name == "token_class" else part.float() for name, part in tensors.items()}


def _about(metadata: dict[str, str]) -> About:
    spec, hidden = FeatureSpec(**json.loads(metadata["spec"])), int(metadata["hidden"])
    if not 0 < hidden <= MOST_HIDDEN:
        raise ValueError(f"width {hidden} in its metadata, where 1 to {MOST_HIDDEN} are known")
    provenance, universal = json.loads(metadata["provenance"]), json.loads(metadata.get("universal", "false"))
    if not isinstance(provenance, dict) or not isinstance(universal, bool):
        raise ValueError("a provenance that is no mapping, or 'universal' that is neither true nor false")
    vocabulary = Vocabulary.read(metadata["vocabulary"]) if "vocabulary" in metadata else None
    return About(spec, hidden, provenance, vocabulary, universal)


def shapes_of(spec: FeatureSpec, hidden: int) -> dict[str, list[int | None]]:
    """Return the shape of each tensor of a file; None = any length but 0."""
    inputs, h = spec.size, hidden
    shapes: dict[str, list[int | None]] = {
        "mean": [inputs], "scale": [inputs], "layer1.weight": [h, inputs], "layer1.bias": [h],
        "layer2.weight": [h, h], "layer2.bias": [h], "layer3.weight": [1, h], "layer3.bias": [1],
    }  # fmt: skip
    return {**shapes, "token_class": [None]} if spec.classes else shapes


def _check(about: About, found: dict[str, tuple[str, list[int]]]) -> None:
    """Raise ValueError naming the first tensor that does not match the metadata."""
    expected = shapes_of(about.spec, about.hidden)
    for name in expected:
        if name not in found and not (name == "token_class" and about.universal):
            raise ValueError(f"no tensor {name}")
    for name, (dtype, shape) in found.items():
        if name not in expected:
            raise ValueError(f"a tensor {name}, which no evaluator of these features has")
        kinds = {"U8": "uint8"} if name == "token_class" else FLOATS
        if dtype not in kinds:
            raise ValueError(f"tensor {name} of dtype {dtype}, where {' or '.join(kinds.values())} is known")
        fits = len(shape) == len(expected[name]) and all(
            size == wanted if wanted is not None else size > 0
            for size, wanted in zip(shape, expected[name], strict=True)
        )
        if not fits:
            wanted = ["V" if size is None else size for size in expected[name]]
            raise ValueError(
                f"tensor {name} of shape {shape}, where its features and width {about.hidden} in its metadata ask for "
                f"[{', '.join(map(str, wanted))}]"
            )
