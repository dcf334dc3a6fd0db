"""Models of .gguf files: direct use of their blocks (F16 and BF16 too), or dequantization to float32.

A file's blocks are reordered for products (`ops.pack_blocks`) at every load, straight into their final memory: half a
second to a second per gigabyte. A reordered copy on disk would save less than half of that and double the disk space.
Only settings and tokenizer, which take longer, are cached on disk.
"""

from typing import Any

import numpy as np
import torch

from caw.models.gguf_account import Account
from caw.models.gguf_families import TOP, config_settings, require_family
from caw.models.gguf_file import FAMILIES, PLAIN, GGUFFile, TensorInfo, known_type
from caw.models.huge_pages import HugePages
from caw.models.messages import one_sentence
from caw.models.quantized import HalfEmbedding, HalfLinear, QuantizedEmbedding, QuantizedLinear
from caw.ops_ref.block_types import BLOCK_TYPES

HALVES = {1: torch.float16, 30: torch.bfloat16}  # by ggml's number


def quantized_model(file: GGUFFile, fast: bool = False, empty: Any = None) -> Any:
    """Return the causal language model of a .gguf file with its own blocks as weights, in eval mode.

    fast: round inputs of products to 8 bits. empty: the model without weights, if it is known. Raises ValueError in
    one sentence for a file that does not contain this model, or has unsupported parts.
    """
    if file.architecture not in FAMILIES:
        raise ValueError(
            f"quantization='file' knows {', '.join(FAMILIES)}, {file.path.name} is a {file.architecture!r}; leave "
            "quantization out to dequantize it"
        )
    model = _filled(file, empty, Blocks, fast)
    # what is worked out, not stored, was left without numbers
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    model.save_pretrained = _refuse_saving
    return model.eval().requires_grad_(False)


def dequantized_model(file: GGUFFile) -> Any:
    """Return the same in float32, to be saved: computed tensors are on the meta device. Raises the same errors."""
    model = _filled(file, None, Numbers)
    model.tie_weights()
    return model.requires_grad_(False)


def _filled(file: GGUFFile, model: Any, way: "type[Numbers]", *options: Any) -> Any:
    account = Account(file)
    file.check_layers()
    settings = config_settings(account)
    if model is None:
        from transformers import AutoConfig, AutoModelForCausalLM

        # other settings that lie show here: sizes beyond all numbers
        with one_sentence(file.path), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    filler = way(account, model.config, *options)
    filler.find(model)
    account.close()
    filler.fill(model)
    return model


def _refuse_saving(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "expected a model of plain weights to save, found the blocks of a .gguf file; copy that file, or load it with "
        "quantization=None and a dtype"
    )


class Numbers:
    """Puts a file's tensors, as float32, into the modules of a model without weights."""

    def __init__(self, account: Account, config: Any) -> None:
        self.account, self.file, self.family = account, account.file, require_family(account.file)
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.heads = {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads} if self.family.turned else {}
        self._found: dict[str, TensorInfo | None] = {}

    def find(self, model: Any) -> None:
        """Tick off the tensor of every parameter. ValueError for a missing one or one of another shape."""
        shapes = {name: tuple(value.shape) for name, value in model.named_parameters(remove_duplicate=False)}
        for name, shape in shapes.items():
            self._found[name] = self._wanted(name, shape)

    def fill(self, model: Any) -> None:
        for name, module in list(model.named_modules()):
            if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
                parent, _, own = name.rpartition(".")
                setattr(model.get_submodule(parent), own, self._layer(name, module))
            else:
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        module._parameters[own] = self._plain(f"{name}.{own}", parameter.shape)

    def _layer(self, name: str, module: Any) -> torch.nn.Module:
        for own, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[own] = self._plain(f"{name}.{own}", parameter.shape)
        return module

    def _stored(self, name: str) -> str:
        """Return the file's name of a model parameter."""
        stem, _, suffix = name.rpartition(".")
        short = TOP.get(stem)
        if short is None:
            number, _, part = stem.removeprefix("model.layers.").partition(".")
            short = f"blk.{number}.{self.family.parts.get(part, part)}"
        return f"{short}.{suffix}"

    def _wanted(self, name: str, shape: tuple[int, ...]) -> TensorInfo | None:
        stored = self._stored(name)
        info = self.account.tensor(stored)
        if info is None and name == "lm_head.weight":
            info = self.account.tensor("token_embd.weight")  # one table for both
        if info is None and self._may_lack(stored):
            return None
        if info is None or info.shape != shape:
            found = "none" if info is None else list(info.shape)
            raise ValueError(
                f"expected {name} {list(shape)} as {stored} in {self.file.path}, found {found}; download it again"
            )
        self._check_type(info)
        return info

    def _may_lack(self, stored: str) -> bool:
        """Return whether it is a bias that no layer has; one flag of transformers covers several."""
        part = stored.split(".", 2)[-1]
        others = (name.split(".", 2)[-1] for name in self.file.tensors if name.startswith("blk."))
        return self.family.optional and part.endswith(".bias") and stored.startswith("blk.") and part not in others

    def _check_type(self, info: TensorInfo) -> None:
        import gguf

        if info.kind not in PLAIN and info.kind not in gguf.quants._type_traits:
            raise ValueError(
                f"expected blocks that the gguf package can dequantize, found ggml's type {info.kind} for {info.name} "
                f"in {self.file.path.name}; take another file"
            )

    def _numbers(self, info: TensorInfo) -> np.ndarray:
        if info.kind in PLAIN:
            return self.file.floats(info)
        import gguf

        kind = gguf.GGMLQuantizationType(info.kind)
        rows = self.file.bytes_of(info, *gguf.GGML_QUANT_SIZES[kind])
        found = gguf.quants.dequantize(rows, kind).astype(np.float32, copy=False)
        return np.asarray(found).reshape(info.shape)

    def _plain(self, name: str, shape: torch.Size) -> torch.nn.Parameter:
        info = self._found[name]
        if info is None:
            return torch.nn.Parameter(torch.zeros(shape), requires_grad=False)
        values = self._in_order(name, self._numbers(info))
        if self.family.above and "norm" in name and name.endswith(".weight"):
            values = values - np.float32(self.family.above)
        self.file.forget(info)
        return torch.nn.Parameter(torch.from_numpy(values), requires_grad=False)

    def _in_order(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return whole rows in the model's order."""
        heads = next((count for part, count in self.heads.items() if part in name), None)
        if heads is None:
            return rows
        if rows.shape[0] % (2 * heads):
            raise ValueError(
                f"expected rows of {heads} heads for {name}, found {rows.shape[0]}; download the file again"
            )
        turned = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1).swapaxes(1, 2)
        return np.ascontiguousarray(turned).reshape(rows.shape)


class Blocks(Numbers):
    """The same, with matrices in the file's own blocks."""

    def __init__(self, account: Account, config: Any, fast: bool) -> None:
        super().__init__(account, config)
        self.fast = fast
        self._packed: dict[str, torch.Tensor] = {}
        self._pages = HugePages()

    def _check_type(self, info: TensorInfo) -> None:
        if not known_type(info.kind):
            raise ValueError(
                f"quantization='file' knows F32, F16, BF16 and {', '.join(b.name for b in BLOCK_TYPES.values())}, "
                f"found ggml's type {info.kind} for {info.name}; take another file, or leave quantization out to "
                "dequantize it"
            )
        if len(info.shape) == 1 and info.kind not in PLAIN:
            raise ValueError(f"expected plain numbers for {info.name}, found blocks in {self.file.path}; take another")

    def _layer(self, name: str, module: Any) -> torch.nn.Module:
        weight = f"{name}.weight"
        info = self._found[weight]
        assert info is not None
        outputs, inputs = info.shape
        bias = getattr(module, "bias", None)
        added = None if bias is None else self._plain(f"{name}.bias", bias.shape)
        scale = getattr(module, "scalar_embed_scale", None)
        if info.kind in PLAIN and info.kind not in HALVES:
            module.weight, module.bias = self._plain(weight, module.weight.shape), added
            if scale is not None:
                module.embed_scale = torch.tensor(scale)
            return module
        if info.name not in self._packed:
            rows = self._in_order(weight, self.file.array(info))
            if info.kind in HALVES:
                self._packed[info.name] = self._pages.copy(torch.from_numpy(rows).view(HALVES[info.kind]))
            else:
                self._packed[info.name] = self._pages.pack(torch.from_numpy(rows), info.kind, self.fast)
            self.file.forget(info)
        packed, half = self._packed[info.name], info.kind in HALVES
        if isinstance(module, torch.nn.Embedding):
            return (HalfEmbedding if half else QuantizedEmbedding)(
                packed, outputs, inputs, 1.0 if scale is None else scale
            )
        return (HalfLinear if half else QuantizedLinear)(packed, outputs, inputs, None if added is None else added.data)
