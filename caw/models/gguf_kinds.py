"""Kinds of .gguf files that are not a complete model: adapters, projectors, parts of a split file, mixtures."""

from caw.io.show import shown
from caw.models.gguf_families import require_family
from caw.models.gguf_file import GGUFFile


def require_model(file: GGUFFile) -> None:
    """Raise ValueError, in one sentence that names its kind, for a file that is not a complete model of one network.

    A file's tokenizer is whole in the first part of a split file and in a mixture: `require_tokenizer` takes those.
    """
    require_tokenizer(file)
    parts, number = (file.settings.get(f"split.{name}") for name in ("count", "no"))
    if isinstance(parts, int) and parts > 1:
        place = f"part {number + 1} of {parts}" if isinstance(number, int) else f"one of {parts} parts"
        raise ValueError(
            f"expected a whole model, found {place} of a split file (split.count {parts}) in {file.path.name}; join "
            "the parts with `llama-gguf-split --merge` and load the result"
        )
    experts = file.settings.get(f"{file.architecture}.expert_count")
    if isinstance(experts, int) and experts > 0:
        raise ValueError(
            f"expected a model of one network, found a mixture of {experts} experts ({file.architecture}.expert_count) "
            f"in {file.path.name}; load the model that it was converted from, or a .gguf file without experts"
        )
    require_family(file)


def require_tokenizer(file: GGUFFile) -> None:
    """Raise ValueError for a file that is an adapter, a projector or a calibration, and not a language model."""
    kind = file.settings.get("general.type", "model")
    if kind == "adapter" or any(name.endswith((".lora_a", ".lora_b")) for name in file.tensors):
        said, remedy = "an adapter (LoRA)", "merge it into its model first"
    elif file.architecture == "clip" or kind in ("mmproj", "clip-vision") or "clip.projector_type" in file.settings:
        said, remedy = "a projector of images or sound (mmproj)", "load the language model that it belongs to"
    elif kind == "imatrix" or file.architecture == "imatrix":
        said, remedy = "an importance matrix", "load the model that it was made for"
    elif kind != "model":
        said, remedy = f"a file of type {shown(kind)} (general.type)", "load a file of type 'model'"
    else:
        return
    raise ValueError(f"expected a language model, found {said} in {file.path.name}; {remedy}")
