"""What a guarded text must keep, and what a receipt says of it."""

from typing import Any

import pytest

import caw
from caw.detectable.keeping import REJECTED, Keeping

OBJECT = '{"ok": true, "title": "an old town"}'
MISTYPED = caw.keeps.json(["titel"])


@pytest.mark.parametrize(("reader", "one", "other", "kept"), [
    (MISTYPED, OBJECT, OBJECT.replace("old", "ancient"), True),
    (MISTYPED, OBJECT, OBJECT.replace("true", "false"), False),
    (MISTYPED, OBJECT, OBJECT.replace("title", "subject"), False), (MISTYPED, "no object 5", "no object at 5", True),
    (MISTYPED, "no object 5", "no object 6", False), (caw.keeps.number(), "all is well", "all is fine", True),
    (caw.keeps.number(), "all is well", "all is not well", False),
    (caw.keeps.parses(), "no code here (", "no code in there (", True),
    (lambda old, new: None, "a cat ran", "a cat went", True), (lambda old, new: None, "a cat ran", "2 cats ran", False),
])  # fmt: skip
def test_what_a_reader_finds_nothing_of_keeps_its_content_and_shape(
    reader: Any, one: str, other: str, kept: bool
) -> None:
    """A mistyped field left the names and booleans of an object free."""
    keeping = Keeping(reader, one, set())
    assert keeping(one) and keeping(other) is kept and not keeping.lost
    assert (keeping.verdict(one), keeping.verdict(other)) == (True, None)


def test_a_reader_decides_alone_where_it_finds_something() -> None:
    keeping = Keeping(caw.keeps.json(["title"]), OBJECT, set())
    assert not keeping(OBJECT.replace("old", "ancient")) and keeping.verdict(OBJECT.replace("old", "ancient")) is False
    own = Keeping(lambda old, new: True, "It is 5", set())
    assert own("It is 6") and own.verdict("It is 6") is True


def test_content_knows_the_names_it_is_told() -> None:
    reader = caw.keeps.content()
    keeping = Keeping(reader, "Ann left.", {"Ann"})
    assert not keeping("She left.") and keeping("Ann went.") and keeping.verdict("Ann went.") is True
    assert Keeping(reader, "Ann left.", set())("She left.")


def test_a_reader_that_rejects_the_unmarked_text_is_lost() -> None:
    lost = Keeping(lambda old, new: False, "a", set())
    assert lost.lost and lost.error == REJECTED and lost.verdict("a") is False


def test_a_reader_that_fails_once_on_the_unmarked_text_is_asked_again() -> None:
    """Tests of the caller's may run out of time."""
    answers = iter([TimeoutError(), True, True])

    def slow_at_first(old: str, new: str) -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    keeping = Keeping(slow_at_first, "a", set())
    assert not keeping.lost and keeping("b") and not keeping.error
