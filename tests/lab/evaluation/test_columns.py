"""Lines by column come back as they were, and nothing else is taken for them."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caw_lab.evaluation.packed_files import from_columns, to_columns

VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("a\u2028\né")
)
LINE = st.lists(st.tuples(st.sampled_from("abc"), VALUES | st.lists(VALUES, max_size=2)), max_size=3).map(dict)
GOOD = to_columns([{"a": 1, "b": 2}, {"b": 3}])


@settings(max_examples=50)
@given(st.lists(LINE, max_size=4))
def test_lines_of_any_fields_come_back_in_their_order(lines: list[dict[str, Any]]) -> None:
    assert json.dumps(from_columns(to_columns(iter(lines)))) == json.dumps(lines)


def test_each_field_is_a_line() -> None:
    assert GOOD == b'{"fields":[["a","b"],["b"]]}\n[0,1]\n[1]\n[2,3]\n'
    assert from_columns(to_columns([])) == [] and from_columns(to_columns([{}, {}])) == [{}, {}]


@pytest.mark.parametrize("content", [
    b"", b"[]", b"1", b'{"fields": 1}\n[]', b"{}\n[]", b"{", GOOD[:-3], GOOD.replace(b"[2,3]", b"[2]"), GOOD + b"[1]\n",
    GOOD.replace(b"[2,3]", b"[2,3,4]"), GOOD.replace(b"[0,1]", b"[0,2]"), GOOD.replace(b"[0,1]", b"[0,-1]"),
    GOOD.replace(b"[2,3]", b'"23"'), GOOD.replace(b"[2,3]\n", b""), GOOD.replace(b'["b"]', b"7"),
    GOOD.replace(b'["b"]', b'"b"'),
    GOOD.replace(b"[0,1]", b"[0.0,1]"), GOOD.replace(b"[1]", b"[NaN]"), b'{"fields":[["a","a"]]}\n[0]\n[1,2]\n',
    GOOD.replace(b"[1]", b"[" + b"[" * 100_000 + b"]" * 100_000 + b"]"),
])  # fmt: skip
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected columns of .*; publish it again"):
        from_columns(content)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
def test_what_json_does_not_have_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError):
        to_columns([{"a": value}])
