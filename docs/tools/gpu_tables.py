"""Tables of what the GPU runs measured: captured steps, drawn ones, weights of fewer bits, kernels."""

from __future__ import annotations

from typing import Any

from result_files import as_table, read_result, source

FILE = "gpu_h100.json.xz"
SPEC = 3352e9  # bytes per second of an H100 SXM's memory, by its data sheet
NAMES = {
    "plain": "unmarked", "kgw+caw": "KGW under CAW", "exp+caw": "EXP under CAW, 8 candidates",
    "compiled-torch": "compiled torch, unmarked", "plain/drawn": "unmarked", "kgw/drawn": "KGW",
    "kgw+caw/drawn": "KGW under CAW", "exp/drawn": "EXP, the full race",
}  # fmt: skip


def gpu_steps() -> str:
    """Times of captured steps over plain ones, by batch and prefix."""
    lines = []
    for rows in [*_cases("steps_b1"), *_cases("steps_tuned"), *_cases("steps_batches")]:
        plain = rows["plain"]
        moved = plain["bytes"] / (1e-6 * plain["step_us"]["median"])
        others = [_ratio(rows, mode) for mode in ("kgw+caw", "exp+caw", "compiled-torch")]
        lines.append((plain["batch"], f"{plain['prefix']:,}", f"{plain['step_us']['median'] / 1e3:.2f}",
                      f"{plain['share_of_bandwidth']:.2f}", f"{moved / SPEC:.2f}", *others))  # fmt: skip
    header = ("batch", "tokens before", "unmarked, ms", "of a copy's bandwidth", "of the data sheet's",
              *(NAMES[mode] for mode in ("kgw+caw", "exp+caw", "compiled-torch")))  # fmt: skip
    return _table(header, lines, "steps_b1", "steps_tuned", "steps_batches")


def gpu_drawn() -> str:
    """Times of drawn steps over greedy plain ones, by batch."""
    modes = ("plain/drawn", "kgw/drawn", "kgw+caw/drawn", "exp/drawn")
    lines = [
        (rows["plain"]["batch"], f"{rows['plain']['step_us']['median'] / 1e3:.2f}", *(_ratio(rows, m) for m in modes))
        for rows in _cases("steps_drawn")
    ]
    return _table(("batch", "unmarked and greedy, ms", *(NAMES[mode] for mode in modes)), lines, "steps_drawn")


def gpu_weights() -> str:
    """Times of steps with weights of fewer bits and with overlapping kernels, over float16's."""
    base = next(iter(_cases("steps_b1")))["plain"]["step_us"]["median"]
    kinds = {"steps_b1": "float16", "steps_fp8": "fp8", "steps_int4": "int4",
             "steps_overlap": "float16, `CAW_OVERLAP=1`"}  # fmt: skip
    lines = []
    for part, name in kinds.items():
        rows = next(iter(_cases(part)))
        plain = rows["plain"]["step_us"]["median"]
        lines.append((name, f"{plain / 1e3:.2f}", f"{plain / base:.2f}", f"{rows['plain']['share_of_bandwidth']:.2f}",
                      _ratio(rows, "kgw+caw"), _ratio(rows, "exp+caw")))  # fmt: skip
    header = ("weights", "unmarked, ms", "over float16", "of a copy's bandwidth", NAMES["kgw+caw"], NAMES["exp+caw"])
    return _table(header, lines, "steps_fp8", "steps_int4", "steps_overlap")


def gpu_kernels() -> str:
    """Times of single kernels beside torch's; attention only where a time was kept."""
    lines = []
    for part in ("kernels_topk", "kernels_tail", "kernels_attention"):
        for row in _parts()[part]["rows"]:
            if "caw" in row.get("us", ()):
                others = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items() if name != "caw")
                lines.append((row["case"], f"{row['us']['caw']:.1f}", f"{row['share_of_bandwidth']:.0%}", others))
    header = ("case", "us", "of a copy's bandwidth", "others, us")
    return _table(header, lines, "kernels_topk", "kernels_tail", "kernels_attention")


def _parts() -> dict[str, Any]:
    parts: dict[str, Any] = read_result(FILE)["parts"]
    return parts


def _cases(part: str) -> list[dict[str, dict[str, Any]]]:
    """Rows by mode, for each (batch, prefix) of a part."""
    cases: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for row in _parts()[part]["rows"]:
        cases.setdefault((row["batch"], row["prefix"]), {})[row["mode"]] = row
    return list(cases.values())


def _ratio(rows: dict[str, dict[str, Any]], mode: str) -> str:
    """The ratio over plain in the same run; empty where the mode was not timed."""
    return f"{rows[mode]['ratio']['median']:.3f}" if mode in rows else ""


def _table(header: tuple[Any, ...], lines: list[tuple[Any, ...]], *parts: str) -> str:
    commands = "\n".join(_parts()[part]["command"] for part in parts)
    found = read_result(FILE)
    said = f"One {found['gpu']}, shapes of Llama-2-7B in float16, random weights; medians."
    return f"{as_table(header, lines)}\n\n{said} {source(FILE)} Its commands:\n\n```bash\n{commands}\n```"
