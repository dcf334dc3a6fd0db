"""Detection in an environment without torch and transformers, and arrays that score as tensors do, bit for bit."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import caw
from caw import prf, text_scores
from caw.watermarks.formats.rules import FOREIGN
from caw.watermarks.race import exponential

SIZE = 4000
MARKS = [
    "caw.KGW(key=7)",
    "caw.KGW(key=7, seeding='selfhash')",
    "caw.KGW(key=7, subkeys=4)",
    "caw.KGW(key=7, payload_bits=16)",
    "caw.Unigram(key=7)",
    "caw.Unigram(key=7, format='markllm', vocab_size=4000)",
    "caw.EXP(key=7)",
    "caw.EXP(key=7, payload_bits=8)",
    "caw.EXP(key=7, format='vllm-dual')",
    "caw.EXP(key=[7, 8], format='sglang')",
    "caw.EXP(key=7, format='markllm', vocab_size=4000)",
    "caw.SynthID(key=7)",
    "caw.SynthID(key=7, sampling_table_size=5000)",
    "caw.Recommended(key=7)",
    *(
        f"caw.KGW(key=7, format={name!r}, seeding={seeding!r}, vocab_size=4000)"
        for name, rules in FOREIGN.items()
        for seeding in rules
    ),
]
BLOCK = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'gguf', 'triton'))); import caw\n"
SCRIPT = """
import json
texts, marks = json.load(sys.stdin)
print(json.dumps({text: [result.p_value for result in caw.detect(texts, None, eval(text))] for text in marks}))
"""


def some_texts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 60 if i else SIZE, 90).tolist() for i in range(3)]


def without_torch(script: str, told: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK + script], input=told, capture_output=True, text=True
    )


def test_p_values_are_the_same_without_torch() -> None:
    texts = some_texts()
    ran = without_torch(SCRIPT, json.dumps((texts, MARKS)))
    assert ran.returncode == 0, ran.stderr
    for text, found in json.loads(ran.stdout).items():
        assert found == [result.p_value for result in caw.detect(texts, None, eval(text))], text


@pytest.mark.parametrize("library", ["compiled", "numpy"])
@pytest.mark.parametrize("text", MARKS)
def test_arrays_score_as_tensors_do(text: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library == "numpy":
        monkeypatch.setattr(text_scores, "library", lambda: None)
    for mark in eval(text).parts:
        if mark.code is None:
            mark = mark.under_subkey(0)
            ids = np.concatenate([part for each in some_texts() for part in (np.full(mark.window, -1), np.array(each))])
            ours, theirs = mark.score_tokens(ids), mark.score_tokens(torch.from_numpy(ids))
            for name in ("evidence", "scored", "keyless", "compat_evidence"):
                one, other = getattr(ours, name), getattr(theirs, name)
                assert (one is None) == (other is None) and (one is None or np.array_equal(one, other.numpy())), name
            own, other = ours.values[ours.scored], theirs.values.numpy()[ours.scored]
            # NumPy's and torch's own logarithms are the platform's
            exact = mark.null != "gamma" or (library == "compiled" and mark.native is not None)
            assert np.array_equal(own, other) if exact else np.allclose(own, other, rtol=1e-15)


@pytest.mark.parametrize("count", [0, 1, 8, 257, 1031])
@pytest.mark.parametrize(("scheme", "width"), [(0, 1), (2, 0), (3, 9)])
def test_sums_under_many_keys_are_those_of_each(
    scheme: int, width: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts across pieces of 512 tokens and products of 256, lanes left over in both; keys of all 64 bits."""
    rng, threshold = np.random.default_rng(count), 1 << 22
    keys = rng.integers(-(2**63), 2**63 - 1, 3)
    given = rng.integers(-1, 90_000, (count, width)), rng.integers(0, 90_000, count), keys, scheme, threshold
    found = text_scores.score_keys(*given)
    monkeypatch.setattr(text_scores, "library", lambda: None)
    assert np.allclose(found, text_scores.score_keys(*given), rtol=1e-13, atol=0 if scheme else 1e-9)
    words = [prf.context_words(key & prf.KEY_MASK, given[0], given[1][:, None]) for key in keys.tolist()]
    alone = [word >> 8 < threshold if scheme == 0 else exponential(word) for word in words]
    assert np.allclose(found, [values.sum() for values in alone], rtol=1e-13)
    with pytest.raises(ValueError, match="selfhash has other evidence under each key"):
        text_scores.score_keys(*given[:3], 1, threshold)


@pytest.mark.parametrize("size", [2, 625, 5000])
def test_lists_are_torchs(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 2**32 - 1):
        wanted = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).numpy()
        assert np.array_equal(text_scores.permutation(seed, size), wanted)
        words = (text_scores.generator_words(np.full(size, seed), np.arange(size)[::-1]) & 0xFFFFFF) / 2**24
        assert np.array_equal(words[::-1], torch.rand(size, generator=torch.Generator().manual_seed(seed)).numpy())
        with monkeypatch.context() as patch:
            patch.setattr(text_scores, "library", lambda: None)
            assert np.array_equal(text_scores.permutation(seed, size), wanted)


def test_what_needs_torch_says_so() -> None:
    ran = without_torch("caw.load_model('x')")
    last = ran.stderr.strip().split("\n")[-1]
    assert last.startswith("ImportError: torch is required for") and "pip install 'caw-watermark[generate]'" in last
