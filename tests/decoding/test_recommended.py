"""Texts of both families of a Recommended in one batch: each is what it is alone."""

import dataclasses
from typing import Any

import pytest
import torch
from decoding.architectures import prompt
from decoding.running import run
from decoding.test_chooser import Told, chooser_of, chosen
from decoding.test_step import capacity_policy

import caw
from caw import ops
from caw.decoding.row_settings import RowSettings
from caw.detection import Detector
from caw.policies.mark import Mark
from caw.policies.recommended import Marks, row_of

MARK = caw.Recommended(11, target=1e-3)
DRAWN = {"do_sample": True, "temperature": 1.3, "seed": 4}
PROMPTS = [prompt(9), prompt(1, 2), prompt(9), prompt(4, 1), prompt(6, 3), prompt(1, 2)]
ROWS = [
    RowSettings(max_new_tokens=30),
    RowSettings(max_new_tokens=30, **DRAWN),
    RowSettings(max_new_tokens=30, key="another", **{**DRAWN, "seed": 9}),
    RowSettings(max_new_tokens=30, key="another"),
    RowSettings(max_new_tokens=30, strength_factor=0.0, **DRAWN),
    RowSettings(max_new_tokens=30, **{**DRAWN, "temperature": 0.29}),
]
MARKS = Marks.of(MARK, None)
FIXED = MARKS.main.policy


def both(rows: list[RowSettings]) -> dict[str, Any]:
    own = [row_of(MARK, row) for row in rows]
    return {"rows": own, "marks": [MARKS.under(row.key, row) for row in own], "race": MARKS.race}


def alone(model: Any, ids: list[int], row: RowSettings, policy: Any, **options: Any) -> list[int]:
    mark = (MARK if row.key is None else MARK.with_key(row.key)).part_for(row)
    policy = caw.FixedStrength(1.0) if row.races else policy
    own = dataclasses.replace(row, key=None)
    return run(model, [ids], mark, policy, rows=[own], max_new_tokens=30, **options).tokens[0]


@pytest.mark.parametrize("how", ["eager", "fixed", "reference", "drafts"])
@pytest.mark.parametrize("policy", ["fixed", "capacity"])
def test_a_mixed_batch_is_each_text_alone(llama: Any, policy: str, how: str) -> None:
    options: dict[str, Any] = {
        "eager": {}, "fixed": {"fixed": True}, "reference": {"kernels": ops.references()}, "drafts": {"speculate": 3},
    }[how]  # fmt: skip
    chosen_policy = FIXED
    if policy == "capacity":
        network = capacity_policy(llama, (1, 1)).network
        chosen_policy = caw.CapacityPolicy(network, 0.8, 1.5, target=FIXED.target)
    given = both(ROWS)
    together = run(llama, PROMPTS, MARK.greedy, chosen_policy, **given, batch=3, max_new_tokens=30, **options)
    singly = [alone(llama, ids, row, chosen_policy) for ids, row in zip(PROMPTS, given["rows"], strict=True)]
    assert together.tokens == singly
    assert together.tokens[1] != together.tokens[4], "a factor of 0 leaves a drawn text unmarked"


def test_only_one_family_may_come(llama: Any) -> None:
    for rows in (ROWS[:1] * 2, ROWS[1:2] * 2, ROWS[5:] * 2):
        given = both(rows)
        got = run(llama, PROMPTS[:2], MARK.greedy, FIXED, **given, max_new_tokens=30).tokens
        assert got == [alone(llama, ids, row, FIXED) for ids, row in zip(PROMPTS, given["rows"], strict=False)]


def test_a_mark_that_was_not_planned_for_is_refused(llama: Any) -> None:
    other = dataclasses.replace(MARK.drawn, context_width=4)
    given = {**both(ROWS[1:2]), "marks": [Mark(other, caw.FixedStrength(1.0))]}
    with pytest.raises(ValueError, match="must be marked as its decoder was planned for, got EXP"):
        run(llama, PROMPTS[:1], MARK.greedy, FIXED, **given)
    for beside, race in ((MARK.greedy, MARKS.main), (MARK.drawn, MARKS.race)):
        with pytest.raises(ValueError, match="a batch of two marks has a race at full strength"):
            run(llama, PROMPTS[:1], beside, caw.FixedStrength(1.0), race=race)


def test_both_are_found_by_one_detector(llama: Any) -> None:
    rows = [dataclasses.replace(row, max_new_tokens=90) for row in ROWS[:2]]
    made = run(llama, PROMPTS[:2], MARK.greedy, FIXED, **both(rows), max_new_tokens=90).tokens
    for tokens, family in zip(made, ("kgw", "exp"), strict=True):
        result = Detector(None, MARK)(tokens)
        assert result.is_watermarked and result.family == family, result.message
        assert result.subkey is None


# Another engine ---------------------------------------------------------------------------------------------------


def test_the_chooser_takes_rows_of_both_families(llama: Any) -> None:
    rows = [dataclasses.replace(row, max_new_tokens=16) for row in (ROWS[0], ROWS[1], ROWS[5], ROWS[3])]
    told = Told(llama, MARK.greedy, FIXED, **both(rows), mark_eos=None)
    assert chosen(told, chooser_of(llama, MARK, None, mark_eos=None), rows, llama) == told.tokens


def test_a_chooser_refuses_what_a_recommended_decides(llama: Any) -> None:
    with pytest.raises(ValueError, match="a Recommended brings its own policies"):
        chooser_of(llama, MARK, caw.FixedStrength(1.0), mark_eos=None)
    with pytest.raises(ValueError, match="decides for each text whether the mark may end it, got mark_eos=True"):
        caw.Chooser(MARK, vocab_size=64, mark_eos=True)
    chooser = caw.Chooser(MARK, vocab_size=64, rows=2)
    with pytest.raises(ValueError, match=r"has strength_factor 1, or 0 for an unmarked text, got 0\.5"):
        chooser.start(0, [1], RowSettings(strength_factor=0.5, do_sample=True))
    chooser.start(0, [1], RowSettings(strength_factor=0.5))
    assert chooser.choose(torch.zeros(1, 64)).shape == (1,)


def test_an_evaluator_that_reads_the_next_position_is_refused_by_the_chooser() -> None:
    with pytest.raises(ValueError, match="must not read the next position"):
        caw.Chooser(caw.Recommended(1, evaluator="smollm2-135m"), vocab_size=64)
