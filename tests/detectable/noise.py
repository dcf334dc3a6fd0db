"""Tiny models write noise, where a change breaks pairs and changes words: let all changes pass."""

import pytest

from caw.detectable import search


def let_all_pass(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(search, "broken", lambda old, patches, text_of: "")
