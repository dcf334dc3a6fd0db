"""Which search of a guard is better: from left to right, each change in the text that the ones before left, or patches?

    PYTHONPATH=benchmarks python lab/left_to_right.py rows.jsonl --model MODEL.gguf --quantization file-fast \\
        --data DATA --first 7000 --count 32 --key 20 --json left_to_right.json

Three searches of the same train questions of GSM8K, keeps="results", at most 96 rollouts each:

price   the library's: patches of the unmarked text, the most evidence for what they cost first
place   the same, in order of place
onward  from left to right. A change that is taken makes a new text, which is read again from there on (one forward over
        the tail): what the mark would change behind it is asked of the new text, and rollouts rejoin the new text.
        Passes of growing strength, as the library's stages: what the strengths choose, then other tokens at the same
        places, then at others. Each proposal, a token behind the same 20 tokens, is tried once

In all, proposals that touch a digit come last in a stage, and those without evidence of their own are left out. All
search at --level .001. A search does the same at every level until it is detected, so what it needs at 1 % is read from
the same run: the rollouts and their tokens up to the first text with a p-value of at most .01. Rows are appended batch
by batch, so a run can be continued. Costs are CPU seconds on one thread over those of the unmarked texts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from bench_guard import Setting, nats

import caw
from caw.benchmark.machine import about
from caw.decoding.along import POSITIONS, TextReading, read_records
from caw.decoding.forks import ForkDecoder, Reading, ReadSequence
from caw.decoding.reading import chunk_logits
from caw.detectable import guarding
from caw.detectable.search import Search
from caw.detectable.splicing import spliced
from caw.models.shared_prefix import common_length
from caw.record import Record
from caw_lab.evaluation.metrics.accuracy import wilson

LEVELS = (0.01, 0.001)
SAME = 20  # tokens before a change that make it the same proposal
SEEN: list[Any] = []  # searches of the call in progress, in the order of their texts


# ---- the searches ----------------------------------------------------------------------------------------------------
class Counted(Search):
    """The library's search; counts the tokens of judged rollouts, and what was needed to be detected at each level."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rolled_tokens, self.read_tokens, self.taken = 0, 0, 0
        self.needed: dict[float, dict[str, int]] = {}
        SEEN.append(self)

    def _rolled(self, base: Any, choice: Any, sequence: Any) -> Any:
        self.rolled_tokens += len(sequence.tokens) - choice.place
        return super()._rolled(base, choice, sequence)

    def _checked(self, base: Any, patches: Any, tokens: list[int]) -> Any:
        version = super()._checked(base, patches, tokens)
        if version is not None:
            self._note(version.verdict.result.p_value)
        return version

    def _note(self, p_value: float) -> None:
        """Note what was needed for a text that is kept."""
        for level in LEVELS:
            if p_value <= level and level not in self.needed:
                self.needed[level] = {
                    "rollouts": self.rollouts, "tokens": self.rolled_tokens, "read": self.read_tokens,
                }  # fmt: skip


class ByPlace(Counted):
    """The same, with its proposals in order of place."""

    def _ordered(self, base: Any, proposals: Any) -> Any:
        return sorted(super()._ordered(base, proposals), key=lambda choice: (self._digit(base, choice), choice.place))

    def _digit(self, base: Any, choice: Any) -> bool:
        pair = self.stops.text([choice.token]) + self.stops.text([base.tokens[choice.place]])
        return any(char.isdigit() for char in pair)


@dataclasses.dataclass(frozen=True)
class Onward(Reading):
    """A request to read the text that a change made, whose keys and values take the place of its stem's."""


class LeftToRight(ByPlace):
    """From left to right: the text with a change that was taken is the next text that is changed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.over, self.tried = False, set[tuple[Any, ...]]()

    def _try(
        self, base: Any, reading: Any, state: Any, proposals: Any, *, again: bool = False
    ) -> Generator[Any, Any, None]:
        """Make all passes in the first call; nothing is left for the others."""
        if self.over:
            return
        self.over = True
        last = len(self.strengths) - 1
        for number in range(last + 3):
            for digits in (False, True) if number >= last else (False,):
                reading = yield from self._pass(reading, state, number, digits)
                if state.over or self.rollouts >= self.guard.rollouts:
                    return

    def _ordered(self, base: Any, proposals: Any) -> Any:
        return list(proposals)  # those of the unmarked text, which `_from` takes from its reading

    def _pass(self, reading: TextReading, state: Any, number: int, digits: bool) -> Generator[Any, Any, TextReading]:
        """Go through the text once; return its reading when it is over."""
        place = 0
        waiting = deque(self._from(reading, state.best, number, digits, place))
        flying = deque[tuple[Any, int]]()
        while (waiting or flying) and not state.over and self.rollouts < self.guard.rollouts:
            room = min(max(self.together(), 1), self.guard.rollouts - self.rollouts)
            while waiting and len(flying) < room:
                choice = waiting.popleft()
                flying.append((choice, self._ask(self._rollout(state.best, choice))))
            choice, asked = flying.popleft()
            before = state.best
            sequence = yield from self._answer(asked)
            self.rollouts += 1
            self.tried.add(self._named(before, choice))
            one = self._rolled(before, choice, sequence)
            if one is None:
                continue
            state.best, place = self._allowed(before, [one.patch]), choice.place
            state.taken.append(one)
            self.taken += 1
            if state.over:
                break
            reading = yield from self._onward(reading, before, state.best, one.patch)
            flying.clear()  # of the text that was; in vain
            waiting = deque(self._from(reading, state.best, number, digits, place + 1))
        return reading

    def _from(self, reading: TextReading, base: Any, number: int, digits: bool, place: int) -> list[Any]:
        """The proposals of a pass from a place on, in order."""
        stages = [[one for one in reading.choices if one.level <= level] for level in range(len(self.strengths))]
        proposals = [*stages, reading.others, reading.beyond][number]
        left = [one for one in proposals if one.place >= place and self._digit(base, one) == digits]
        return super()._ordered(base, [one for one in left if self._named(base, one) not in self.tried])

    def _named(self, base: Any, choice: Any) -> tuple[Any, ...]:
        return (*base.tokens[max(choice.place - SAME, 0) : choice.place], None, choice.token)

    def _onward(self, old: TextReading, before: Any, after: Any, patch: Any) -> Generator[Any, Any, TextReading]:
        """Read the new text from the change on; what was read before it stays."""
        asked = self._reading(after.tokens, patch.start, self.strengths)
        fields = {field.name: getattr(asked, field.name) for field in dataclasses.fields(asked)}
        self.read_tokens += len(after.tokens) - patch.start
        assert after.tokens == spliced(before.tokens, [patch])[: len(after.tokens)]
        answer = yield from self._answer(self._ask(Onward(**fields)))
        new = answer.reading
        kept = [
            [*(one for one in known if one.place < patch.start), *found]
            for known, found in ((old.choices, new.choices), (old.others, new.others), (old.beyond, new.beyond))
        ]
        return TextReading(0, [], [], *kept)

    def _prune(self, base: Any, state: Any) -> None:
        """No change is left out: those behind it were chosen for the text that has it."""


class OnwardDecoder(ForkDecoder):
    """Reads the text that a change made: keys, values and records of its tail replace those of its stem."""

    def _read(self, number: int, index: int, request: Reading) -> None:
        if not isinstance(request, Onward):
            super()._read(number, index, request)
            return
        stem, text, known = request.stem, request.text, list(request.known)
        history, kept = self.plan.history, len(stem.records) - 1 - self.plan.history
        prompt, same = len(request.ids), common_length([stem.ids, known])
        same = min(same, len(known) - 1)
        first = same - prompt  # token of the text from which on it is read
        assert 0 <= first <= kept
        self._copy(number, stem, known, same)
        row = torch.tensor([number], device=self.cache.lengths.device)
        records = stem.records[: first + 1 + history]
        for begin in range(same, len(known), POSITIONS):
            part = known[begin : begin + POSITIONS]
            places = torch.arange(len(part), device=row.device)
            logits = chunk_logits(self.model, self.cache, row, torch.tensor([part], device=row.device), begin, places)[
                0
            ]
            record = Record.from_logits(logits, kernels=self.plan.kernels)
            records += [record.take(torch.tensor([at])) for at in range(len(part))]
        self.cache.end_prefill(torch.tensor([len(known)], device=row.device))
        self._save(number, stem, known)
        stem.records, stem.text = records, list(text)
        self.held[number] = known
        self.cache.lengths[number] = 0
        ends = request.row.ends_of(self.plan.facts.ends, self.plan.facts.vocab_size)
        found = read_records(
            self.reading, request, text, ends, self.waiting.marks, Record.joined(records),
            since=request.since, strengths=request.strengths,
        )  # fmt: skip
        self.read.append(ReadSequence(index, request, ends, finish_reason="read", reading=found))


SEARCHES: dict[str, type[Counted]] = {"price": Counted, "place": ByPlace, "onward": LeftToRight}


# ---- the measurement -------------------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSONL of results, continued if it exists")
    parser.add_argument("--model", required=True)
    parser.add_argument("--evaluator", default="qwen2.5-coder-0.5b-cot")
    parser.add_argument("--weights", default="qwen2.5-coder-0.5b-cot")
    parser.add_argument("--quantization")
    parser.add_argument("--data", required=True, help="folder with gsm8k/train.jsonl")
    parser.add_argument("--first", type=int, default=7000)
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--key", type=int, default=20, help="number of the key")
    parser.add_argument("--level", type=float, default=LEVELS[-1])
    parser.add_argument("--batch", type=int, default=8, help="texts at once")
    parser.add_argument("--searches", nargs="+", default=list(SEARCHES), choices=SEARCHES)
    parser.add_argument("--json", type=Path, help="summary")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {line["id"] for line in lines}
    fixed = {"what": "gsm8k", "split": "train", "shots": 5, "edits": 0.0, "guard": "{}", "alone": False,
             "beside": False, "plain": False}  # fmt: skip
    its = Setting(argparse.Namespace(**vars(asked), **fixed))
    guarding.ForkDecoder = OnwardDecoder  # type: ignore[misc]
    left = [each for each in its.prompts if each[0] not in done]
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(left), asked.batch):
        rows = measured(its, left[start : start + asked.batch], asked)
        with asked.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        lines += rows
        print(json.dumps(summary(lines)), flush=True)
    if asked.json is not None:
        settings = {name: getattr(asked, name) for name in ("quantization", "first", "count", "key", "level", "batch")}
        settings |= {"model": Path(asked.model).name, "evaluator": asked.evaluator, "split": "train"}
        asked.json.write_text(json.dumps({**about(), **settings, "searches": summary(lines)}, indent=1) + "\n")


def measured(its: Setting, group: Sequence[tuple[str, str, Any]], asked: Any) -> list[dict[str, Any]]:
    """The rows of a batch: each with its unmarked text and each search's."""
    said, cache = [prompt for _, prompt, _ in group], caw.PromptCache()

    def timed(**more: Any) -> tuple[Any, float]:
        given = {"progress": False, "prompt_cache": cache, "batch_size": asked.batch, **its.limits, **more}
        start = time.process_time()
        made = caw.generate(its.model, its.tokenizer, said, **given)
        return made, (time.process_time() - start) / len(said)

    timed(max_new_tokens=1)
    plain, seconds = timed(speculate=None)

    def cost(prompt: str, ids: Sequence[int]) -> float:
        return nats(its.model, its.tokenizer, prompt, ids, chat=False)

    rows: list[dict[str, Any]] = [
        {"id": name, "tokens": len(ids), "seconds": seconds, "nats": cost(prompt, ids)}
        for (name, prompt, _), ids in zip(group, plain.sequences, strict=True)
    ]  # fmt: skip
    for name in asked.searches:
        guarding.Search = SEARCHES[name]  # type: ignore[misc]
        SEEN.clear()
        made, seconds = timed(**its.ways["guard"])
        for number, (row, (_, prompt, _), search) in enumerate(zip(rows, group, SEEN, strict=True)):
            receipt, text, ids = made.receipts[number], made.texts[number], made.sequences[number]
            unmarked = float(its.detector(plain.texts[number]).p_value)
            row[name] = {
                "seconds": seconds, "p": receipt.p_value, "found": receipt.detected, "rollouts": receipt.rollouts,
                "kept": its.keeps(plain.texts[number], text), "rolled": search.rolled_tokens,
                "read": search.read_tokens, "taken": search.taken, "nats": cost(prompt, ids),
                "unmarked": unmarked, "needed": {str(level): each for level, each in search.needed.items()},
            }  # fmt: skip
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each search: texts detected and kept at both levels, rollouts and their tokens up to there, decodes at .1 %.

    rolled, read: tokens of rollouts, and of texts that were read again, over those of the unmarked texts.
    """
    made = []
    for name in SEARCHES:
        own = [(row, row[name]) for row in rows if name in row]
        if not own:
            continue
        line: dict[str, Any] = {"search": name, "texts": len(own)}
        line["decodes"] = round(sum(one["seconds"] for _, one in own) / sum(row["seconds"] for row, _ in own), 2)
        line["rise"] = round(fmean(one["nats"] - row["nats"] for row, one in own), 3)
        for level in LEVELS:
            tokens = sum(row["tokens"] for row, _ in own)
            free = {"rollouts": 0, "tokens": 0, "read": 0}
            all_of_it = [{"rollouts": one["rollouts"], "tokens": one["rolled"], "read": one["read"]} for _, one in own]
            needed = [
                free if one["unmarked"] <= level else one["needed"].get(str(level), whole)
                for (_, one), whole in zip(own, all_of_it, strict=True)
            ]
            found = [one["unmarked"] <= level or str(level) in one["needed"] for _, one in own]
            line[f"{level:g}"] = {
                "found": sum(found), "found_ci": [round(end, 3) for end in wilson(sum(found), len(found))],
                "rollouts": round(fmean(each["rollouts"] for each in needed), 1),
                "rolled": round(sum(each["tokens"] for each in needed) / tokens, 2),
                "read": round(sum(each["read"] for each in needed) / tokens, 2),
            }  # fmt: skip
        made.append(line)
    return made


if __name__ == "__main__":
    main()
