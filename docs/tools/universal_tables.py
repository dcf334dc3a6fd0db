"""Tables of the evaluators that serve every model (`bench_universal.py`, `bench_everyday_policies.py`)."""

from __future__ import annotations

import re
from typing import Any

from result_files import as_table, read_result, share, source, with_ends

TRAIN = "python benchmarks/bench_universal.py train runs/universal --models FOLDER"
KEYS = f"{TRAIN} --label key --name universal --positions MODEL=POSITIONS ..."
COMBINE = "python benchmarks/bench_universal.py combine runs/changes --models FOLDER"
_CASE = ("model", "split", "policy", "than")
WINDOWS = {"universal": "(1, 1)", "window00": "(0, 0)"}


def universal_key() -> str:
    """The universal network on key segments."""
    rows = [
        (row["model"], row["documents"], f"{row['seen']:.3f}", f"{row['unseen']:.3f}")
        for row in read_result("universal.json")["trained"]["universal"]["sets"]
    ]
    header = ("model", "held-out documents", "AUROC, documents unseen", "AUROC, family unseen")
    return f"{as_table(header, rows)}\n\n{_said(KEYS)}"


def universal_texts() -> str:
    """Answers in maths under every policy, each with a target."""
    found = read_result("universal.json")
    rows = [
        (row["model"], row["prompts"], row["texts"], found["policies"].get(row["policy"], "no mark"),
         with_ends(row["found"], *row["found_ci"]), with_ends(row["kept"], *row["kept_ci"]),
         with_ends(row["both"], *row["both_ci"]) if "both" in row else "", share(row["right"]))
        for row in found["texts"] if (row["kind"], row["split"]) == ("maths", "test")
    ]  # fmt: skip
    header = ("model", "questions", "texts", "policy", "found", "answer of the unmarked text kept", "found and kept",
              "right")  # fmt: skip
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def universal_beside() -> str:
    """Answers in maths: what one policy has over another on the same questions and keys."""
    found = read_result("universal.json")
    names = found["policies"]
    rows = [
        (row["model"], row["prompts"], names.get(row["policy"], row["policy"]), names.get(row["than"], row["than"]),
         *(_points(row, name) for name in ("found", "kept", "both")))
        for row in found["pairs"] if (row["kind"], row["split"]) == ("maths", "test")
    ]  # fmt: skip
    header = ("model", "questions", "policy", "beside", "found more often, points", "answers kept", "found and kept")
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def universal_judged() -> str:
    """Everyday texts that another model read: found, and the rise in nats beside that of other policies."""
    found = read_result("universal.json")
    pairs, rows = _pairs(found), []
    for row in _judged(found):
        if row["policy"].startswith("window"):
            continue
        beside = [pairs.get((row["model"], row["split"], row["policy"], than), {}) for than in ("own", "fixed")]
        cells = [
            f"{pair['rise_ratio']:.2f} ({_ends(pair['rise_ratio_ci'])}); {_points(pair, 'found')}"
            if "rise_ratio" in pair
            else ""
            for pair in beside
        ]
        rows.append((
            row["model"], row["prompts"], row["texts"], found["policies"].get(row["policy"], "no mark"),
            with_ends(row["found"], *row["found_ci"]), f"{row['nats']:.2f}",
            "" if row["policy"] == "none" else f"{row['rise']:.2f} ({_ends(row['rise_ci'])})", *cells,
        ))  # fmt: skip
    header = ("model", "prompts", "texts", "policy", "found at 0.1 %", "nats per token under another model", "rise",
              "rise over that of the model's own evaluator; found beyond it, points",
              "the same, fixed strength")  # fmt: skip
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def universal_windows() -> str:
    """What looking ahead is worth in everyday texts: `universal` beside its kin that do not."""
    found = read_result("universal.json")
    pairs, rows = _pairs(found), []
    judged = [row for row in _judged(found) if row["policy"] in WINDOWS]
    measured = {row["model"] for row in judged if row["policy"] != "universal"}
    for row in judged:
        if row["model"] not in measured:
            continue
        beside = pairs.get((row["model"], row["split"], "universal", row["policy"]))
        cells = ("", "") if beside is None else (
            _points(beside, "found"), f"{beside['rise_ratio']:.2f} ({_ends(beside['rise_ratio_ci'])})"
        )  # fmt: skip
        rows.append((
            row["model"], WINDOWS[row["policy"]], row["texts"], with_ends(row["found"], *row["found_ci"]),
            f"{row['rise']:.2f} ({_ends(row['rise_ci'])})", *cells,
        ))  # fmt: skip
    header = ("model", "window", "texts", "found at 0.1 %", "rise in nats per token under another model",
              "(1, 1) finds more by, points", "rise of (1, 1) over that of this window")  # fmt: skip
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def _judged(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Everyday texts on prompts that nothing was chosen on, read by another model."""
    return [row for row in found["texts"] if (row["kind"], row["split"]) == ("everyday", "test") and "rise" in row]


def _pairs(found: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By model, split and both policies."""
    return {tuple(row[name] for name in _CASE): row for row in found["pairs"] if row["kind"] == "everyday"}


SUMMED, SHIPPED = ", standardised", "all three, standardised"
TARGETS = ("does not heal", "harmful", "other answer")


def universal_combinations() -> str:
    """Key segments, harm and healing, alone and together: what they foresee of a change."""
    found = read_result("universal.json")["combinations"]
    columns = [f"{target}, {kind}" for target in TARGETS for kind in ("maths", "everyday")]
    columns = [name for name in columns if any(name in row["auroc"] for row in found["rows"])]
    rows = []
    for row in found["rows"]:
        if row["score"].endswith(SUMMED) and row["score"] != SHIPPED:
            continue
        cells = [row["auroc"][name] for name in columns]
        rows.append(
            (
                row["score"] + " (`universal-answers`)" * (row["score"] == SHIPPED),
                *(f"{_auroc(seen)}; {unseen[0]:.2f}" for seen, unseen in cells),
            )
        )
    table = as_table(("score", *(f"{name} (95 % interval); family unseen" for name in columns)), rows)
    return f"{table}\n\n{_counted(found)}"


def universal_combined() -> str:
    """Whole texts on prompts of the train split, under the combination as well."""
    found = read_result("universal.json")
    rows = [
        (row["model"], row["kind"], row["texts"], found["policies"].get(row["policy"], "no mark"),
         with_ends(row["found"], *row["found_ci"]), with_ends(row["kept"], *row["kept_ci"]) if "kept" in row else "",
         f"{row['rise']:.2f} ({_ends(row['rise_ci'])})" if "rise" in row and row["policy"] != "none" else "")
        for row in found["texts"] if row["split"] == "train"
    ]  # fmt: skip
    header = ("model", "texts", "prompts", "policy", "found", "answer of the unmarked text kept",
              "rise in nats per token under another model")  # fmt: skip
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def universal_grid() -> str:
    """`universal` by theta and beta: found, and the rise in nats under another model."""
    found = read_result("universal.json")["grid"]
    cells = {(row["model"], row["policy"]): row for row in found}
    models = list(dict.fromkeys(row["model"] for row in found))
    asked = dict.fromkeys(row["policy"] for row in found)
    rows = [
        (*re.findall(r"[\d.]+", policy), *(_found_and_rise(cells.get((model, policy))) for model in models))
        for policy in asked
    ]
    texts = {model: max(row["texts"] for row in found if row["model"] == model) for model in models}
    header = ("theta", "beta", *(f"{model} ({texts[model]} texts): found; rise" for model in models))
    return f"{as_table(header, rows or _nothing(header))}\n\n{source('universal.json')}"


def _found_and_rise(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{share(row['found'])}; {row['rise']:.2f} ({_ends(row['rise_ci'])})"


def _auroc(mean: list[float]) -> str:
    return "{:.2f} ({:.2f} - {:.2f})".format(*mean)


def _counted(found: dict[str, Any]) -> str:
    """Which changes the figures are of."""
    sets = found["sets"]
    answers = [row for row in sets if "answers" in row]
    said = f"{sum(row['changes'] for row in sets):,} changes in {sum(row['documents'] for row in sets)} texts of "
    said += ", ".join(dict.fromkeys(row["model"] for row in sets))
    for row in answers:
        said += f"; {row['answers']} answers of {row['model']}, {share(row['other answer'])} of them another one"
    return f"*{said}. From `benchmarks/results/universal.json`, made by `{COMBINE}`.*"


def _said(command: str) -> str:
    return f"*From `benchmarks/results/universal.json`, trained by `{command}`.*"


def _nothing(header: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [("not measured yet", *[""] * (len(header) - 1))]


def _points(row: dict[str, Any], name: str) -> str:
    low, high = (100 * end for end in row[f"{name}_ci"])
    return f"{100 * row[name]:+.1f} ({low:.0f} to {high:.0f})"


def _ends(ends: tuple[float, float]) -> str:
    return "{:.2f} - {:.2f}".format(*ends)


def everyday_policies() -> str:
    """Greedy everyday texts under policies with a target."""
    found = read_result("everyday_policies.json")
    models = {"smollm2": "SmolLM2-135M", "qwen05": "Qwen2.5-Coder-0.5B", "qwen15": "Qwen2.5-Coder-1.5B",
              "gemma270m": "Gemma 3 270M (base)"}  # fmt: skip
    names = {"fixed": "fixed strength 1", "own": "CAW, the model's own", "universal": "CAW, `universal`"}
    rows = [
        (models[row["model"]], names[row["policy"]], f"{row['found']} of {row['texts']}", f"{row['unmarked']:.2f}",
         f"{row['rise']:.2f} ({row['rise_ci'][0]:.2f} - {row['rise_ci'][1]:.2f})")
        for row in found["rows"]
    ]  # fmt: skip
    header = ("model", "policy", "detected at 0.1 %", "nats per token, unmarked", "rise (95 % interval)")
    return f"{as_table(header, rows)}\n\n{source('everyday_policies.json')}"
