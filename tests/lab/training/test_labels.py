"""Label files and which tokens they make key."""

import json
from dataclasses import replace

import pytest
from tiny import tiny_tokenizer

from caw_lab.training.labels import LabelledText, digest, encode, key_tokens, read_labels, restate, strip_notes

ANSWER = "She had 48/2 = <<48/2=24>>24 clips.\n#### 24"
SOLUTION = "She had 48/2 = 24 clips.\n#### 24"


@pytest.fixture
def data_folder(tmp_path):
    (tmp_path / "toy").mkdir()
    rows = [{"question": "How many?", "answer": ANSWER}, {"question": "And now?", "answer": "7 <<a\nb>>é"}]
    (tmp_path / "toy" / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def label(index=0, spans=((8, 17),), dataset="toy", split="train"):
    return {"dataset": dataset, "split": split, "index": index, "spans": [list(s) for s in spans]}


def write(folder, *rows):
    path = folder / "labels.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_strip_notes():
    assert strip_notes(ANSWER) == SOLUTION
    assert strip_notes("<<1=1>>1<<2=2>>") == "1" and strip_notes("a << b > c") == "a << b > c"


def test_read_refuses(data_folder):
    for bad, message in (
        ("{not json", "line 2: expected one JSON object"),
        ("[1, 2]", "line 2: expected a JSON object, found a list"),
        (label(2), r"line 2: index must be in \[0, 2\) of toy/train, got 2"),
        (label(True), "line 2: index must be an integer"),
        (label(0), "line 2: every document must be labelled once, toy/train/0 already was in line 1"),
        (label(1, []), r"line 2 \(toy/train/1\): spans must be a list of at least one"),
        (label(1, [[0, 999]]), r"line 2 \(toy/train/1\): a span must lie inside"),
        (label(1, [[0, 2], [1, 3]]), "spans must be sorted and disjoint"),
        ({**label(1), "spans": [[0, 1, 2]]}, "a span must be two integers"),
        ({**label(1), "spans": "0-1"}, "spans must be a list"),
        (label(0, dataset="../toy"), "line 2: dataset must be a plain name"),
        (label(0, split=""), "line 2: split must be a plain name"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labels(write(data_folder, label(), bad), data_folder)


def test_key_tokens():
    for text, offsets, spans, expected in (
        ("He gets 30 off", [(0, 2), (2, 7), (7, 10), (10, 14)], [(8, 10)], [False, False, True, False]),
        # a span may end with the space: the next word's leading space does not make it key
        ("a 30 off", [(0, 1), (1, 4), (4, 8)], [(2, 5)], [False, True, False]),
        # a token of white space counts as itself: inside a segment key, before and between segments not
        ("5 * 2 so 3", [(0, 1), (1, 3), (3, 4), (4, 5), (5, 8), (8, 9), (9, 10)], [(0, 5), (9, 10)],
         [True, True, True, True, False, False, True]),
        # the parts of a multi-byte character all carry its offsets
        ("9 🦙 x", [(0, 1), (1, 3), (2, 3), (2, 3), (3, 5)], [(2, 3)], [False, True, True, True, False]),
        # "$5" cut either way; a newline before a number
        ("$5.\n6", [(0, 2), (2, 3), (3, 5)], [(1, 2), (4, 5)], [True, False, True]),
        # touching is not overlapping
        ("abc", [(0, 1), (1, 2), (2, 3)], [(1, 2)], [False, True, False]),
        ("abc", [(0, 3)], [(0, 1), (2, 3)], [True]),
        ("", [], [], []),
    ):  # fmt: skip
        assert key_tokens(text, offsets, spans) == expected


def text_of(solution, *segments):
    spans, start = [], 0
    for segment in segments:
        start = solution.index(segment, start)
        spans.append((start, start + len(segment)))
    return LabelledText("toy", "train", 0, "How {many}?", solution, tuple(spans))


def test_encode_with_a_byte_level_tokenizer():
    tokenizer = tiny_tokenizer()
    coded = encode(tokenizer, text_of("Pay $30 é 🦙\n#### 30", "$30", "🦙"))
    assert tokenizer.decode(coded.ids) == "Question: How {many}?\nAnswer: Pay $30 é 🦙\n#### 30"
    assert tokenizer.decode(coded.ids[: coded.first]) == "Question: How {many}?\nAnswer:"
    assert len(coded.key) == len(coded.ids) - coded.first
    key = [i for i, k in zip(coded.ids[coded.first :], coded.key, strict=True) if k]
    assert tokenizer.decode(key).replace(" ", "") == "$30🦙"


@pytest.mark.parametrize("template, joint", [("{question}\n", ""), ("Q {question} A:", " ")])
def test_template_and_prefix(template, joint):
    tokenizer = tiny_tokenizer()
    coded = encode(tokenizer, text_of("Yes 5", "5"), template, "An example.\n\n")
    prompt = "An example.\n\n" + template.replace("{question}", "How {many}?")
    assert tokenizer.decode(coded.ids) == prompt + joint + "Yes 5"
    assert tokenizer.decode(coded.ids[: coded.first]) == prompt
    assert coded.key[-1] and sum(coded.key) == 1


def test_special_tokens_are_no_reference():
    tokenizer = tiny_tokenizer()
    plain = encode(tokenizer, text_of("Yes 5", "5"))
    from tokenizers.processors import TemplateProcessing

    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"{end[0]} $A {end[0]}", special_tokens=[end])
    framed = encode(tokenizer, text_of("Yes 5", "5"))
    assert framed.ids == (end[1], *plain.ids) and framed.first == plain.first + 1 and framed.key == plain.key


def test_digest_sees_every_change():
    base = text_of("Yes 5", "5")
    others = [
        text_of("Yes 5", "Yes"),
        text_of("No 5", "5"),
        LabelledText("toy", "test", 0, *[base.question, base.solution, base.spans]),
    ]
    assert digest([base]) == digest([text_of("Yes 5", "5")])
    assert len({digest([t]) for t in (base, *others)}) == 4


def test_restate():
    """The final line says what the task says and is all key; spans before it stay, one that reached it is cut."""
    plain = text_of("Jim has 30 toads\n#### 1,000", "30", "1,000")
    said = restate(plain, "The answer is {answer}.")
    assert said.solution == "Jim has 30 toads\nThe answer is 1,000." and said.name == plain.name
    assert [said.solution[a:b] for a, b in said.spans] == ["30", "The answer is 1,000."]
    across = replace(plain, spans=((11, 22),))
    cut = restate(across, "= {answer}")
    assert [cut.solution[a:b] for a, b in cut.spans] == ["toads\n", "= 1,000"]
    assert restate(text_of("a 3\r\n#### 5\n", "3"), "= {answer}").solution == "a 3\r\n= 5"
    only = LabelledText("toy", "train", 0, "", "#### 5 ", ((5, 6),))
    assert (restate(only, "{answer}").solution, restate(only, "{answer}").spans) == ("5", ((0, 1),))
