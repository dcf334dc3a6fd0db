"""The keyed function: equal in plain Python, NumPy and torch, equal to vLLM's vectors, uniform, key by key apart."""

from __future__ import annotations

import json
import runpy
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import caw
from caw import prf
from caw.testing import assert_close
from caw.watermarks import keys

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
plain = SimpleNamespace(**runpy.run_path(str(FOLDER / "make_golden.py")))
FALSE_ALARM = 1e-6  # of each statistical test here; seeds are fixed, so a pass stays a pass

any_key = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
tokens = st.integers(-1, 2**31 - 1) | st.integers(-1, 8)
contexts = st.lists(tokens, max_size=9)


@given(key=any_key, context=contexts, token=st.lists(tokens, min_size=1, max_size=7))
def test_plain_numpy_torch_and_an_independent_writing_agree(key: int, context: list[int], token: list[int]) -> None:
    expected = [plain.word(key, context, t) for t in token]
    state = prf.absorb_context(key, context)
    assert [prf.token_word(key, state, t) for t in token] == expected
    numpy_state = prf.absorb_context(key, [np.array([c]) for c in context])
    assert prf.token_word(key, numpy_state, np.array(token)).tolist() == expected
    rows = torch.tensor([context], dtype=torch.int64).reshape(1, len(context))
    assert prf.context_words(key, rows, torch.tensor([token])).tolist() == [expected]


@given(words=st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 255, 2**32 - 1]), min_size=1, max_size=9))
def test_uniform_is_the_same_float_everywhere_and_inside_the_open_interval(words: list[int]) -> None:
    # rational arithmetic: np.float32 rounds the float64 quotient once more, as the format says
    expected = [float(np.float32(((w >> 8) + 1) / (2**24 + 1))) for w in words]
    assert [prf.uniform(w) for w in words] == expected
    assert prf.uniform(np.array(words)).tolist() == expected
    assert prf.uniform(torch.tensor(words)).tolist() == expected
    assert all(0 < u < 1 for u in expected)
    assert_close(prf.gumbel(torch.tensor(words)), prf.gumbel(np.array(words)), "float64")
    assert np.isfinite(prf.gumbel(np.array(words))).all()


def test_context_words_and_vocabulary_words_agree_on_batches() -> None:
    for width, vocab_size in ((0, 1), (1, 7), (4, 101), (5, 64)):
        context = torch.randint(-1, 50000, (3, width))
        words = prf.vocabulary_words(7**22, context, vocab_size)
        assert words.shape == (3, vocab_size)
        assert torch.equal(words, prf.context_words(7**22, context, torch.arange(vocab_size).expand(3, -1)))


def test_golden_words() -> None:
    for row in GOLDEN["words"]:
        context = torch.tensor([row["context"]], dtype=torch.int64).reshape(1, len(row["context"]))
        assert prf.context_words(row["key"], context, torch.arange(9)[None])[0].tolist() == row["words"]


def test_golden_file_is_what_its_generator_writes() -> None:
    assert json.loads(json.dumps(plain.build())) == GOLDEN


def test_vllm_golden_uniforms() -> None:
    """Printed by vLLM 0.33.0's PhiloxPRF(42), context [1, 2, 3, 4], tokens 0..5."""
    expected = [0.5361072421, 0.6940827370, 0.2202302665, 0.7877641320, 0.1031837985, 0.1823934168]
    words = prf.context_words(42, torch.tensor([[1, 2, 3, 4]]), torch.arange(6)[None])
    assert [round(u, 10) for u in prf.uniform(words)[0].tolist()] == expected


def uniform_words(name: str) -> torch.Tensor:
    """Words that must look uniform: over tokens, over contexts, over keys; all low-entropy inputs."""
    if name == "tokens":
        return prf.vocabulary_words(1, torch.tensor([[-1, -1, -1, -1]]), 1 << 16)[0]
    if name == "contexts":
        return prf.context_words(0, torch.arange(1 << 14)[:, None], torch.zeros(1 << 14, 1, dtype=torch.int64))[:, 0]
    key_list = range(1 << 14)
    return torch.tensor([prf.token_word(k, prf.absorb_context(k, []), 0) for k in key_list])


@pytest.mark.parametrize("name", ["tokens", "contexts", "keys"])
def test_words_are_uniform_and_serially_uncorrelated(name: str) -> None:
    words = uniform_words(name).numpy()
    for shift in (24, 16, 8, 0):
        counts = np.bincount((words >> shift) & 255, minlength=256)
        assert stats.chisquare(counts).pvalue > FALSE_ALARM
    u = prf.uniform(words)
    assert stats.kstest(u, "uniform").pvalue > FALSE_ALARM
    assert stats.pearsonr(u[1:], u[:-1]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (42, 42 + 2**32), (2**63, 2**64 - 1), (5, 5 ^ 2**31)])
def test_different_keys_are_uncorrelated(pair: tuple[int, int]) -> None:
    context = torch.tensor([[3, 1, 4, 1]])
    a, b = (prf.uniform(prf.vocabulary_words(key, context, 20011)[0]).numpy() for key in pair)
    assert stats.pearsonr(a, b).pvalue > FALSE_ALARM


def test_derived_keys_follow_their_description_and_differ_by_domain() -> None:
    for key in (0, 42, 2**64 - 1):
        for domain in (b"caw/kgw", b"caw/unigram"):
            assert keys.derive_key(key, domain) == plain.derived(key, domain)
        assert len({key, keys.derive_key(key, b"caw/kgw"), keys.derive_key(key, b"caw/unigram")}) == 3


def test_keys_of_text_bytes_and_integers() -> None:
    assert keys.normalize_key("a secret") == keys.normalize_key(b"a secret") == plain.normal_key("a secret")
    assert keys.normalize_key(2**64 - 1) == 2**64 - 1
    assert keys.normalize_key(np.int64(7)) == 7
    assert keys.normalize_key("ключ") != keys.normalize_key("ключи")


@pytest.mark.parametrize("shown", ["é", "Ångström", "ключ й", "각", "ộ"])
def test_one_spelling_is_one_key_however_it_was_typed(shown: str) -> None:
    """macOS hands over an e and an accent where Linux has one letter: a mark made on one was not found on the other."""
    typed = {unicodedata.normalize(form, shown) for form in ("NFC", "NFD")} | {shown}
    assert len(typed) > 1 and len({keys.normalize_key(text) for text in typed}) == 1
    # texts of the composed form are what they were
    assert keys.normalize_key(unicodedata.normalize("NFD", shown)) == plain.normal_key(
        unicodedata.normalize("NFC", shown)
    )
    assert caw.SynthID(unicodedata.normalize("NFD", shown)).key_id == caw.SynthID(shown).key_id


def test_spelling_that_reads_otherwise_is_another_key() -> None:
    """Compatibility forms (NFKC) are other letters, and bytes are taken as they are."""
    assert len({keys.normalize_key(text) for text in ("é", "e", "fi", "ﬁ", "²", "2 e")}) == 6
    assert keys.normalize_key("e\u0301".encode()) != keys.normalize_key("é".encode()) == keys.normalize_key("é")


BAD_KEYS: list[tuple[type[Exception], str, list[Any]]] = [
    (ValueError, "key must have a visible character, got an empty or blank text; pass a",
     ["", " ", "\t \n", "\u00a0", "\u3000", "\u200b\ufeff", "\x00", b"", b"  \r\n"]),
    # KGW("42") marked under another key than `caw detect --key 42` tested for, and nothing said so
    (ValueError, r"got text of digits alone.*; pass int\(key\), or add a letter", ["42", "007", "-5", str(2**64)]),
    # Python read "secret\n" from a file where CAW_KEY=$(cat file) was "secret"
    (ValueError, "key must not begin or end with white space.*; remove it with",
     ["secret\n", " secret", "secret\r\n", "42\n", "\u00a0secret"]),
    (ValueError, "key must be text that UTF-8 can encode, got other bytes", ["secret\udcff", "\ud800secret"]),
    (TypeError, r"key must be an int below 2\*\*64, a str or bytes, got", [None, True, 1.5, [1], (1, 2)]),
    (ValueError, "key must", [-1, 2**64]),
]  # fmt: skip


@pytest.mark.parametrize("kind, message, wrong", BAD_KEYS, ids=[message for _, message, _ in BAD_KEYS])
def test_keys_that_are_none_are_refused_without_printing_them(
    kind: type[Exception], message: str, wrong: list[Any]
) -> None:
    for key in wrong:
        for make in (keys.normalize_key, caw.KGW) if kind is TypeError else (keys.normalize_key, caw.KGW, caw.EXP):
            with pytest.raises(kind, match=message) as caught:
                make(key)
            assert caught.type is kind and (not key or len(str(key)) < 2 or str(key) not in str(caught.value))
        if isinstance(key, str) and key.strip("\x00 \t\r\n\u00a0\u3000\u200b\ufeff"):  # bytes are taken as they are
            assert keys.normalize_key(key.encode("utf-8", "surrogatepass")) >= 0
