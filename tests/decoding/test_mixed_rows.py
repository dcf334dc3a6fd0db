"""One batch of texts that differ in all that texts may differ in: each is what it is alone (float32)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from decoding.capturing import Replayed
from decoding.mixing import FOREIGN, PROMPTS, ROWS, alone, compare, rows_for, texts
from decoding.running import make_decoder, run
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise

import caw
from caw.decoding.capture import run_ahead
from caw.decoding.capture.run_ahead import RunAhead
from caw.decoding.row_settings import RowSettings


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
