"""Tables of the evaluators that serve every model (`bench_universal.py`, `bench_everyday_policies.py`)."""

from __future__ import annotations

from result_files import as_table, read_result, share, source, with_ends


def universal() -> str:
    """The evaluator of healing on changes of every model and kind of text, beside others."""
    found = read_result("universal.json")["trained"]
    rows = []
    for row in found["universal"]["sets"]:
        low, high = row["unseen_ci"]
        own = "smollm2-135m" if row["family"] == "smollm2" else "qwen2.5-coder-0.5b"
        rows.append((
            row["model"], row["kind"], row["examples"], row["documents"], share(1 - row["share"]), f"{row['seen']:.3f}",
            f"{row['unseen']:.3f} ({low:.2f} - {high:.2f})", f"{row['unseen, no digits']:.3f}",
            f"{row[own]:.3f}; {row[own + ', no digits']:.3f}", f"{row['entropy']:.3f}",
            "; ".join(share(row["first"][name]) for name in ("unseen", own, "fixed")),
        ))  # fmt: skip
    header = ("model", "texts", "changes", "documents", "healed with the same content", "`universal-healing`",
              "the same, family unseen (95 % interval)", "the same, no digits", "trained on key segments; no digits",
              "entropy",
              "of the quarter marked first, healed: the same, unseen; key segments; fixed strength")  # fmt: skip
    return f"{as_table(header, rows)}\n\n{source('universal.json')}"


def universal_key() -> str:
    """The universal network on key segments."""
    rows = [
        (row["model"], row["documents"], f"{row['seen']:.3f}", f"{row['unseen']:.3f}")
        for row in read_result("universal.json")["trained"].get("key", {"sets": []})["sets"]
    ]
    header = ("model", "held-out documents", "AUROC, documents unseen", "AUROC, family unseen")
    return f"{as_table(header, rows)}\n\n{source('universal.json')}"


def universal_texts() -> str:
    """Whole texts under every policy, each with a target."""
    found = read_result("universal.json")
    rows = []
    for row in found["texts"]:
        kept = with_ends(row["kept"], *row["kept_ci"]) if "kept" in row else ""
        rise = f"{row['rise']:.3f} ({row['rise_ci'][0]:.3f} - {row['rise_ci'][1]:.3f})" if "rise" in row else ""
        rows.append((
            row["model"], row["kind"], row["split"], found["policies"].get(row["policy"], "no mark"), row["texts"],
            with_ends(row["found"], *row["found_ci"]), kept,
            share(row["right"]) if "right" in row else "", rise,
        ))  # fmt: skip
    header = ("model", "texts of", "prompts", "policy", "texts", "found", "answer of the unmarked text kept",
              "right", "rise in nats per token under another model")  # fmt: skip
    return f"{as_table(header, rows)}\n\n{source('universal.json')}"


def everyday_policies() -> str:
    """Greedy everyday texts under policies with a target."""
    found = read_result("everyday_policies.json")
    models = {"smollm2": "SmolLM2-135M", "qwen05": "Qwen2.5-Coder-0.5B", "qwen15": "Qwen2.5-Coder-1.5B",
              "gemma270m": "Gemma 3 270M (base)"}  # fmt: skip
    names = {"fixed": "fixed strength 1", "own": "CAW, the model's own", "universal": "CAW, `universal`",
             "universal-healing": "CAW, `universal-healing`"}  # fmt: skip
    rows = [
        (models[row["model"]], names[row["policy"]], f"{row['found']} of {row['texts']}", f"{row['unmarked']:.2f}",
         f"{row['rise']:.2f} ({row['rise_ci'][0]:.2f} - {row['rise_ci'][1]:.2f})")
        for row in found["rows"]
    ]  # fmt: skip
    header = ("model", "policy", "detected at 0.1 %", "nats per token, unmarked", "rise (95 % interval)")
    return f"{as_table(header, rows)}\n\n{source('everyday_policies.json')}"
