"""The store: every line once, whatever is cut off or written at once."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from caw.io.json_files import read_json, read_lines
from caw_lab.evaluation.store import Generation, Score, Store, natural

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


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_line_cut_short_is_no_line_and_is_dropped_when_writing_goes_on(tmp_path: Path, cut: int) -> None:
    cell = Store(tmp_path).cell("m.t.none")
    with cell.writer() as writer:
        for line in lines("t/1", "t/2"):
            writer.write(line)
    path = cell.folder / "generations.0.jsonl"
    path.write_bytes(path.read_bytes()[: -cut - 1])
    assert cell.done() == {"t/1"}
    with cell.writer() as writer:
        writer.write(lines("t/2")[0])
    assert [g.id for g in cell.read()] == ["t/1", "t/2"]


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


def _try_to_write(folder: Path, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    try:
        with Store(folder).cell("m.t.none").writer(0):
            queue.put("wrote")
    except ValueError as error:
        queue.put(str(error))


def test_two_processes_cannot_write_as_the_same_rank(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    queue = spawn.Queue()
    with Store(tmp_path).cell("m.t.none").writer(0):
        other = spawn.Process(target=_try_to_write, args=(tmp_path, queue))
        other.start()
        assert "rank 0 of cell m.t.none is being written by another process" in queue.get(timeout=60)
        other.join()
    other = spawn.Process(target=_try_to_write, args=(tmp_path, queue))
    other.start()
    assert queue.get(timeout=60) == "wrote"
    other.join()


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


def test_files_are_replaced_whole_and_leave_nothing_behind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_results({"rows": [1]})
    with pytest.raises(ValueError):
        store.write_results({"rows": [float("nan")]})
    assert store.results == {"rows": [1]} and [p.name for p in tmp_path.iterdir()] == ["results.json"]
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(ValueError, match="expected a JSON object"):
        read_json(tmp_path / "results.json")


def test_lines_of_a_file_that_is_empty_or_ends_inside_a_character(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"")
    assert read_lines(path) == []
    whole = json.dumps({"id": "1", "text": "\u00e9"}, ensure_ascii=False).encode() + b"\n"
    path.write_bytes(whole + whole[:-4])
    assert len(read_lines(path)) == 1


def test_numbers_in_names_sort_as_numbers() -> None:
    names = ["a/10", "a/9", "a", "10", "9", "a/b", "\u00b2", ""]
    assert sorted(names, key=natural) == ["", "9", "10", "a", "a/9", "a/10", "a/b", "\u00b2"]


def test_scores_of_ids_that_are_alike_as_numbers_are_all_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made = [Score("c", name, "kgw", 0, "none", 1, "model", 0.5, 0.0, 1, 1) for name in ("q/1", "q/01", "q/2")]
    store.update_scores(made)
    store.update_scores(made[:1])
    assert [score.id for score in store.read_scores()] == ["q/01", "q/1", "q/2"]
