"""Options of training an evaluator; importing this needs no PyTorch."""

from dataclasses import dataclass
from pathlib import Path

from caw_lab.training.labels import TEMPLATE


@dataclass(frozen=True)
class LabelFile:
    """Labelled texts on disk: `read_labels` of path and data_dir; statement: see `labels.restate`."""

    path: str | Path
    data_dir: str | Path
    statement: str | None = None


@dataclass(frozen=True)
class Reading:
    """The model that reads labelled texts, its prompt, and where to store its records.

    model, device, dtype: as `caw.load_model` takes them. template, prefix: the prompt; see `labels.encode`.
    quantized: `weights` of `caw.load_model`.
    folder: a complete one made from the same model, texts and prompt is used instead of running the model; None = a
        temporary one.
    """

    model: str | Path
    template: str = TEMPLATE
    prefix: str = ""
    folder: str | Path | None = None
    device: str | None = None
    dtype: str = "float32"
    quantization: str | None = None


@dataclass(frozen=True)
class TrainSettings:
    """hidden: width h. patience: epochs without a better validation loss before stopping. dropout: share of hidden
    units dropped while training. weight_decay: decoupled (AdamW); 0 is plain Adam."""

    hidden: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    dropout: float = 0.1
    batch_size: int = 512
    max_epochs: int = 150
    patience: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "batch_size", "max_epochs", "patience"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}; use the default")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout!r}; use 0.1")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise ValueError(
                f"learning_rate must be > 0 and weight_decay >= 0, got {self.learning_rate!r} and "
                f"{self.weight_decay!r}; use the defaults"
            )
