"""The table of speed goals: what was asked for, what result files say, and what bounds it. No number stands here."""

from __future__ import annotations

from collections.abc import Iterable

from result_files import INSTRUCTIONS, as_table, middle, read_result

from caw.benchmark.machine import best_instructions

Line = tuple[str, str, str, str]  # goal, measured, whether it is met, what bounds it
NOT = "not measured"
NO_AMX = "no processor with AMX was at hand since the products changed"
NUCLEUS = "T .7, top-p .95"
NAMES = {"plain": "unmarked", "kgw": "KGW", "exp": "race"}
FILES = ("drawn", "synthid_steps", "no_look_ahead", "parts", "row_invariance", "servers", "quantization", "loading",
         "call", "drafts")  # fmt: skip


def speed_goals() -> str:
    """Goals of speed on a CPU beside the committed measurements."""
    header = ("goal", "measured", "met or missed", "what bounds it")
    lines = [*_drawn(), *_synthid(), *_rows(), *_servers(), *_gemma(), *_start()]
    return f"{as_table(header, lines)}\n\n*From {', '.join(f'`{name}`' for name in FILES)} in `benchmarks/results`.*"


def _processor(name: str) -> str:
    """The best vector instructions of the processor that made a file."""
    best = best_instructions(read_result(name)["machine"]["cpu"])
    return INSTRUCTIONS.get(best, best)


def _judged(found: dict[str, float], goal: float, most: bool = True) -> str:
    """Whether all of these are at most (or at least) the goal, or which are not."""
    missed = [name for name, value in found.items() if (value > goal if most else value < goal)]
    return "met" if not missed else "missed" if len(missed) == len(found) else f"missed: {', '.join(missed)}"


def _said(found: dict[str, float], digits: int = 3) -> str:
    return "; ".join(f"{name} {value:.{digits}f}" for name, value in found.items())


def _ends(values: Iterable[float], digits: int = 2) -> str:
    each = sorted(f"{value:.{digits}f}" for value in values)
    return each[0] if each[0] == each[-1] else f"{each[0]} to {each[-1]}"


def _batches(found: dict[tuple[str, int], float]) -> str:
    """A mark after the other, its batches in a list."""
    marks = dict.fromkeys(mark for mark, _ in found)
    return "; ".join(f"{m} {', '.join(f'{v:.3f}' for (own, _), v in found.items() if own == m)}" for m in marks)


def _of_batches(found: dict[tuple[str, int], float], goal: float) -> str:
    return _judged({f"{mark} at batch {batch}": value for (mark, batch), value in found.items()}, goal)


# ---- drawing and SynthID ---------------------------------------------------------------------------------------------
def _drawn() -> list[Line]:
    rows = {(r["case"], r["batch"]): r for r in read_result("drawn.json")["rows"]}
    batches = list(dict.fromkeys(batch for _, batch in rows))
    lines = []
    for way, said, goal in ((NUCLEUS, "T 0.7, top-p 0.95", 1.05), ("T 1", "T 1, no cut", 1.15)):
        found = {(name, b): rows[f"{mark}, {way}", b]["ratio"][0] for mark, name in NAMES.items() for b in batches}
        mark, batch = max(found, key=found.__getitem__)
        own = rows[f"{next(key for key, name in NAMES.items() if name == mark)}, {way}", batch]
        greedy = rows["plain, greedy", batch]
        choosing = own["stages"]["ladder"] - greedy["stages"]["ladder"]
        more = own["step_ms"][0] - greedy["step_ms"][0]
        bound = f"{mark} at batch {batch}: choosing takes {choosing:.1f} of the {more:.1f} ms more"
        lines.append((
            f"{said}, over the greedy unmarked step, batch {', '.join(map(str, batches))}: <= {goal:.2f}",
            f"{_batches(found)} (float32, {_processor('drawn.json')})", _of_batches(found, goal),
            bound if found[mark, batch] > goal else "",
        ))  # fmt: skip
    return lines


def _synthid() -> list[Line]:
    rows = read_result("synthid_steps.json")["rows"]
    named = {"synthid, greedy": "greedy", f"synthid, {NUCLEUS}": "top-p", "synthid+caw, greedy": "greedy under CAW",
             f"synthid+caw, {NUCLEUS}": "top-p under CAW"}  # fmt: skip
    found = {(said, r["batch"]): r["over_race"][0] for case, said in named.items() for r in rows if r["case"] == case}
    steps = max(r["steps"] for r in rows if r["case"] == "synthid+caw, greedy")
    return [(
        "SynthID over the race, batch 1, 8, 16: <= 1.10",
        f"{_batches(found)} (float32, {_processor('synthid_steps.json')})", _of_batches(found, 1.1),
        f"greedy under CAW, {steps:.2f} steps a token: a chosen token that was not forwarded takes a step more",
    )]  # fmt: skip


# ---- rows of a step --------------------------------------------------------------------------------------------------
def _rows() -> list[Line]:
    parts = {(r["batch"], r["case"]): r["parts"] for r in read_result("parts.json")["rows"]
             if (r["dtype"], r.get("threads", 1)) == ("float32", 1)}  # fmt: skip
    over = {b: parts[b, "plain, greedy"]["products"] / parts[b, "floor"]["products"] for b in (8, 16)}
    arithmetic = f"arithmetic: unmarked products take {over[8]:.1f} and {over[16]:.1f} times the reading of the weights"
    found = {(r["case"].split(",")[0], r["dtype"], r["batch"]): r["ratio"][0]
             for r in read_result("no_look_ahead.json")["rows"]}  # fmt: skip
    dtypes = list(dict.fromkeys(dtype for _, dtype, _ in found))
    lines = []
    for kind, said in (("caw", "looking ahead"), ("window00", "no look-ahead")):
        own = {(f"{mark.upper()} {dtype}", b): found[f"{mark}+{kind}", dtype, b]
               for mark in ("kgw", "exp") for dtype in dtypes for b in (8, 16)}  # fmt: skip
        bound = f"{arithmetic} at batch 8 and 16, and candidates are rows" if kind == "caw" else "one row a text"
        lines.append((f"CAW over unmarked, {said}, on AVX-512, batch 8, 16: <= 1.15",
                      f"{_batches(own)} ({_processor('no_look_ahead.json')})",
                      _of_batches(own, 1.15), bound))  # fmt: skip
    return [*lines, _caw_on_amx(), _batch_on_amx(parts)]


def _caw_on_amx() -> Line:
    goal = "CAW over unmarked on AMX: <= 1.05 at batch 1, 1.08 at 8, 1.12 at 16"
    asked = {1: 1.05, 8: 1.08, 16: 1.12}
    took: dict[int, list[float]] = {batch: [] for batch in asked}
    for r in read_result("drafts.json.xz")["rows"]:
        if (
            r["instructions"] == "amx_bf16"
            and r["model"] == "smollm2-135m"
            and r["variant"] in ("KGW, CAW", "EXP, CAW")
        ):
            took.get(r["batch"], []).append(1 / r["speed_over_plain"])
    if not any(took.values()):
        return goal, NOT, NOT, NO_AMX
    said = "; ".join(f"batch {b} {_ends(each) if each else NOT}" for b, each in took.items())
    met = "; ".join(f"batch {b} {_judged({'': max(each)}, asked[b]) if each else NOT}" for b, each in took.items())
    return goal, f"earlier products, bfloat16, four kinds of prompts, KGW and EXP: {said}", met, NO_AMX


def _batch_on_amx(parts: dict[tuple[int, str], dict[str, float]]) -> Line:
    found = read_result("row_invariance.json")
    here = parts[16, "plain, greedy"]["all"] / parts[1, "plain, greedy"]["all"]
    said = f"{NOT} ({_processor('parts.json')}, float32: {here:.2f})"
    if best_instructions(found["machine"]["cpu"]) == "amx_bf16":
        took = {(r["shapes"], r["dtype"], r["rows"]): r["ms"] for r in found["rows"] if not r["prompt"]}
        kinds = dict.fromkeys((shapes, dtype) for shapes, dtype, _ in took)
        each = {f"{s}, {d}": took[s, d, 16] / took[s, d, 1] for s, d in kinds}
        said += f"; products and attention alone, earlier products: {_said(each, 2)}"
    return "Unmarked, batch 16 over batch 1 on AMX: <= 1.5", said, NOT, NO_AMX


# ---- servers ---------------------------------------------------------------------------------------------------------
WAYS = {"greedy": "greedy", "drawn": "T 0.7", "nucleus": "top-p"}
MARKED, WITHOUT, RACE = "caw, KGW under CAW", "caw, KGW under CAW, no look-ahead", "caw, race"
PEER = "vLLM, unmarked"


def _servers() -> list[Line]:
    rows = {(r["dtype"] == "blocks", r["clients"], r["way"], r["side"]): r for r in read_result("servers.json")["rows"]}

    def throughput(clients: int, goal: float) -> Line:
        found, bounds, missing = {}, [], []
        for way, said in WAYS.items():
            own = rows.get((False, clients, way, MARKED))
            if own is None:
                missing.append(said)
                continue
            found[said] = own["ratio"][0]
            if own["ratio"][0] < goal:
                busy, theirs = (r["rate"][0] / r["own"][0] for r in (own, rows[False, clients, way, PEER]))
                bounds.append(f"{said}: {busy:.1f} cores busy, vLLM's {theirs:.1f}; per second of processor time "
                              f"{own['own_ratio'][0]:.2f}")  # fmt: skip
        race = rows.get((False, clients, "nucleus", RACE))
        more = f"; the race, top-p {race['ratio'][0]:.2f}" if race else ""
        without = rows.get((False, clients, "greedy", WITHOUT))
        more += f"; no look-ahead, greedy {without['ratio'][0]:.2f}" if without else ""
        said = _said(found, 2) + more + (f"; {', '.join(missing)} {NOT}" if missing else "")
        return (f"`caw serve`, KGW under CAW, over vLLM unmarked, {clients} request{'s' * (clients > 1)}: >= {goal}",
                said, _judged(found, goal, most=False), "; ".join(bounds))  # fmt: skip

    def waiting(name: str) -> dict[str, float]:
        each = {"CAW": rows.get((False, 16, "busy", MARKED)), "no look-ahead": rows.get((False, 16, "busy", WITHOUT))}
        return {said: row[name][0] for said, row in each.items() if row}

    few, many = (rows.get((False, clients, "greedy", MARKED)) for clients in (16, 64))
    first, gaps = waiting("first_ratio"), waiting("gap_99")
    blocks = {f"{n} slot{'s' * (n > 1)}": r["ratio"][0] for (own, n, way, side), r in rows.items()
              if own and way == "greedy" and side == MARKED}  # fmt: skip
    lines = [throughput(16, 1.1), throughput(1, 1.5)]
    if first:
        lines += [
            ("Busy server, first token of a prompt of 1,000 over vLLM's: <= 1.2", _said(first, 2), _judged(first, 1.2),
             "the other texts go on between portions of the prompt; vLLM's stand still"),
            ("Busy server, 99th percentile between tokens, in usual gaps: <= 3", _said(gaps, 2), _judged(gaps, 3), ""),
        ]  # fmt: skip
    if few and many:
        rates = {"16 requests": few["rate"][0], "64 requests": many["rate"][0]}
        lines.append(("64 requests: no fewer tokens a second than 16", _said(rates, 0),
                      _judged({"": many["rate"][0]}, few["rate"][0], most=False), ""))  # fmt: skip
    lines.append(("`caw serve`, KGW under CAW, over llama.cpp's server unmarked, same 4-bit file: >= 1.5",
                  _said(blocks, 2), _judged(blocks, 1.5, most=False), ""))  # fmt: skip
    return lines


# ---- Gemma, loading, calls -------------------------------------------------------------------------------------------
def _gemma() -> list[Line]:
    runs = [
        run for run in read_result("quantization.json.xz")["runs"]
        if run["arguments"]["model"].startswith("gemma3") and best_instructions(run["processor"]) == "avx512_bf16"
    ]  # fmt: skip
    rows = {(r["side"], r["batch"]): r for run in runs for r in run["rows"]}
    sides = {"kgw+caw": "exact", "fast kgw+caw": "fast"}
    found = {f"{name} at batch {b}": middle(rows[side, b]["ratios"])
             for side, name in sides.items() for b in (1, 8) if (side, b) in rows}  # fmt: skip
    goal = "Gemma 3 270M, KGW under CAW, over llama.cpp unmarked, same file: >= 1.5"
    if not found:
        return [(goal, NOT, "", "")]
    most = middle(rows["llama.cpp", 1]["seconds"]) / runs[-1]["floor"]
    bound = f"memory at batch 1: reading the weights once and nothing else would be {most:.2f}"
    return [(goal, _said(found, 2), _judged(found, 1.5, most=False), bound)]


def _start() -> list[Line]:
    loaded = [row for run in read_result("loading.json")["runs"] for row in run["rows"]]
    gemma = {f"{row['model'].split('.Q')[0]}, s": middle([r["first_token"][1] for r in row["rounds"]])
             for row in loaded if row["model"].startswith("gemma3")}  # fmt: skip
    calls = {r["setting"] + (f", {r['model'].split('.Q')[0]}" if "model" in r else ""): r["ms"]
             for r in read_result("call.json")["rows"]}  # fmt: skip
    return [
        ("Gemma 3 270M's file, `load_model` to the first token: <= 3 s",
         _said(gemma, 1) + " of processor time" if gemma else NOT, _judged(gemma, 3) if gemma else NOT, ""),
        ("`generate` before prefill, model loaded: <= 3 ms", _said(calls, 2), _judged(calls, 3),
         "Python: checks, tokenizer, caches, states; under CAW the evaluator too" if max(calls.values()) > 3 else ""),
    ]  # fmt: skip
