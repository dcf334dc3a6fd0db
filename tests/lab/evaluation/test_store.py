"""The store: every line once, whatever is cut off or written at once."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from caw_lab.evaluation.store import Generation, Score, Store

LINE = Generation("task/test/1", (3, 1), "a text", "eos", "18", True, "a text", 0.5, 0.25, "stated", "run")
SCORE = Score("m.t.kgw.soft.0", "t/1", "kgw", 0, "none", 1, "model", 0.25, 0.7, 3, 4)


def lines(*ids: str) -> list[dict[str, object]]:
    return [asdict(replace(LINE, id=name)) for name in ids]


def test_generations_come_back_merged_over_ranks_in_natural_order(tmp_path: Path) -> None:
    cell = Store(tmp_path / "run").cell("m.t.none")
    assert cell.done() == set() and cell.read() == [] and cell.manifest == {}
    with cell.writer(0) as writer:
        for line in lines("t/2", "t/10"):
            writer.write(line)
    with cell.writer(1) as writer:
        writer.write(lines("t/9")[0])
    assert [g.id for g in cell.read()] == ["t/2", "t/9", "t/10"] and cell.done() == {"t/2", "t/9", "t/10"}
    assert cell.read()[0] == replace(LINE, id="t/2")


def test_a_doubled_id_and_a_broken_line_are_errors(tmp_path: Path) -> None:
    cell = Store(tmp_path).cell("m.t.none")
    for rank in (0, 1):
        with cell.writer(rank) as writer:
            writer.write(lines("t/1")[0])
    with pytest.raises(ValueError, match="each question once, found t/1 twice"):
        cell.read()
    (cell.folder / "generations.0.jsonl").write_text('nonsense\n{"id": "t/1"}\n')
    with pytest.raises(ValueError, match="line 1: expected a line of `caw evaluate run`"):
        cell.done()
    (cell.folder / "generations.0.jsonl").write_text('{"id": "t/1", "tokens": []}\n')
    with pytest.raises(ValueError, match="found one without text, finish_reason"):
        cell.read()


def test_a_cell_keeps_to_its_manifest(tmp_path: Path) -> None:
    cell = Store(tmp_path).cell("m.t.none")
    cell.begin({"model": "m", "shots": 5})
    cell.begin({"model": "m", "shots": 5})
    with pytest.raises(ValueError, match="made with shots 5, this run has 4"):
        cell.begin({"model": "m", "shots": 4})
    with pytest.raises(ValueError, match="made with new None, this run has 1"):
        cell.begin({"model": "m", "shots": 5, "new": 1})
    assert cell.manifest == {"model": "m", "shots": 5}


def test_cells_are_those_that_were_begun_and_names_stay_in_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.cells() == []
    store.cell("m.b.none").begin({"model": "m"})
    store.cell("m.a.none").begin({"model": "m"})
    (tmp_path / "cells" / "empty").mkdir()
    assert [cell.name for cell in store.cells()] == ["m.a.none", "m.b.none"]
    for name in ("../x", "", "a/b", ".x"):
        with pytest.raises(ValueError, match="letters, digits"):
            store.cell(name)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        Store(tmp_path / "file")


def test_scores_are_replaced_never_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.read_scores() == []
    store.update_scores([replace(SCORE, id="t/10"), SCORE])
    store.update_scores([replace(SCORE, p_value=0.5), replace(SCORE, source="human", label=0)])
    found = store.read_scores()
    assert [(s.source, s.id, s.p_value) for s in found] == [
        ("human", "t/1", 0.25), ("model", "t/1", 0.5), ("model", "t/10", 0.25)
    ]  # fmt: skip
    assert (tmp_path / "scores.jsonl").read_text().startswith('{"id": "t/1", "cell"')


def test_runs_are_named_by_their_content(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = store.keep_run({"a": 1, "b": 2})
    assert store.keep_run({"b": 2, "a": 1}) == first != store.keep_run({"a": 2})
    assert store.run(first) == {"a": 1, "b": 2} and store.run("unknown") == {}


def test_scores_of_ids_that_are_alike_as_numbers_are_all_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [Score("c", name, "kgw", 0, "none", 1, "model", 0.5, 0.0, 1, 1) for name in ("q/1", "q/01", "q/2")]
    store.update_scores(made)
    store.update_scores(made[:1])
    assert [score.id for score in store.read_scores()] == ["q/01", "q/1", "q/2"]
