"""`caw detect --config`: watermarks to test for, from a YAML (or JSON) file.

watermarks:
  - name: ours
    watermark: kgw              # kgw, unigram, exp
    key_env: CAW_KEY            # the environment variable that holds the key, or `key: ...`
    delta: 2.5                  # any parameter of the class
  - name: a partner's
    watermark: kgw
    key: 15485863
    format: transformers
    vocab_size: 49152
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from caw.cli import options as opt
from caw.io.inputs import read_text
from caw.io.show import shown_variable
from caw.requirements import require
from caw.watermarks.keys import read_key
from caw.watermarks.names import WATERMARKS, watermark_class

if TYPE_CHECKING:
    from caw.watermarks import Signature

Normalize = Annotated[
    str | None,
    opt.panel(
        "Test",
        "Normalization before tokenization, in this order; none leaves texts unchanged [readings: texts with "
        "invisible characters, wrapped lines and the like are tested both unchanged and repaired, with a correction "
        "for testing twice].",
        metavar="nfc,nfkc,spaces,quotes|none|readings",
    ),
]


def read_key_list(path: Path) -> dict[str, Signature]:
    """Read watermarks by name. Raise ValueError in one sentence, which never contains a key."""
    require("pyyaml", "--config")
    import yaml

    try:
        loaded = yaml.load(read_text(path), _as_written(yaml))  # a safe loader
    except yaml.YAMLError:
        # what the parser says would quote the file, and with it perhaps a key
        raise ValueError(f"{path} is not valid YAML; check its indentation and quotes") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply; use the structure shown in `caw detect --help`") from None
    entries = loaded.get("watermarks") if isinstance(loaded, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path} must contain a list `watermarks`, found none; see `caw detect --help`")
    found: dict[str, Signature] = {}
    for number, entry in enumerate(entries, 1):
        name, watermark = _named_watermark(entry, f"{path}, watermark {number}")
        if name in found:
            raise ValueError(f"{path} must use each name once, got {name!r} twice; rename one")
        found[name] = watermark
    return found


def _named_watermark(entry: Any, where: str) -> tuple[str, Signature]:
    if not isinstance(entry, dict) or not all(isinstance(k, str) for k in entry):
        raise ValueError(f"{where} must be a mapping of names to values, got {type(entry).__name__}; indent it")
    values = dict(entry)
    kind = values.pop("watermark", "kgw")
    if not isinstance(kind, str) or kind not in WATERMARKS:
        raise ValueError(f"{where}: watermark must be one of {', '.join(WATERMARKS)}, got {kind!r}; choose one")
    cls = watermark_class(kind)
    key, variable = values.pop("key", None), values.pop("key_env", None)
    if (key is None) == (variable is None):
        raise ValueError(f"{where}: expected one of key and key_env, got {'none' if key is None else 'both'}; give one")
    if variable is not None:
        key = os.environ.get(str(variable))
        if not key:
            raise ValueError(f"{where}: {shown_variable(variable)} must hold the key, it is not set; export it")
    name = str(values.pop("name", f"{kind} {where.rsplit(' ', 1)[-1]}"))
    known = {field.name for field in fields(cls)} - {"key"}
    for parameter in values:
        if parameter not in known:
            raise ValueError(f"{where}: {parameter!r} is not a parameter of {kind}; use {', '.join(sorted(known))}")
    try:
        secret: Any = key if isinstance(key, list) else read_key(key)  # a list: layer keys of SynthID, SGLang's two
        return name, cls(secret, **values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None


KEPT_TAGS = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:binary")


def _as_written(yaml: Any) -> Any:
    """Return a loader that reads a key as the text that stands there, not as the number or date that YAML sees."""

    class AsWritten(yaml.SafeLoader):
        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            for name, value in node.value:
                if name.value == "key" and isinstance(value, yaml.ScalarNode) and value.tag not in KEPT_TAGS:
                    value.tag = "tag:yaml.org,2002:str"

    return AsWritten
