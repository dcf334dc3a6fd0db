"""Schemes: what a watermark holds for its format and payload, and what of it leaves the process."""

import pickle

import pytest
import torch

from caw import prf
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark
from caw.watermarks.formats.rules import FOREIGN
from caw.watermarks.kgw import LeftHash

KEY = 987654321987
IDS = torch.arange(3, 40)
WATERMARKS: dict[str, Watermark] = {
    "lefthash": KGW(key=KEY),
    "selfhash": KGW(key=KEY, seeding="selfhash"),
    "unigram": Unigram(key=KEY),
    "unigram markllm": Unigram(key=KEY, format="markllm", vocab_size=50),
    "exp": EXP(key=KEY),
    "exp markllm": EXP(key=KEY, format="markllm", vocab_size=50),
    "exp vllm-dual": EXP(key=KEY, format="vllm-dual"),
    "exp sglang": EXP(key=[KEY, 5 * KEY], format="sglang"),
    "synthid": SynthID(KEY),
} | {
    f"{name} {seeding}": KGW(key=KEY, format=name, seeding=seeding, vocab_size=50)
    for name, seedings in FOREIGN.items()
    for seeding in seedings
}


@pytest.mark.parametrize("name", WATERMARKS)
def test_a_used_watermark_is_pickled_without_what_it_derived(name: str) -> None:
    """Ray sends watermarks to its workers; lists already drawn may take half a gigabyte."""
    watermark = WATERMARKS[name]
    before = watermark.score_tokens(IDS)
    data = pickle.dumps(watermark)
    assert len(data) < 1500
    again = pickle.loads(data)
    assert again == watermark and "scheme" not in again.__dict__ and "table" not in again.__dict__
    after = again.score_tokens(IDS)
    assert torch.equal(after.values, before.values) and torch.equal(after.evidence, before.evidence)


@pytest.mark.parametrize("name", sorted(set(WATERMARKS) - {"synthid"}))
def test_a_scheme_shows_no_key(name: str) -> None:
    scheme = WATERMARKS[name].scheme  # type: ignore[attr-defined]
    for key in (KEY, *scheme.keys):
        assert str(key) not in repr(scheme) and hex(key)[2:] not in repr(scheme)


@pytest.mark.parametrize("gamma", [2**-24, 0.1, 0.25, 0.4, 0.5, 0.9, 1 - 2**-24])
def test_without_a_payload_the_green_list_is_the_first_of_the_lists(gamma: float) -> None:
    scheme = LeftHash(5, b"test", gamma, width=1)
    context, tokens = torch.arange(-1, 300)[:, None], torch.randint(0, 1 << 20, (301, 50))
    expected = prf.green(prf.context_words(scheme.keys[0], context, tokens), gamma)
    assert torch.equal(scheme.green_tokens(context, tokens), expected)
