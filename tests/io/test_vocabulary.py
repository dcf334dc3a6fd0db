"""The digest of a vocabulary: one for a model, whatever it is read from; another for another model."""

from typing import Any

import pytest

from caw.io.vocabulary import Vocabulary
from tests import tiny


class Named:
    def __init__(self, *names: str | None) -> None:
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.names[i] for i in ids]


def test_one_model_has_one_digest_whatever_it_is_read_from() -> None:
    """Padding of .gguf files, reserved tokens under another name and added tokens leave the ids what they were."""
    own = Vocabulary.of(Named("<|end|>", "a", "b", "<unused0>", "c"))
    assert own.tokens == 5
    for other in (
        Named("<|end|>", "a", "b", "<unused0>", "c", "[PAD5]", "[PAD6]"),
        Named("<|im_end|>", "a", "b", "[PAD]", "c"),
        Named("<|end|>", "a", "b", None, "c", "<added>", "added word"),
    ):
        assert own.agrees(other)
    assert Vocabulary.of(Named("<|end|>", "a", "b", "<unused0>", "c", "[PAD5]", None)) == own


@pytest.mark.parametrize(
    "names",
    [
        ("<|end|>", "b", "a", "<unused0>", "c"),  # two ids swapped
        ("a", "b", "<unused0>", "c", "d"),  # all moved by one
        ("<|end|>", "a", "b", "<unused0>"),  # fewer
        ("<|end|>", "a", "b", "<unused0>", "C"),  # another letter
        ("<|end|>", "ab", "", "<unused0>", "c"),  # the same letters, cut otherwise
        ("<|end|>", "a", "b", "word", "c"),  # a reserved place in use
    ],
)
def test_another_models_ids_do_not_agree(names: tuple[str, ...]) -> None:
    own = Vocabulary.of(Named("<|end|>", "a", "b", "<unused0>", "c"))
    assert not own.agrees(Named(*names))
    message = "^the table was made for a vocabulary of 5 tokens, whose digest begins with ........, found a"
    with pytest.raises(ValueError, match=message):
        own.check(Named(*names), "the table was", "take another")


def test_of_transformers_tokenizers() -> None:
    tokenizer: Any = tiny.tiny_tokenizer()
    own = Vocabulary.of(tokenizer)
    tokenizer.add_tokens(["<a word of its own>", "another"])
    assert own.agrees(tokenizer) and Vocabulary.of(tokenizer) != own  # what was kept is of the tokenizer as it was


def test_text_form() -> None:
    own = Vocabulary.of(Named("a", "b"))
    assert Vocabulary.read(own.as_text()) == own
    for other in ("[1, 2]", "x", "[1.5, 3]", "[true, true]", f'[-1, "{own.digest}"]', "[1]", "{}"):
        with pytest.raises(ValueError, match="vocabulary must be a number of tokens and their digest, got"):
            Vocabulary.read(other)


def test_what_names_no_tokens_is_refused() -> None:
    with pytest.raises(TypeError, match="tokenizer must name its tokens as transformers' do, function does not"):
        Vocabulary.of(lambda text: text)
