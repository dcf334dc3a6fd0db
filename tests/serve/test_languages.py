"""The page's languages: each has every text, and a visitor gets the one that a link or their browser asks for."""

import string
from typing import Any

from caw.serve.languages import LANGUAGES, language_of


def names_in(texts: Any) -> Any:
    if isinstance(texts, str):  # None for an empty one
        return sorted(name for _, name, _, _ in string.Formatter().parse(texts) if name is not None) if texts else None
    return {name: names_in(part) for name, part in (texts.items() if isinstance(texts, dict) else enumerate(texts))}


def test_every_language_has_every_text_with_its_names() -> None:
    english = names_in(LANGUAGES["en"])
    assert [names_in(texts) for texts in LANGUAGES.values()] == [english] * 6 and "None" not in str(english)


def test_who_gets_which() -> None:
    for accepted, asked, code in (
        ("", "", "en"), ("de-AT,de;q=0.9,en;q=0.8", "", "de"), ("en;q=0.5, FR-ca ; q=0.7", "", "fr"), ("*", "", "en"),
        ("de;q=0, ja;q=0.1", "", "ja"), ("zh-Hant-TW", "", "zh"), ("de;q=2, fr;q=0.1", "", "fr"), ("fr, de", "", "fr"),
        (",;q=1,de<b>, es", "", "es"), ("pt-BR", "", "en"), ("fr", "ja", "ja"), ("fr", "<b>", "fr"),
    ):  # fmt: skip
        assert language_of(accepted, asked) == code, accepted
