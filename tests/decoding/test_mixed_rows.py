"""One batch of texts that differ in all that texts may differ in: each is what it is alone (float32)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.capturing import Replayed
from decoding.running import Run, make_decoder, run
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.capture import run_ahead
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.request import Request
from caw.decoding.row_settings import RowLimits, RowSettings
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
FOREIGN = {
    "transformers": caw.KGW(key=15485863, delta=3.0, format="transformers"),
    "tested": caw.KGW(key=7, delta=3.0, seeding="selfhash", format="lm-watermarking"),
    "markllm": caw.Unigram(key=5, delta=2.0, format="markllm"),
    "sbw": caw.KGW(key=5, delta=2.0, gamma=0.5, format="sbw"),
    "markllm race": caw.EXP(key=9, format="markllm", top_k=12),
    "synthid": caw.SynthID(key=3, depth=6, sampling_table_size=1 << 12),
}


def rows_for(watermark: Any, rows: list[RowSettings]) -> list[RowSettings]:
    """Without a watermark nobody brings a key."""
    return rows if watermark is not None else [dataclasses.replace(row, key=None) for row in rows]


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


@pytest.mark.parametrize("watermark, policy", pairwise([None, *WATERMARKS], POLICIES))
def test_mixed_rows_are_as_if_alone(llama: Any, watermark: str | None, policy: str) -> None:
    chosen = WATERMARKS[watermark] if watermark else None
    expected = compare(llama, chosen, POLICIES[policy](llama) if chosen else None)
    assert not any(expected.traces[3].choice), "a factor of 0 leaves a text unmarked"


@pytest.mark.parametrize("policy", ["full", "window11"])
@pytest.mark.parametrize("watermark", FOREIGN)
def test_mixed_rows_of_other_formats(llama: Any, watermark: str, policy: str) -> None:
    compare(llama, FOREIGN[watermark], POLICIES[policy](llama))


@pytest.mark.parametrize("watermark, policy", pairwise([None, *WATERMARKS], ["full", "delta", "window11", "window21"]))
def test_mixed_rows_in_steps_that_a_graph_could_hold(llama: Any, watermark: str | None, policy: str) -> None:
    chosen = WATERMARKS[watermark] if watermark else None
    compare(llama, chosen, POLICIES[policy](llama) if chosen else None, fixed=True)


@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_mixed_rows_by_replays(llama: Any, watermark: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded with the first texts' settings, replayed with those of texts that join later."""
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    settings: dict[str, Any] = {"eos_token_ids": (2,), "max_new_tokens": 14, "slots": 2}
    rows = rows_for(chosen, ROWS)
    expected = alone(llama, rows, chosen, policy, **settings)
    made: list[Replayed] = []
    prepare = RunAhead._prepare

    def prepared(self: RunAhead) -> None:
        prepare(self)
        made.append(Replayed(self.step))
        self.captured = made[-1]  # type: ignore[assignment]

    monkeypatch.setattr(RunAhead, "_prepare", prepared)
    monkeypatch.setattr(run_ahead, "WORTH_CAPTURING", 5)
    for batch in (2, 6):
        done = run(llama, PROMPTS, chosen, policy, rows=rows, batch=batch, fixed=True, watched=False, **settings)
        assert texts(done) == texts(expected)
    assert any(step.graph is not None for step in made)


@pytest.mark.parametrize("mark_eos", [True, False])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_rows_with_ends_of_their_own(llama: Any, watermark: str | None, fixed: bool, mark_eos: bool) -> None:
    """Other end tokens, none, more and fewer of them, and other minima."""
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    free = alone(llama, rows_for(chosen, ROWS), chosen, policy, max_new_tokens=14).tokens
    changes: list[dict[str, Any]] = [
        {"ends": (free[0][6], 3)}, {"ends": ()}, {"ends": (free[2][1], free[2][3]), "min_new_tokens": 2}, {},
        {"ends": (free[4][0], 4, 5), "min_new_tokens": 6}, {"ends": (free[5][5],), "min_new_tokens": 3},
    ]  # fmt: skip
    rows = [dataclasses.replace(row, **change) for row, change in zip(ROWS, changes, strict=True)]
    expected = compare(llama, chosen, policy, fixed, rows=rows, eos_token_ids=(free[3][8],), mark_eos=mark_eos)
    for tokens, reason, row in zip(expected.tokens, expected.reasons, rows, strict=True):
        ends = (free[3][8],) if row.ends is None else row.ends
        assert not set(tokens[: row.min_new_tokens]) & set(ends)
        assert (reason == "eos") == (tokens[-1] in ends)
    assert {"eos", "length"} == set(expected.reasons)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", [*WATERMARKS, *FOREIGN])
def test_a_text_is_marked_with_its_own_key(llama: Any, name: str, fixed: bool) -> None:
    """As by the watermark that was made with this key; a text without one, by the call's."""
    watermark = (WATERMARKS | FOREIGN)[name]
    policy, keys = POLICIES["window11"](llama), [None, 2**62 + 12345, 77, None, 77, 2**62 + 12345]
    rows = [RowSettings(max_new_tokens=8, key=key) for key in keys]
    together = run(llama, PROMPTS, watermark, policy, rows=rows, max_new_tokens=8, fixed=fixed)
    for ids, key, tokens in zip(PROMPTS, keys, together.tokens, strict=True):
        own = watermark if key is None else dataclasses.replace(watermark, key=key)
        assert run(llama, [ids], own, policy, max_new_tokens=8).tokens == [tokens]
    plain = run(llama, PROMPTS, watermark, policy, max_new_tokens=8)
    assert plain.tokens != together.tokens, "a key makes a difference"


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", "scale"])
def test_keys_by_plain_pytorch_and_by_the_kernel(llama: Any, watermark: str) -> None:
    settings: dict[str, Any] = {"rows": ROWS, "max_new_tokens": 14, "slots": 2}
    policy = POLICIES["window11"](llama)
    by_kernel = run(llama, PROMPTS, WATERMARKS[watermark], policy, **settings)
    assert texts(run(llama, PROMPTS, WATERMARKS[watermark], policy, kernels=ops.references(), **settings)) == texts(
        by_kernel
    )


def test_layer_keys_of_a_row(llama: Any) -> None:
    """SynthID takes a list of them, as many as it has layers."""
    watermark, own = FOREIGN["synthid"], (5, 6, 8, 11, 13, 17)
    rows = [RowSettings(max_new_tokens=8, key=key) for key in (own, None)]
    together = run(llama, PROMPTS[:2], watermark, rows=rows, max_new_tokens=8)
    alone = run(llama, PROMPTS[:1], dataclasses.replace(watermark, key=own), max_new_tokens=8)
    assert together.tokens[0] == alone.tokens[0]
    with pytest.raises(ValueError, match="key must hold 6 layer keys, got 2; give as many as this one has"):
        run(llama, PROMPTS[:1], watermark, rows=[RowSettings(max_new_tokens=8, key=(5, 6))], max_new_tokens=8)


def test_many_keys_draw_each_list_once(llama: Any) -> None:
    decoder = make_decoder(llama, FOREIGN["transformers"], limits=RowLimits(max_new_tokens=8))
    marks = [decoder.marks.under(key) for key in (None, 5, 77, 5)]
    assert marks[1] is marks[3] and marks[1] != marks[2]
    assert len({id(mark.scheme.lists) for mark in marks}) == 1  # type: ignore[union-attr]


def test_a_uniform_batch_does_only_what_it_needs(llama: Any) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1))
    assert decoder.plan.warper is None and decoder.step.noise is None
    assert not decoder.plan.limits.factors and not decoder.plan.limits.minimum


def test_a_greater_factor_needs_room_in_the_record(llama: Any) -> None:
    """beta * factor * top_k may not exceed K."""
    rows = [RowSettings(), RowSettings(strength_factor=2.5)]
    settings: dict[str, Any] = {"max_new_tokens": 200, "rows": rows}
    with pytest.raises(ValueError, match=r"strength \* top_k must be at most 100, got 2.5 \* 50; lower"):
        run(llama, PROMPTS[:2], caw.EXP(key=1, top_k=50), **settings)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            RowSettings(do_sample=True),
            "the texts of this decoder may have samples up to False, got one with True; plan",
        ),
        (RowSettings(max_new_tokens=201), "may have max_new_tokens up to 200, got one with 201"),
        (RowSettings(min_new_tokens=1), "may have minimum up to False, got one with True"),
        (RowSettings(ends=(1, 2)), "may have ends up to 1, got one with 2"),
        (RowSettings(strength_factor=1.5), r"may have strength_factor up to 1.0, got one with 1.5"),
        (RowSettings(key=5), "may have keys up to False, got one with True"),
        (RowSettings(strength_factor=0.5), "have one strength_factor, 1, got 0.5; plan it with wider limits"),
    ],
)
def test_requests_beyond_the_plan_are_refused(llama: Any, row: RowSettings, message: str) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1), eos_token_ids=(2,))
    with pytest.raises(ValueError, match=message):
        decoder.run([Request([1, 2], 3), Request([1, 2], 3, row)])


@pytest.mark.parametrize(
    ("watermark", "key", "message"),
    [
        (None, 98765, "a text with a key of its own needs a watermark, got None; leave the key out"),
        (caw.EXP(key=1), 2**64, r"key must be in \[0, 2\*\*64\), got an integer outside it"),
        (caw.KGW(key=1, format="transformers"), 2**63, r"takes keys below 2\*\*63, got a greater one"),
    ],
)
def test_keys_that_a_watermark_cannot_have(llama: Any, watermark: Any, key: Any, message: str) -> None:
    row = RowSettings(max_new_tokens=5, key=key)
    decoder = make_decoder(llama, watermark, limits=RowLimits.of([row], ()))
    with pytest.raises(ValueError, match=message):
        decoder.run([Request([1, 2], 3, row)])
    assert str(key) not in repr(row)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"temperature": 0}, ValueError, r"temperature must be a number in \[1e-06, 10000\], got 0"),
        ({"top_p": 0}, ValueError, r"top_p must be in \(0, 1\], got 0; use do_sample=False"),
        ({"min_new_tokens": 300}, ValueError, r"min_new_tokens must be an integer in \[0, 200\], got 300"),
        ({"do_sample": 1}, TypeError, "do_sample must be True or False, got 1"),
        ({"ends": [2]}, TypeError, r"ends must be a tuple of token ids or None, got \[2\]; convert it"),
        ({"ends": (-1,)}, ValueError, r"an end token must be an integer in \[0, 2147483647\], got -1"),
        ({"ends": (True,)}, TypeError, "an end token must be an integer"),
        ({"key": [1, 2]}, TypeError, "key must be what a watermark takes or None, got list; leave it out"),
        ({"key": True}, TypeError, "key must be what a watermark takes or None, got bool"),
        ({"strength_factor": -1}, ValueError, r"strength_factor must be a number in \[0, 100\], got -1"),
    ],
)
def test_row_settings_are_checked(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        RowSettings(**settings)


def test_limits_of_rows_are_the_narrowest() -> None:
    assert RowLimits.of([RowSettings()], (2,)) == RowLimits(
        samples=False, greedy=True, temperature=False, top_k=0, top_p=False, minimum=False, max_new_tokens=200, ends=1,
        strength_factor=1.0, factors=False, keys=False,
    )  # fmt: skip
    wide = RowLimits.of(ROWS, (2, 3))
    assert wide == RowLimits(
        samples=True, greedy=True, temperature=True, top_k=60, top_p=True, minimum=False, max_new_tokens=14, ends=2,
        strength_factor=1.25, factors=True, keys=True,
    )  # fmt: skip
    assert wide.greatest(0.3) == float(torch.tensor(0.3) * torch.tensor(1.25))
