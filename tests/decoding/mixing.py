"""Texts that differ in all that the texts of one batch may differ in, together and each alone."""

import dataclasses
from typing import Any

from decoding.architectures import prompt
from decoding.brute_force import BruteForce
from decoding.running import Run, run, same_texts

import caw
from caw.decoding.row_settings import RowSettings
from caw.settings import Sampling
from caw.testing import assert_close

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(12, 3), prompt(4, 1), prompt(7, 5)]
SAMPLED = {"do_sample": True, "temperature": 1.2, "top_k": 60, "top_p": 0.9, "seed": 11}
ROWS = [
    RowSettings(max_new_tokens=14),
    RowSettings(max_new_tokens=14, key=2**62 + 12345, **SAMPLED),
    RowSettings(max_new_tokens=5, do_sample=True, seed=2**64 - 1, strength_factor=0.5),
    RowSettings(max_new_tokens=14, do_sample=True, temperature=0.8, top_p=0.7, strength_factor=0.0),
    RowSettings(max_new_tokens=11, do_sample=True, top_k=5, seed=11, strength_factor=1.25, key="other"),
    RowSettings(max_new_tokens=14, strength_factor=0.3, key=2**62 + 12345),
]
# greedy and sampled, alone and together, with rows that want none of it
PENALISED = [
    RowSettings(max_new_tokens=14, repetition_penalty=1.3),
    RowSettings(max_new_tokens=14, presence_penalty=1.5, min_p=0.05, **SAMPLED),
    RowSettings(max_new_tokens=5),
    RowSettings(max_new_tokens=14, frequency_penalty=-1.0, logit_bias={3: 4.0, 5: -100.0}),
    RowSettings(max_new_tokens=11, do_sample=True, repetition_penalty=0.7, min_p=0.1, seed=11, strength_factor=1.25),
    RowSettings(max_new_tokens=14, repetition_penalty=1.2, presence_penalty=-0.5, frequency_penalty=0.8,
                logit_bias={7: 1.5}),
]  # fmt: skip
FOREIGN = {
    "transformers": caw.KGW(key=15485863, delta=3.0, format="transformers"),
    "tested": caw.KGW(key=7, delta=3.0, seeding="selfhash", format="lm-watermarking"),
    "markllm": caw.Unigram(key=5, delta=2.0, format="markllm"),
    "sbw": caw.KGW(key=5, delta=2.0, gamma=0.5, format="sbw"),
    "markllm race": caw.EXP(key=9, format="markllm", top_k=12),
    "dual": caw.EXP(key=5, format="vllm-dual", top_k=12, alpha=0.5),
    "sglang": caw.EXP(key=[5, 6], format="sglang", top_k=12, alpha=0.5),
    "synthid": caw.SynthID(key=3, depth=6, sampling_table_size=1 << 12),
}


def rows_for(watermark: Any, rows: list[RowSettings]) -> list[RowSettings]:
    """Without a watermark nobody brings a key."""
    return rows if watermark is not None else [dataclasses.replace(row, key=None) for row in rows]


def references_for(
    model: Any, rows: list[RowSettings], watermark: Any, policy: Any, eos: tuple[int, ...], mark_eos: bool = True
) -> list[BruteForce]:
    names = {field.name for field in dataclasses.fields(Sampling)} - {"max_new_tokens"}
    return [
        BruteForce(
            model, watermark if row.key is None else dataclasses.replace(watermark, key=row.key), policy,
            eos=eos if row.ends is None else row.ends, mark_eos=mark_eos, row_factor=row.strength_factor,
            **{name: getattr(row, name) for name in names},
        )
        for row in rows
    ]  # fmt: skip


def as_defined(
    done: Run, model: Any, rows: list[RowSettings], watermark: Any, policy: Any, eos: tuple[int, ...], **options: Any
) -> None:
    """The texts and their ends are those of the definition, most of them exactly, others within their margins."""
    references = references_for(model, rows, watermark, policy, eos, **options)
    made = [one.decode(ids, row.max_new_tokens) for one, ids, row in zip(references, PROMPTS, rows, strict=True)]
    ended = ["eos" if ids[-1] in one.eos else "length" for ids, one in zip(made, references, strict=True)]
    same_texts(done, dataclasses.replace(done, tokens=made, reasons=ended), references, PROMPTS)
    exact = [one == other for one, other in zip(done.tokens, made, strict=True)]
    assert sum(exact) > len(exact) / 2


def texts(done: Run) -> list[tuple[list[int], str]]:
    return list(zip(done.tokens, done.reasons, strict=True))


def alone(model: Any, rows: list[RowSettings], watermark: Any, policy: Any, **settings: Any) -> Run:
    """Each text decoded by itself, put together as if it were one run; equal requests do not come in these tests."""
    runs = [run(model, [p], watermark, policy, rows=[row], **settings) for p, row in zip(PROMPTS, rows, strict=True)]
    parts = [[getattr(one, name)[0] for one in runs] for name in ("tokens", "reasons", "traces", "errors")]
    return Run(*parts)  # type: ignore[arg-type]


def compare(model: Any, watermark: Any, policy: Any, fixed: bool = False, **settings: Any) -> Run:
    """All at once, and with three places, so that rows join late in a freed place; the run of each alone."""
    settings = {"eos_token_ids": (2,), "max_new_tokens": 14, "slots": 2, **settings}
    rows = rows_for(watermark, settings.pop("rows", ROWS))
    expected = alone(model, rows, watermark, policy, **settings)
    for batch in (len(rows), 3):
        done = run(model, PROMPTS, watermark, policy, rows=rows, batch=batch, fixed=fixed, **settings)
        assert texts(done) == texts(expected), batch
        for mixed, single in zip(done.traces, expected.traces, strict=True):
            assert (mixed.candidates, mixed.choice) == (single.candidates, single.choice)
            assert_close(mixed.strength, single.strength, "capacity")
    return expected
