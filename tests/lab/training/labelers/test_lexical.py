"""Numbers, operators, currency, names and answer letters, and how well they agree with a strong model's segments."""

from dataclasses import replace

import pytest

from caw_lab.training.labelers import LabelError, LexicalLabeler
from caw_lab.training.labels import LabelledText, read_labels


def marked(solution, *kinds, question=""):
    labeler = LexicalLabeler(kinds) if kinds else LexicalLabeler()
    document = LabelledText("toy", "train", 0, question, solution, ())
    return [solution[a:b] for a, b in labeler.label(document)]


def test_kinds():
    for solution, kinds, expected in (
        ("He has 1,250.5 of .30 and 7.", ("numbers",), ["1,250.5", ".30", "7"]),
        ("Twice as many, half of twenty-one", ("number-words",), ["Twice", "half", "twenty", "one"]),
        ("someone is often alone", ("number-words", "numbers"), None),
        ("a well-known way of 5-3 and 4 - 1", ("operators",), ["-", "-"]),
        ("2 x 3 boxes of x", ("operators",), ["x"]),
        ("(5+1)*2=12%", ("operators",), ["(", "+", ")*", "=", "%"]),
        ("$5, £3 and 7¢", ("currency",), ["$", "£", "¢"]),
        ("The answer is (B).", ("answer-letters",), ["B"]),
        ("So the answer is C", ("answer-letters",), ["C"]),
        ("A boy (and a girl) I know", ("answer-letters",), None),
        ("48/2 = 24 clips\n#### 24", (), ["48/2 = 24", "24"]),
    ):
        if expected is None:
            with pytest.raises(LabelError, match="found none"):
                marked(solution, *kinds)
        else:
            assert marked(solution, *kinds) == expected


def test_names_are_those_that_stand_inside_a_sentence_somewhere():
    question = "How many apples does Mary have, if Tom has 3?"
    assert marked("Mary has none. Then Tom gave. So Mary", "names", question=question) == ["Mary", "Tom", "Mary"]


def test_a_strong_models_segments_hold_what_it_marks(data_dir):
    """Numbers and operators nearly always; it leaves out the words."""
    texts, labeler = read_labels(data_dir / "key_segments" / "gsm8k_train.jsonl", data_dir), LexicalLabeler()
    assert len(texts) == 700
    found, reference = (
        {(t.index, place) for t in side for a, b in t.spans for place in range(a, b) if not t.solution[place].isspace()}
        for side in ([replace(text, spans=labeler.label(text)) for text in texts], texts)
    )
    assert len(found & reference) / len(found) > 0.93 and 0.38 < len(found & reference) / len(reference) < 0.45
