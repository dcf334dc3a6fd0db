"""One batch of texts that differ in all that texts may differ in: each is what it is alone (float32)."""

import copy
import dataclasses
from typing import Any

import pytest
from decoding.capturing import by_replays, graphs_of
from decoding.mixing import (
    FOREIGN,
    PENALISED,
    PROMPTS,
    ROWS,
    alone,
    as_defined,
    compare,
    references_for,
    rows_for,
    texts,
)
from decoding.running import make_decoder, run, same_texts
from decoding.test_step import POLICIES, WATERMARKS
from pairwise import pairwise

import caw
from caw.decoding.capture import run_ahead
from caw.decoding.row_settings import RowSettings

MARKS = {**WATERMARKS, **FOREIGN}
KINDS = {"settings": ROWS, "penalties": PENALISED}


@pytest.mark.parametrize("watermark, policy, kind, fixed", pairwise([None, *MARKS], POLICIES, KINDS, [False, True]))
def test_mixed_rows_are_as_if_alone(llama: Any, watermark: str | None, policy: str, kind: str, fixed: bool) -> None:
    chosen, how = (MARKS[watermark], POLICIES[policy](llama)) if watermark else (None, None)
    expected = compare(llama, chosen, how, fixed, rows=KINDS[kind])
    assert kind == "penalties" or not any(expected.traces[3].choice), "a factor of 0 leaves a text unmarked"


@pytest.mark.parametrize("watermark, policy, kind", pairwise([None, *WATERMARKS], POLICIES, KINDS))
def test_mixed_rows_are_those_of_the_definition(llama: Any, watermark: str | None, policy: str, kind: str) -> None:
    """Keys, factors, draws and penalties of a row, by the plain model: what the test on a GPU compares by."""
    chosen, how = (WATERMARKS[watermark], POLICIES[policy](llama)) if watermark else (None, None)
    if isinstance(chosen, caw.EXP):
        chosen = dataclasses.replace(chosen, free=0)  # the definition has no beginnings
    rows = rows_for(chosen, KINDS[kind])
    done = run(llama, PROMPTS, chosen, how, rows=rows, eos_token_ids=(2,), max_new_tokens=14, slots=2)
    as_defined(done, llama, rows, chosen, how, (2,))


@pytest.mark.parametrize("watermark", [None, "lefthash", "top_k", "scale"])
def test_mixed_rows_by_replays(llama: Any, watermark: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded with the first texts' settings, replayed with those of texts that join later."""
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    settings: dict[str, Any] = {"eos_token_ids": (2,), "max_new_tokens": 14, "slots": 2}
    rows = rows_for(chosen, ROWS)
    expected = alone(llama, rows, chosen, policy, **settings)
    made = by_replays(monkeypatch)
    for batch in (2, 6):
        done = run(llama, PROMPTS, chosen, policy, rows=rows, batch=batch, fixed=True, watched=False, **settings)
        assert texts(done) == texts(expected)
    assert made


@pytest.mark.parametrize(
    "watermark, fixed, mark_eos",
    pairwise([None, "lefthash", "unigram", "top_k", "scale"], [False, True], [True, False]),
)
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
    if watermark != "scale":  # of which the definition asks too many strengths
        as_defined(expected, llama, rows_for(chosen, rows), chosen, policy, (free[3][8],), mark_eos=mark_eos)


def test_a_uniform_batch_does_only_what_it_needs(llama: Any) -> None:
    decoder = make_decoder(llama, caw.KGW(key=1))
    assert decoder.plan.warper is None and not decoder.plan.limits.samples
    assert not decoder.plan.limits.factors and not decoder.plan.limits.minimum


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("watermark", "asked"), [(None, ROWS), ("lefthash", ROWS), ("top_k", ROWS), ("scale", ROWS), ("top_k", PENALISED)]
)
def test_mixed_rows_by_a_graph_on_a_gpu(
    llama: Any, watermark: str | None, asked: list[RowSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of the first texts serves those that join later, with settings and keys of their own (float32)."""
    model = copy.deepcopy(llama).to("cuda")
    chosen, policy = (WATERMARKS[watermark], POLICIES["window11"](llama)) if watermark else (None, None)
    rows = rows_for(chosen, asked)
    settings: dict[str, Any] = {"rows": rows, "batch": 2, "eos_token_ids": (2,), "max_new_tokens": 14, "slots": 2}
    eager = run(model, PROMPTS, chosen, policy, fixed=False, **settings)
    graphs = graphs_of(monkeypatch)
    monkeypatch.setattr(run_ahead, "WORTH_CAPTURING", 5)
    captured = run(model, PROMPTS, chosen, policy, watched=False, **settings)
    assert graphs, "nothing was captured"
    same_texts(captured, eager, references_for(llama, rows, chosen, policy, (2,)), PROMPTS)
