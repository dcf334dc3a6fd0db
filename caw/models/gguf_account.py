"""Account of a .gguf file: settings and tensors are ticked off when read; what is left over is an error."""

from typing import Any

import numpy as np

from caw.io.show import shown
from caw.models.gguf_file import GGUFFile, TensorInfo

# settings that change numbers begin with the architecture or with one of these; programs add names of their own for
# what they note, and the tokenizer's are another account
COUNTED = ("rope.", "attention.", "adapter.", "clip.", "diffusion.", "xielu.")
# of an architecture: they change no number of a forward pass
WITHOUT_EFFECT = ("rope.scaling.finetuned", "tensor_data_layout")
SHOWN = 8


class Account:
    """The settings and tensors of a file, and which of them are still unread."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        counted = (f"{file.architecture}.", *COUNTED)
        self._settings = {name for name in file.settings if name.startswith(counted)}
        self._settings -= {f"{file.architecture}.{name}" for name in WITHOUT_EFFECT}
        self._tensors = set(file.tensors)

    def refused(self, found: str) -> ValueError:
        """Return the error for a setting or a tensor that cannot be applied."""
        return ValueError(
            f"all settings of the model must be supported, found {found} in {self.file.path.name} of "
            f"architecture {shown(self.file.architecture)}; use another file, or the model that it was converted from"
        )

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer of the architecture, the same for all layers; the default if the file has none."""
        found = self._one(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self._wrong(name, f"an integer of at least {least}", found)
        return found

    def real(self, name: str, default: float | None = None) -> float:
        """Return a finite number of the architecture."""
        found = self._one(name, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not np.isfinite(found):
            raise self._wrong(name, "a number", found)
        return float(found)

    def text(self, name: str, default: str) -> str:
        found = self._one(name, default)
        if not isinstance(found, str):
            raise self._wrong(name, "a word", found)
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self._one(name, default)
        if not isinstance(found, bool):
            raise self._wrong(name, "true or false", found)
        return found

    def has(self, name: str) -> bool:
        """Return whether the file has this setting of its architecture; nothing is ticked off."""
        return self._full(name) in self.file.settings

    def layers(self, name: str, count: int) -> list[Any] | None:
        """Return a list with a value per layer, or None if the file has none or one number."""
        found = self.file.settings.get(self._full(name))
        if not isinstance(found, np.ndarray):
            return None
        if len(found) != count:
            raise self._wrong(name, f"{count} values", len(found))
        self._settings.discard(self._full(name))
        return list(found.tolist())

    def token(self, name: str, vocabulary: int) -> int | None:
        """Return the tokenizer's id with this name, such as "eos"; None if there is none."""
        found = self.file.settings.get(f"tokenizer.ggml.{name}_token_id")
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < vocabulary:
            raise ValueError(
                f"expected a tokenizer.ggml.{name}_token_id in [0, {vocabulary - 1}] in {self.file.path}, found "
                f"{shown(found)}; download it again"
            )
        return found

    def tensor(self, name: str) -> TensorInfo | None:
        """Return the tensor of this name, ticked off; None if the file has none."""
        self._tensors.discard(name)
        return self.file.tensors.get(name)

    def close(self) -> None:
        """Raise ValueError, naming them, if settings or tensors were not read."""
        left = [f"the setting {name}" for name in sorted(self._settings)]
        left += [f"the tensor {name}" for name in sorted(self._tensors)]
        if left:
            more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
            raise self.refused(f"{', '.join(left[:SHOWN])}{more}")

    def _full(self, name: str) -> str:
        return f"{self.file.architecture}.{name}"

    def _one(self, name: str, default: Any) -> Any:
        full = self._full(name)
        self._settings.discard(full)
        found = self.file.settings.get(full, default)
        if isinstance(found, np.ndarray) and len(found) and (found == found[0]).all():
            found = found[0].item()
        if isinstance(found, np.ndarray):
            raise self.refused(f"the setting {full}, which differs between layers,")
        return found

    def _wrong(self, name: str, wanted: str, found: Any) -> ValueError:
        said = "none" if found is None else shown(found)
        return ValueError(
            f"expected {wanted} as {self._full(name)} in {self.file.path}, found {said}; download it again"
        )
