"""Sampling settings of a model's generation config, which are applied only on request."""

from pathlib import Path
from typing import Any, get_type_hints

from caw.models.gguf import is_gguf
from caw.models.sources import file_or_folder, tokenizer_source
from caw.settings import DRAWING, Sampling

# as named in a generation config and in `caw.generate`, with the kind of each
NAMES = {name: get_type_hints(Sampling)[name] for name in (*DRAWING, "repetition_penalty")}


def model_sampling(model: Any) -> dict[str, Any]:
    """Return the sampling arguments for `caw.generate` in a model's own generation config, for
    `**model_sampling(model)`.

    model: a transformers causal LM. Returns what the config sets of `do_sample`, the temperature, the
    filters after it and `repetition_penalty`; {} if it sets none. transformers' own defaults (top_k=50 in
    `model.generate(do_sample=True)`) are not included. Raises TypeError without a generation config.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        raise TypeError(f"model must have a generation_config, got {type(model).__name__}; see caw.load_model")
    found = {name: getattr(config, name, None) for name in NAMES}
    return {name: kind(found[name]) for name, kind in NAMES.items() if found[name] is not None}


def sampling_of_source(name: str | Path) -> dict[str, Any]:
    """`model_sampling` of a model before it is loaded, {} for a .gguf file. Raises as `load_model` for bad names."""
    from transformers import GenerationConfig

    if is_gguf(file_or_folder(name)):
        return {}
    source = tokenizer_source(name)
    try:
        config = GenerationConfig.from_pretrained(source.folder, local_files_only=source.local)
    except OSError:  # a model without one
        return {}
    return model_sampling(type("Suggested", (), {"generation_config": config}))


def sampling_text(settings: dict[str, Any]) -> str:
    """Format for people: "temperature=0.6, top_p=0.95"; "nothing" for none."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "nothing"
