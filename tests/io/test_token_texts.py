"""The bytes of tokens, for each way in which vocabularies write them."""

from typing import Any

import pytest
from tiny import tiny_tokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from caw.io.token_texts import token_bytes, token_texts

OTTER = "\U0001f9a6"


def pieces() -> Any:
    """SentencePiece's way: a character that it does not know is one token for each of its bytes."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "\ufffd"]
    inner = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True, unk_token="<unk>"))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), pieces()], ids=["bytes", "pieces"])
def test_bytes_of_tokens_are_those_of_the_text(tokenizer: Any) -> None:
    for text in (OTTER, "a", f"a{OTTER}a", "\ufffd"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = [token_bytes(tokenizer, i, own) for i, own in zip(ids, token_texts(tokenizer, ids), strict=True)]
        assert b"".join(each or b"?" for each in found) == text.encode()
