"""A real vLLM engine in one process, run by the interpreter of its own environment: `python vllm_engine.py plan.json`.

plan: {"engine": arguments of vllm.LLM, "runs": {name: {"ids": [[...]], "sampling": {...}}},
"detector": {"key": ..., "ids": [[...]]}, "out": path}. What came out is written there: {"refused": message} or {"runs":
{name: {"tokens": [[...]]}}, "preempted": times, "resumed": texts that came back with ids, "chunks":
choices that were thrown away, "p_values": by vLLM's own detector}.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def detected(asked: dict[str, Any]) -> list[float]:
    from vllm.v1.watermarking import GumbelWatermarkDetector

    detector = GumbelWatermarkDetector(
        key=asked["key"], context_width=4, p_value_threshold=1e-3, deduplicate_contexts=True
    )
    return [float(detector.detect(ids).p_value) for ids in asked["ids"]]


def watched() -> dict[str, int]:
    from caw.integrations.vllm import LogitsProcessor

    counts, update, apply = {"resumed": 0, "chunks": 0}, LogitsProcessor.update_state, LogitsProcessor.apply
    last: dict[int, int] = {}

    def update_state(self: Any, change: Any) -> None:
        if change is not None:
            counts["resumed"] += sum(len(added[3]) > 0 for added in change.added)
        update(self, change)

    def applied(self: Any, logits: Any, ctx: Any = None) -> Any:
        for text in self._runner._rows.values():
            counts["chunks"] += last.get(id(text.ids)) == len(text.ids)  # asked again at the same place
            last[id(text.ids)] = len(text.ids)
        return apply(self, logits, ctx)

    LogitsProcessor.update_state, LogitsProcessor.apply = update_state, applied
    return counts


def made(plan: dict[str, Any]) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    counts = watched()
    try:
        engine = LLM(**plan["engine"], disable_log_stats=False)
    except Exception as error:  # whatever it is, it is what the operator reads
        return {"refused": f"{type(error).__name__}: {error}"}
    runs = {}
    for name, run in plan["runs"].items():
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in run["ids"]]
        answers = engine.generate(prompts, SamplingParams(**run["sampling"]), use_tqdm=False)
        runs[name] = {"tokens": [list(answer.outputs[0].token_ids) for answer in answers]}
    preempted = sum(metric.value for metric in engine.get_metrics() if metric.name == "vllm:num_preemptions")
    return {"runs": runs, "preempted": preempted, **counts}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    if "engine" in plan:
        found |= made(plan)
    if "detector" in plan:
        found["p_values"] = detected(plan["detector"])
    Path(plan["out"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
