"""format="sbw": a plain writing of the rule, and the package itself where it is installed."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from caw.watermarks import KGW
from caw.watermarks.formats import sbw

KEY, VOCABULARY = 15485863, 503
plain = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "make_golden.py")))


def jenkins(x: int) -> int:
    def signed(i: int) -> int:
        return (i + 2**31) % 2**32 - 2**31

    i = signed(x + 1)
    for shift, how in ((6, "-"), (-17, "^"), (9, "-"), (4, "^"), (3, "-"), (10, "^"), (-15, "^")):
        moved = signed(i << shift) if shift > 0 else i >> -shift
        i = signed(i - moved) if how == "-" else i ^ moved
    return i


def test_integer_hash() -> None:
    values = [0, 1, 42, 50256, 2**31 - 2, 2**31 - 1]
    assert sbw.hashint(torch.tensor(values)).tolist() == [jenkins(v) for v in values]


@pytest.mark.parametrize("scheme", ["simple_4", "selfhash"])
def test_green_tokens_equal_a_plain_writing(scheme: str) -> None:
    watermark = KGW(key=KEY, gamma=0.5, seeding=scheme, format="sbw", vocab_size=VOCABULARY)
    for context in torch.randint(0, VOCABULARY, (5, 4)).tolist():
        mask = watermark.green_vocabulary(torch.tensor([context]), VOCABULARY)[0].tolist()
        for token in range(0, VOCABULARY, 50):
            if scheme == "simple_4":
                seed = KEY * sum(context) % 2**64
            else:
                pairs = [KEY * jenkins(x) * jenkins(token) for x in [*context[1:], token]]
                seed = min((p + 2**63) % 2**64 - 2**63 for p in pairs) % 2**64
            word = plain.philox([token // 4, 0, 0, 0], [seed % 2**32, seed // 2**32])[token % 4]
            assert mask[token] == ((word & 0x7FFFFFFF) < int(0.5 * 0x7FFFFFFF))
