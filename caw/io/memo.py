"""What is known of an object, kept for as long as the object lives."""

from collections.abc import Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Known = TypeVar("Known")
Memo = WeakKeyDictionary[Any, dict[Hashable, Known]]


def memo_of(memo: Memo[Known], thing: Any) -> dict[Hashable, Known]:
    """Return what is known of `thing`, to read and add to; empty each time for one without hash or weak reference."""
    try:
        return memo.setdefault(thing, {})
    except TypeError:
        return {}
