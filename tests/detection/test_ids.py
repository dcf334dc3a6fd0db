"""What detection takes, and what it says about everything else."""

from typing import Any

import numpy as np
import pytest
import torch

import caw
from caw.detection.ids import split_input, to_ids
from tests import tiny


class Words:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Any]:
        self.calls.append((texts, options))
        return {"input_ids": [[len(word) for word in text.split()] for text in texts]}


@pytest.mark.parametrize(
    "flat",
    [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3], dtype=np.int32), torch.tensor([1, 2, 3]), list(torch.tensor([1, 2, 3])),
     list(np.array([1, 2, 3]))],
)  # fmt: skip
def test_one_flat_sequence_is_one_text(flat: Any) -> None:
    items, single = split_input(flat)
    assert single
    (ids,) = to_ids(items, None)
    assert ids.dtype == np.int64 and ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize("many", [[[1, 2], [3]], ([1, 2], (3,)), [np.array([1, 2]), torch.tensor([3])]])
def test_a_list_of_them_is_several(many: Any) -> None:
    items, single = split_input(many)
    assert not single
    assert [ids.tolist() for ids in to_ids(items, None)] == [[1, 2], [3]]


class Column:
    def __init__(self, items: list[Any], dtype: Any = object) -> None:
        self.items, self.dtype = items, dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.items, dtype=self.dtype)


@pytest.mark.parametrize("kind", [Column, np.array, lambda items: np.array(items, dtype=object)])
def test_columns_of_a_table_are_lists(kind: Any) -> None:
    assert split_input(kind(["one", "two"])) == (["one", "two"], False)
    (ids,), single = split_input(Column([1, 2], np.int64))
    assert single and ids.tolist() == [1, 2]


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), type("NAType", (), {})()])
def test_a_missing_text_is_a_result_with_an_error(missing: Any) -> None:
    tokenizer, mark = tiny.tiny_tokenizer(), caw.KGW(key=1)
    for texts in ([missing, "a small", "b"], Column(["a", missing])):
        results = caw.detect(texts, tokenizer, mark)
        errors = [result.error for result in results]
        row = list(texts if isinstance(texts, list) else texts.items).index(missing)
        assert errors.pop(row) == f"text {row} must be a text, found none; leave it out" and not any(errors)
        assert results[row].p_value == 1 and not results[row].is_watermarked
        assert caw.detect_keys(texts, tokenizer, {"one": mark})[row].error
    assert caw.detect([missing], tokenizer, mark)[0].error


def test_empty_inputs() -> None:
    assert split_input([]) == ([], False) and to_ids([], None) == []
    assert [x.tolist() for x in to_ids([[], [5]], None)] == [[], [5]]
    items, single = split_input(torch.empty(0, dtype=torch.int64))
    assert single and to_ids(items, None)[0].tolist() == []
    assert to_ids([torch.empty(0)], None)[0].dtype == np.int64


def test_texts_are_tokenised_in_one_call_without_special_tokens() -> None:
    tokenizer = Words()
    assert [ids.tolist() for ids in to_ids(["a bb", "", "ccc"], tokenizer)] == [[1, 2], [], [3]]
    assert len(tokenizer.calls) == 1
    assert tokenizer.calls[0] == (["a bb", "", "ccc"], {"add_special_tokens": False, "verbose": False})


BAD = [
    (5, None, TypeError, "expected a str, one flat sequence of token ids, or a list of either, got int"),
    (None, None, TypeError, "got NoneType"),
    (b"bytes", Words(), TypeError, "got bytes"),
    ({"input_ids": [1]}, None, TypeError, "got dict"),
    ("text", None, TypeError, "text requires the tokenizer of the model that wrote it, got None"),
    (["a", [1]], Words(), TypeError, "got a mixture"),
    ([[1], "a"], Words(), TypeError, "got a mixture"),
    ([[1], 2], None, TypeError, "text 1 is of type int"),
    ([1, [2]], None, ValueError, "text 0 is a nested one"),
    ([[[1], [2]]], None, ValueError, r"text 0 is of shape \(2, 1\)"),
    ([[1], [[2], [3, 4]]], None, ValueError, "text 1 is a nested one"),
    (torch.ones(2, 3, dtype=torch.int64), None, ValueError, r"text 0 is of shape \(2, 3\)"),
    (torch.tensor(3), None, ValueError, r"text 0 is of shape \(\)"),
    ([3, -1], None, ValueError, "one with -1; remove padding, and labels such as -100"),
    ([[1], [2**31]], None, ValueError, "text 1 is one with 2147483648"),
    ([2**70], None, TypeError, "text 0 is of object values"),
    ([1.0, 2.0], None, TypeError, "text 0 is of float64 values"),
    ([1, None], None, TypeError, "text 0 is of object values"),
    ([True, False], None, TypeError, "text 0 is one with a bool"),
    ([5, True, 7], None, TypeError, "text 0 is one with a bool"),
    ([[1], [5, np.bool_(True)]], None, TypeError, "text 1 is one with a bool"),
    ([5, np.array(True)], None, TypeError, "text 0 is one with a bool"),
    ([torch.tensor(5), torch.tensor(True)], None, TypeError, "text 0 is of bool values"),
    ([torch.tensor(1, device="meta")], None, TypeError, "text 0 is a meta tensor; pass a dense one"),
    (np.array([True]), None, TypeError, "text 0 is of bool values"),
    (torch.tensor([1.0, 2.0]).bfloat16(), None, TypeError, "text 0 is of bfloat16 values"),
    (torch.zeros(2, dtype=torch.float8_e4m3fn), None, TypeError, "text 0 is of float8_e4m3fn values"),
    (torch.tensor([1, 2]).to_sparse(), None, TypeError, "text 0 is a sparse tensor; pass a dense one"),
    (torch.tensor([1, 2]).to("meta"), None, TypeError, "text 0 is a meta tensor"),
    ("a\ud800", Words(), ValueError, "text 0 must be valid Unicode, found half of a surrogate pair"),
    ("a", lambda *a, **k: 5, TypeError, "tokenizer must turn a list of texts into input_ids .* function does not"),
    ("a", len, TypeError, "tokenizer must turn a list of texts into input_ids .* pass AutoTokenizer"),
    ("a", lambda *a, **k: {"input_ids": [[1], [2]]}, TypeError, "does not \\(2 lists for 1 texts\\)"),
    ([1, "a"], None, TypeError, "text 0 is of <U"),
]


def test_everything_else_is_refused_in_one_sentence() -> None:
    for given, tokenizer, error, message in BAD:
        with pytest.raises(error, match=message) as caught:
            to_ids(split_input(given)[0], tokenizer)
        assert "\n" not in str(caught.value) and "; " in str(caught.value)


def test_ids_beyond_the_tokenizers_vocabulary_are_refused() -> None:
    """They were scored as if the tokenizer knew them, and counted as evidence."""
    tokenizer = tiny.tiny_tokenizer()
    size = len(tokenizer)
    assert to_ids([[0, size - 1], []], tokenizer)[0].tolist() == [0, size - 1]
    with pytest.raises(ValueError, match=rf"below the {size} of the .* text 1 has {size + 7} at index 2; pass the tok"):
        to_ids([[1], [0, 1, size + 7, size]], tokenizer)
    assert to_ids([[size + 7]], None)[0].tolist() == [size + 7]  # of ids alone nothing is known


def test_ids_behind_a_gap_are_known() -> None:
    tokenizer = tiny.tiny_tokenizer()
    tokenizer.get_vocab = lambda: {"a": 0, "last": len(tokenizer) + 7}
    assert to_ids([[0, len(tokenizer) + 7]], tokenizer)[0].tolist() == [0, len(tokenizer) + 7]
    with pytest.raises(ValueError, match=rf"below the {len(tokenizer) + 8} of"):
        to_ids([[len(tokenizer) + 8]], tokenizer)
