"""Questions and prompts of each task, from folders and from a hub, and malformed data."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from caw_lab.evaluation.tasks import GSM8K, MMLU, JsonlTask, PromptsTask

SHOTS = "".join(f"Question: q{i}\nLet's think step by step\nr{i}\nThe answer is {i}.\n\n" for i in range(8))
SOLUTION = "2 + 2 = <<2+2=4>>4 eggs\n#### 1,004"


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    folder = tmp_path / "gsm8k"
    folder.mkdir()
    rows = [{"question": f" how many {i}? ", "answer": SOLUTION} for i in range(7)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "cot_prompt_8shot.txt").write_text(SHOTS)
    return tmp_path


@pytest.fixture
def mmlu(tmp_path: Path) -> Path:
    folder = tmp_path / "mmlu_sociology"
    folder.mkdir()
    (folder / "sociology_test.csv").write_text('"What, then?",a,"b ""b""",c,d,B\nWhy?,1,2,3,"4\n4",D\n')
    examples = "Header.\n\nQ: one\n(A) a\nA: Let's think.\n\nQ: two\nA: so."
    (folder / "mmlu_cot_prompt.json").write_text(json.dumps({"sociology": examples}))
    return tmp_path


def test_gsm8k_prompts_are_the_first_examples_and_the_question(gsm8k: Path) -> None:
    task = GSM8K("gsm8k", str(gsm8k), shots=2, first=2, count=3)
    questions = task.questions()
    assert [q.id for q in questions] == ["gsm8k/test/2", "gsm8k/test/3", "gsm8k/test/4"]
    assert questions[0].prompt == (
        "Question: q0\nLet's think step by step\nr0\nThe answer is 0.\n\n"
        "Question: q1\nLet's think step by step\nr1\nThe answer is 1.\n\n"
        "Question: how many 2?\nLet's think step by step\n"
    )
    assert questions[0].gold == "1004" and questions[0].reference == "2 + 2 = 4 eggs\nThe answer is 1004."
    assert task.grade(questions[0].reference, questions[0].gold).correct
    assert [q.id for q in task.questions(1)] == ["gsm8k/test/2"] and len(task.questions(10)) == 3
    assert GSM8K("gsm8k", str(gsm8k), shots=0).questions()[0].prompt.startswith("Question: how many 0?")


def test_the_digest_is_of_the_data_not_of_what_is_asked_of_it(gsm8k: Path) -> None:
    digest = GSM8K("gsm8k", str(gsm8k), shots=2).sha256
    assert GSM8K("gsm8k", str(gsm8k), shots=2, first=1, count=1).sha256 == digest
    assert GSM8K("gsm8k", str(gsm8k), shots=3).sha256 != digest


def test_mmlu_prompts(mmlu: Path) -> None:
    task = MMLU("mmlu-sociology", str(mmlu), shots=1)
    first, second = task.questions()
    assert first.prompt == (
        "Header.\n\nQ: one\n(A) a\nA: Let's think.\n\n"
        'Q: What, then?\n(A) a (B) b "b" (C) c (D) d\nA: Let\'s think step by step.'
    )
    assert (first.id, first.gold, second.gold, first.reference) == ("mmlu-sociology/test/0", "B", "D", "")
    assert task.stop == ("Q:",)


def test_the_real_data(data_dir: Path) -> None:
    gsm8k = GSM8K("gsm8k", str(data_dir)).questions()
    assert len(gsm8k) >= 900 and gsm8k[0].gold == "18"
    assert all(q.prompt.count("Question:") == 6 and q.prompt.count("The answer is") == 5 for q in gsm8k)
    sociology = MMLU("mmlu-sociology", str(data_dir)).questions()
    assert len(sociology) >= 121 and all(q.prompt.count("\nQ: ") == 6 for q in sociology)
    # people's answers grade as right: the prompts, the references and the grading speak of the same form
    assert all(GSM8K("gsm8k", str(data_dir)).grade(q.reference, q.gold).correct for q in gsm8k)


def jsonl(tmp_path: Path, *rows: Any, **options: Any) -> JsonlTask:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return JsonlTask("mine", path=str(path), **options)


def test_own_questions(tmp_path: Path) -> None:
    rows = [
        {"prompt": "1 + 1 =", "answer": 2, "person": "It is 2"},
        {"id": "b", "prompt": "?", "answer": "x", "person": ""},
    ]
    task = jsonl(tmp_path, rows[0], "", rows[1], grade_by="number", reference_field="person", stops=("\n",))
    first, second = task.questions()
    assert (first.id, first.prompt, first.gold, first.reference) == ("mine/1", "1 + 1 =", "2", "It is 2")
    assert second.id == "mine/b" and task.stop == ("\n",)
    assert task.grade("so 2", first.gold).correct


def test_prompts_have_no_right_answer(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Write a letter."}\n{"id": "b", "kind": "x", "prompt": "Bake."}\n')
    task = PromptsTask("free", path=str(path), stops=("END",))
    assert [(q.id, q.prompt, q.gold) for q in task.questions()] == [
        ("free/1", "Write a letter.", ""), ("free/b", "Bake.", "")
    ]  # fmt: skip
    graded = task.grade(" 1. Dear all \n", "")
    assert (graded.answer, graded.extraction, graded.correct, graded.text) == (None, None, None, " 1. Dear all \n")
    assert task.stop == ("END",)
    with pytest.raises(ValueError, match="task free of kind prompts needs a `path`, got none; name the file"):
        PromptsTask("free")
    path.write_text('{"prompt": 3}\n')
    with pytest.raises(ValueError, match=r"prompts.jsonl, line 1: prompt must be text, found a number"):
        PromptsTask("free", path=str(path)).questions()


def test_a_malformed_line_is_named_and_fatal_or_skipped(tmp_path: Path) -> None:
    rows = ({"prompt": "a", "answer": "b"}, "", '{"prompt": ', {"prompt": "a"}, {"prompt": "c", "answer": "d"})
    with pytest.raises(ValueError, match=r"mine.jsonl, line 3: expected one JSON object.*bad_lines to skip"):
        jsonl(tmp_path, *rows).questions()
    with pytest.warns(UserWarning, match=r"line 4: expected a field 'answer', found fields prompt.*skipped"):
        assert [q.id for q in jsonl(tmp_path, *rows, bad_lines="skip").questions()] == ["mine/1", "mine/5"]


def test_an_id_is_one_question(tmp_path: Path) -> None:
    """1 and "1" differ in JSON, but not in a cell, which would hold the question twice and never open again."""
    rows = ({"id": 1, "prompt": "a", "answer": "b"}, {"id": "1", "prompt": "c", "answer": "d"})
    with pytest.raises(ValueError, match=r"mine.jsonl, line 2: a question's id must be used once, found mine/1 again"):
        jsonl(tmp_path, *rows).questions()
    with pytest.warns(UserWarning, match="found mine/1 again"):
        assert [q.prompt for q in jsonl(tmp_path, *rows, bad_lines="skip").questions()] == ["a"]


def test_malformed_questions_of_the_shipped_tasks(gsm8k: Path, mmlu: Path) -> None:
    with open(gsm8k / "gsm8k" / "test.jsonl", "a") as file:
        file.write('{"question": "?", "answer": "no number"}\n')
    with pytest.raises(ValueError, match="line 8: expected an answer that ends in `#### ` and a number"):
        GSM8K("gsm8k", str(gsm8k)).questions()
    with pytest.warns(UserWarning, match="line 8"):
        assert len(GSM8K("gsm8k", str(gsm8k), bad_lines="skip").questions()) == 7
    with open(mmlu / "mmlu_sociology" / "sociology_test.csv", "a") as file:
        file.write("?,a,b,c,d,E\n")
    with pytest.raises(ValueError, match="line 3: expected question, four choices and a letter of ABCD"):
        MMLU("mmlu-sociology", str(mmlu), shots=1).questions()


def test_refusals(gsm8k: Path) -> None:
    for options, message in (
        ({"count": 0}, "count must be an integer from 1"),
        ({"first": -1}, "first must be an integer from 0"),
        ({"shots": 2.5}, "shots must be"),
        ({"bad_lines": "warn"}, "bad_lines must be error or skip"),
        ({"shots": 9}, "wants 9 shots, the prompt file has 8"),
        ({"first": 7}, "has 7 questions, none from number 7"),
        ({"split": "train"}, "needs gsm8k/train.jsonl"),
        ({"data": "/nowhere"}, "found none in /nowhere"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            GSM8K("gsm8k", **{"data": str(gsm8k), **options}).questions()


def test_hub_data(monkeypatch: pytest.MonkeyPatch, mmlu: Path) -> None:
    """A stand-in for `datasets`: what is asked of it, and what becomes of its rows."""
    asked = []

    def load_dataset(name: str, config: str, split: str) -> list[dict[str, Any]]:
        asked.append((name, config, split))
        if config == "main":
            return [{"question": f"{split} {i}", "answer": f"r{i}\n#### {i}"} for i in range(6)]
        if config == "none":
            raise RuntimeError("no such thing")
        return [{"question": "?", "choices": ["a", "b", "c", "d"], "answer": 2}, {"question": "?", "choices": []}]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    question = GSM8K("gsm8k", shots=1).questions()[3]
    assert question.prompt == (
        "Question: train 0\nLet's think step by step\nr0\nThe answer is 0.\n\n"
        "Question: test 3\nLet's think step by step\n"
    )
    assert asked == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "main", "train")]
    GSM8K("gsm8k", "somebody/gsm8k", shots=0).questions()
    assert asked[2][0] == "somebody/gsm8k"
    with pytest.raises(ValueError, match="name it as `prompt`"):
        MMLU("mmlu-sociology").questions()
    prompt = str(mmlu / "mmlu_sociology" / "mmlu_cot_prompt.json")
    with pytest.warns(UserWarning, match="line 2"):
        [question] = MMLU("mmlu-sociology", split="val", prompt=prompt, shots=1, bad_lines="skip").questions()
    assert question.gold == "C" and asked[-1] == ("cais/mmlu", "sociology", "validation")
    with pytest.raises(ValueError, match="could not load cais/mmlu"):
        MMLU("mmlu-none", prompt=prompt, shots=1).questions()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="datasets is required for task gsm8k without a local data folder"):
        GSM8K("gsm8k").questions()
