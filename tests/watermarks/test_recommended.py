"""Recommended: one secret, two families with keys of their own."""

import hashlib
import math
import pickle
from typing import Any

import pytest

import caw
from caw.settings import Sampling
from caw.watermarks.names import reads_alike, said_of, watermark_from

# sha256(domain + the key as 8 bytes, big-endian), its first 8 bytes: of keys 0, 42 and 2^64 - 1
GOLDEN = {0: 0xA8E1A6A922703C89, 42: 0x2B0EF74C30D9309D, 2**64 - 1: 0xAAA761B82D144D5C}


@pytest.mark.parametrize("key", GOLDEN)
def test_each_family_has_a_key_of_its_own(key: int) -> None:
    mark = caw.Recommended(key)
    hashed = hashlib.sha256(b"caw/recommended/drawn" + key.to_bytes(8, "big")).digest()
    assert int.from_bytes(hashed[:8], "big") == GOLDEN[key]
    assert mark.drawn == caw.EXP(GOLDEN[key], strength="scale", context_width=2) and mark.greedy == caw.KGW(key)
    assert (
        mark.parts
        == (mark.drawn, mark.greedy)
        == tuple(mark.part_for(Sampling(do_sample=own)) for own in (True, False))
    )
    assert mark.drawn.secret != mark.greedy.secret == key
    assert mark.drawn.beginning == math.log(64), "drawn texts begin freely"
    assert (mark.under_subkey(0), mark.under_subkey(1)) == mark.parts and mark.family == 2


def test_no_key_is_shown_or_lost() -> None:
    mark = caw.Recommended("a secret", target=1e-4, evaluator="smollm2-135m")
    for secret in (mark.secret, mark.drawn.secret, mark.greedy.secret):
        assert str(secret) not in repr(mark) + repr(mark.parts)
    assert pickle.loads(pickle.dumps(mark)) == mark == watermark_from(said_of(mark), "a secret")
    assert mark.with_key(7).drawn == caw.Recommended(7).drawn
    assert mark.key_id == caw.KGW("a secret").key_id


def test_a_greedy_text_reaches_half_of_the_level() -> None:
    for level in (1e-6, 1e-3, 0.5):
        alone = caw.Recommended(1).level_of_each(level)
        assert math.isclose(1 - (1 - alone) ** 2, level, rel_tol=1e-9)


def test_a_detector_may_have_another_target() -> None:
    mark = caw.Recommended(1)
    assert reads_alike(mark, caw.Recommended(1, target=0.01, evaluator="x"))
    assert not reads_alike(mark, caw.KGW(1)) and not reads_alike(mark, mark.drawn)
    assert not reads_alike(caw.KGW(1), mark)


@pytest.mark.parametrize(("options", "said"), [
    ({"target": 0}, r"target must be a number in \(0, 1\)"), ({"target": 1.0}, r"target must be a number in \(0, 1\)"),
    ({"evaluator": 3}, "evaluator must be the name of a shipped evaluator"), ({"key": -1}, "key must be in"),
])  # fmt: skip
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        caw.Recommended(**{"key": 1, **options})
