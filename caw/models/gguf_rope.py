"""The rotary embedding of a .gguf file, as transformers writes it into a config."""

import itertools
import math
from typing import Any

import numpy as np

from caw.models.gguf_account import Account
from caw.models.gguf_file import PLAIN

USUAL_LENGTH = 8192  # of Llama 3 before it was scaled; where no length is stored, one is as good as another
NEAR, EXACT = 1e-5, 3e-7  # factors are stored in float32


def rope_parameters(account: Account, head: int, positions: int, partial: bool = False) -> dict[str, Any]:
    """Return transformers' `rope_parameters`, or ValueError. partial: may fewer dimensions than a head has turn."""
    turned = account.integer("rope.dimension_count", head)
    base: dict[str, Any] = {"rope_type": "default", "rope_theta": account.real("rope.freq_base", 10000.0)}
    if turned != head:
        if not partial or turned > head or turned % 2:
            raise account.refused(f"a rope.dimension_count of {turned} with heads of {head}")
        # transformers rounds the product down
        base["partial_rotary_factor"] = (
            turned / head if int(head * (turned / head)) == turned else (turned + 0.5) / head
        )
    return base | _scaling(account, base["rope_theta"], turned, positions)


def _scaling(account: Account, theta: float, turned: int, positions: int) -> dict[str, Any]:
    factor = account.real("rope.scaling.factor", account.real("rope.scale_linear", 0.0)) or 1.0
    kind = account.text("rope.scaling.type", "linear")  # the format's default
    given = account.has("rope.scaling.original_context_length")
    original = account.integer("rope.scaling.original_context_length", positions)
    attention = account.real("rope.scaling.attn_factor", 1.0)
    long, short = (_factors(account, f"rope_factors_{name}.weight", turned) for name in ("long", "short"))
    own = _factors(account, "rope_freqs.weight", turned)
    if own is not None and (own == 1).all():
        own = None
    if kind == "yarn":
        found = _yarn(account, factor, original)
        found["attention_factor"] *= attention
    elif long is not None and short is not None and kind in ("linear", "longrope", "none"):
        found = {"rope_type": "longrope", "long_factor": long.tolist(), "short_factor": short.tolist()}
        found |= {"attention_factor": attention, "original_max_position_embeddings": original}
        # transformers wants one, and does not read it where the attention's factor is given
        found["factor"] = max(positions / original, 1.0)
        long = short = None
        factor = factor if kind != "none" else 1.0
    elif kind in ("linear", "none"):
        found = {} if kind == "none" or factor == 1 else {"rope_type": "linear", "factor": factor}
        factor = 1.0
        if attention != 1:
            raise account.refused(f"a rope.scaling.attn_factor of {attention:g} without a scaling that has one")
    else:
        raise account.refused(f"a rope.scaling.type of {kind!r}")
    if long is not None or short is not None:
        raise account.refused(f"rope_factors_long.weight or rope_factors_short.weight with a rope scaling {kind!r}")
    if own is not None:
        if found:
            raise account.refused(f"rope_freqs.weight beside another rope scaling ({found['rope_type']})")
        return _llama3(account, own, theta, original if given else USUAL_LENGTH)
    if found.get("rope_type") == "longrope" and factor != 1:
        raise account.refused(f"a rope.scaling.factor of {factor:g} beside rope_factors_long.weight")
    return found


def _yarn(account: Account, factor: float, original: int) -> dict[str, Any]:
    if account.real("rope.scaling.yarn_ext_factor", 1.0) != 1:
        raise account.refused("a rope.scaling.yarn_ext_factor other than 1")
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    attention = account.real("rope.scaling.yarn_attn_factor", usual)
    if abs(attention - usual) > NEAR:  # programs disagree on whether it replaces the usual one
        raise account.refused(f"a rope.scaling.yarn_attn_factor of {attention:g}")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": usual,
        "beta_fast": account.real("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": account.real("rope.scaling.yarn_beta_slow", 1.0),
    }


def _factors(account: Account, name: str, turned: int) -> np.ndarray | None:
    info = account.tensor(name)
    if info is None:
        return None
    if info.kind not in PLAIN or info.shape != (turned // 2,):
        raise account.refused(f"{name} of shape {list(info.shape)} for {turned} turned dimensions")
    found = account.file.floats(info).astype(np.float64)
    if not (np.isfinite(found) & (found > 0)).all():
        raise account.refused(f"{name} with factors that are not above 0")
    return found


def _llama3(account: Account, factors: np.ndarray, theta: float, length: int) -> dict[str, Any]:
    """Recover Llama 3's scaling from these factors, the only trace of it in a file.

    A frequency 1 / w is divided by 1 / ((1 - s) / factor + s) with s = a / w - b, cut to [0, 1]: a and b are a line
    through the factors between 1 and the greatest, or through the last of 1 and the first of the greatest.
    """
    factor = factors.max()
    waves = 2 * np.pi * theta ** (np.arange(len(factors)) / len(factors))
    smooth = (1 / factors - 1 / factor) / (1 - 1 / factor) if factor > 1 else np.ones_like(factors)
    between = (smooth > NEAR) & (smooth < 1 - NEAR)
    for a, b in _lines(waves, smooth, between):
        width = length / a
        low = max(b * width, 1e-6 * width)
        # as it was written before factors were rounded to float32, if it may be: 4, not 4.000001
        for bounds in ((float(round(low, 3)), float(round(low + width, 3))), (low, low + width)):
            if _follow(bounds, factor, length / waves, factors):
                return {
                    "rope_type": "llama3", "factor": float(factor), "low_freq_factor": bounds[0],
                    "high_freq_factor": bounds[1], "original_max_position_embeddings": length,
                }  # fmt: skip
    raise account.refused("rope_freqs.weight with factors that are not those of Llama 3's formula")


def _follow(bounds: tuple[float, float], factor: float, turns: np.ndarray, factors: np.ndarray) -> bool:
    """Return whether the formula with these bounds gives the factors; turns: of each frequency within the length."""
    low, high = bounds
    if not 0 < low < high:
        return False
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return bool(np.allclose(1 / ((1 - smooth) / factor + smooth), factors, rtol=EXACT, atol=0))


def _lines(waves: np.ndarray, smooth: np.ndarray, between: np.ndarray) -> list[tuple[float, float]]:
    """Return (a, b) of lines that the factors may lie on."""
    ends = [(waves[i], smooth[i]) for i in np.flatnonzero(between)]
    ones, zeros = waves[smooth >= 1 - NEAR], waves[smooth <= NEAR]
    if len(ends) < 2:
        ends = [*((w, 1.0) for w in ones[-1:]), *ends, *((w, 0.0) for w in zeros[:1])]
    pairs = [(ends[0], ends[-1])] if len(ends) > 1 else []
    pairs += itertools.pairwise(ends)
    found = []
    for (w, s), (v, t) in pairs:
        a = (s - t) / (1 / w - 1 / v)
        if a > 0:
            found.append((a, a / w - s))
    return found
