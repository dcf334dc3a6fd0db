"""KGW and Unigram with sub-keys: which one marked a text, and a p-value that is corrected for all of them."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import build, prompt
from decoding.running import run
from detection.test_null import continuous
from scipy import stats

import caw
from caw.detection import Detector, KeySearch
from caw.detection.family import family_wise
from caw.detection.subkeys import sums_of
from caw.detection.weights import TokenWeights
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, Unigram
from caw.watermarks.green_list import FormattedList
from caw.watermarks.names import reads_alike, said_of, watermark_from

FALSE_ALARM = 1e-6
MARK = KGW(key=77, subkeys=64)
KINDS: dict[str, Callable[..., FormattedList]] = {
    "lefthash": KGW,
    "selfhash": lambda **options: KGW(seeding="selfhash", **options),
    "unigram": Unigram,
}
# 8 bytes of sha256(b"caw/subkey" + 2 bytes of the number + 8 bytes of the key of the family's lists), of key 77
GOLDEN = {
    "lefthash": {0: 0xA52F640F3CE3BEF3, 1: 0xB09B7F1082742B90, 63: 0x8FF652EFE56F6695},
    "selfhash": {0: 0xA52F640F3CE3BEF3, 1: 0xB09B7F1082742B90, 63: 0x8FF652EFE56F6695},
    "unigram": {0: 0x4987DCBD94A871C4, 1: 0xD3C75984059E7559, 63: 0x2DF2A554589641FA},
}


def key_of(mark: FormattedList) -> int:
    assert mark.native is not None
    return mark.native.key


def marked(mark: FormattedList, length: int, seed: int = 0) -> list[int]:
    """Ids of which most are green under the mark's own sub-key: one of four at each place, all distinct."""
    generator, ids = torch.Generator().manual_seed(seed), [5, 6, 7, 8]
    while len(ids) < length:
        options = torch.randint(0, 50_000, (1, 4), generator=generator)
        green = mark.green_tokens(torch.tensor([ids[len(ids) - mark.window :]]), options)
        ids.append(int(options[0, int(green.int().argmax())]))
    return ids


def hashed(domain: bytes, key: int) -> int:
    return int.from_bytes(hashlib.sha256(domain + key.to_bytes(8, "big")).digest()[:8], "big")


@pytest.mark.parametrize("kind", KINDS)
def test_sub_keys_are_derived_behind_the_key_of_the_lists(kind: str) -> None:
    """And do not depend on how many there are; sub-key 0 is the key itself."""
    mark, own = KINDS[kind](key=77, subkeys=64), KINDS[kind](key=77)
    family = hashed(b"caw/unigram" if kind == "unigram" else b"caw/kgw", 77)
    assert key_of(own) == family == key_of(mark) == GOLDEN[kind][0]
    for number in (1, 63):
        expected = hashed(b"caw/subkey" + number.to_bytes(2, "big"), family)
        assert key_of(mark.under_subkey(number)) == expected == GOLDEN[kind][number]
        assert key_of(KINDS[kind](key=77, subkeys=1024).under_subkey(number)) == expected
        assert str(expected) not in repr(mark.under_subkey(number))
    assert mark.under_subkey(0) == own and own.under_subkey(0) == own
    alone = KINDS[kind](key=77, subkey=5)
    assert mark.under_subkey(5) == alone == alone.under_subkey(0), "the only sub-key of a mark that has one"
    assert len({key_of(mark.under_subkey(number)) for number in range(64)}) == 64


@pytest.mark.parametrize("number", [0, 17, 63])
@pytest.mark.parametrize("kind", KINDS)
def test_the_likeliest_sub_key_is_found_and_corrected_for_all(kind: str, number: int) -> None:
    mark = KINDS[kind](key=77, subkeys=64)
    ids = marked(mark.under_subkey(number), 80)
    result = Detector(None, mark)(ids)
    alone = caw.detect(ids, None, mark.under_subkey(number))
    assert result.is_watermarked
    assert (result.subkey, result.num_subkeys, result.key_id) == (number, 64, mark.key_id)
    assert_close(result.p_value, -math.expm1(64 * math.log1p(-alone.p_value)), "tail")
    assert (result.score, result.token_scores) == (alone.score, alone.token_scores)
    assert f"corrected p = {result.p_value:.2g}" in result.message and f"sub-key {number} of 64" in result.message
    by_the_key = caw.detect(ids, None, KINDS[kind](key=77))
    assert by_the_key.is_watermarked is (number == 0) and by_the_key.subkey is None


def test_a_text_is_marked_with_the_watermarks_own_sub_key() -> None:
    model = build("llama")

    def text(mark: FormattedList) -> list[int]:
        tokens: list[int] = run(model, [prompt(9)], mark, max_new_tokens=60).tokens[0]
        return tokens

    plain = text(KGW(key=77))
    assert text(MARK) == plain, "sub-key 0 marks, however many a detector tries"
    for subkeys in (1, 64):
        own = text(KGW(key=77, subkeys=subkeys, subkey=3))
        found = Detector(None, MARK)(own)
        assert own != plain and found.is_watermarked and found.subkey == 3


@pytest.mark.parametrize("kind", ["lefthash", "unigram"])
def test_one_scan_gives_the_sums_of_each_sub_key_by_itself(kind: str) -> None:
    mark = KINDS[kind](key=77, subkeys=64)
    ids = np.random.default_rng(3).integers(0, 12, 300)
    each = [mark.under_subkey(number) for number in range(64)]
    sums, count = sums_of(mark, ids, torch.tensor([one.native.signed_key for one in each if one.native]))
    results = [caw.detect(ids.tolist(), None, one) for one in each]
    assert {result.num_scored for result in results} == {count} and count < 300
    assert_close(sums, [result.score for result in results], "float64")
    found = Detector(None, mark)(ids.tolist())
    assert found.subkey == int(np.argmin([result.p_value for result in results]))


def test_weights_choose_the_sub_key_of_the_greatest_weighted_score() -> None:
    weights = TokenWeights(np.random.default_rng(0).integers(0, 4, 50_000))
    for seed, kind in enumerate(KINDS):
        mark = KINDS[kind](key=77, subkeys=16)
        for ids in (marked(mark.under_subkey(9), 40), np.random.default_rng(seed).integers(0, 50_000, 60).tolist()):
            each = [caw.detect(ids, None, mark.under_subkey(number), weights=weights) for number in range(16)]
            result = Detector(None, mark, weights=weights)(ids)
            least = min(one.p_value for one in each)
            assert_close(each[result.subkey].p_value, least, "tail")
            assert_close(result.p_value, float(family_wise(np.float64(least), 16)), "tail")


@pytest.mark.parametrize("key", [2**64 - 1, "a secret"])
@pytest.mark.parametrize("kind", KINDS)
def test_p_values_are_an_upper_bound_and_uniform_once_made_continuous(kind: str, key: Any) -> None:
    """500 random texts under each of two keys, at a false-alarm rate of 1e-6; evidence hardly repeats."""
    rng, mark = np.random.default_rng(5), KINDS[kind](key=key, subkeys=8, gamma=0.5)
    texts = list(rng.integers(0, 50_000, (500, 40)))
    told = np.array([result.p_value for result in Detector(None, mark).detect_ids(texts)])
    for level in (0.01, 0.1, 0.5):
        assert stats.binom.sf(int((told <= level).sum()) - 1, len(told), level) > FALSE_ALARM
    each = []
    for number in range(8):
        found = Detector(None, mark.under_subkey(number)).detect_ids(texts)
        scores, counts = np.array([one.score for one in found]), np.array([one.num_scored for one in found])
        each.append(continuous(mark.under_subkey(number), scores, counts, rng.random(len(texts))))
    least = np.min(each, axis=0)
    assert stats.kstest(family_wise(least, 8), "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(least, "uniform").pvalue < FALSE_ALARM, "the test can tell"


@pytest.mark.parametrize("kind", ["lefthash", "selfhash"])
def test_regions_are_searched_under_each(kind: str) -> None:
    """A marked part of an unmarked text is found in place."""
    mark, rng = KINDS[kind](key=77, subkeys=4), np.random.default_rng(9)
    ids = [*rng.integers(0, 50_000, 150), *marked(mark.under_subkey(2), 120), *rng.integers(0, 50_000, 80)]
    ids = [int(token) for token in ids]
    result = Detector(None, mark, regions=True)(ids)
    alone = Detector(None, mark.under_subkey(2), fpr=1e-3, regions=True)(ids)
    assert result.is_watermarked and result.subkey == 2 and result.regions and alone.regions
    assert_close(result.p_value, float(family_wise(np.float64(alone.p_value), 4)), "tail")
    [region] = result.regions
    assert abs(region.start - 150) < 20 and abs(region.end - 270) < 20
    assert_close(region.p_value, float(family_wise(np.float64(alone.regions[0].p_value), 4)), "tail")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_sub_keys_are_one_family(kind: str) -> None:
    marks: dict[str, caw.Watermark] = {f"key {n}": KINDS[kind](key=n, subkeys=16) for n in range(5)}
    marks |= {"race": EXP(key=9, strength="scale"), "alone": KINDS[kind](key=3, subkey=7)}
    ids = marked(KINDS[kind](key=3, subkey=11), 60)
    found = KeySearch(None, marks)(ids)
    alone = caw.detect(ids, None, KINDS[kind](key=3, subkey=11)).p_value
    assert found.likeliest == "key 3" and found.results["key 3"].subkey == 11 and found.matches == ("key 3",)
    # seven tests of which the least is that of 16: 1 - ((1 - p)^16)^7
    assert_close(found.p_value, -math.expm1(112 * math.log1p(-alone)), "tail")
    assert_close(found.p_values, [Detector(None, mark)(ids).p_value for mark in marks.values()], "tail")
    seventh = KeySearch(None, marks)(marked(KINDS[kind](key=3, subkey=7), 60))
    assert set(seventh.matches) == {"key 3", "alone"} and seventh.likeliest == "alone"


@pytest.mark.parametrize(("kind", "change", "message"), [
    (KGW, {"subkeys": 0}, r"subkeys must be an integer in \[1, 1024\], got 0"),
    (Unigram, {"subkeys": 1025}, r"subkeys must be an integer in \[1, 1024\], got 1025"),
    (KGW, {"subkey": -1}, r"subkey must be an integer in \[0, 1023\], got -1"),
    (Unigram, {"subkey": 1024}, r"subkey must be an integer in \[0, 1023\], got 1024"),
    (KGW, {"subkeys": 4, "subkey": 4}, r"subkey must be an integer in \[0, 3\], got 4"),
    (KGW, {"subkeys": 2, "format": "markllm"}, "sub-keys need format 'native' and no payload, got subkeys=2"),
    (Unigram, {"subkey": 2, "format": "markllm"}, "got subkeys=1 and subkey=2 with format 'markllm'"),
    (KGW, {"subkeys": 2, "gamma": 0.5, "payload": 3, "payload_bits": 4}, "with format 'native' and payload_bits=4"),
])  # fmt: skip
def test_what_sub_keys_do_not_go_with_is_refused(kind: Any, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(key=1, **change)


def test_what_reads_one_key_is_refused() -> None:
    with pytest.raises(ValueError, match=r"number must be an integer in \[0, 63\], got 64"):
        MARK.under_subkey(64)
    with pytest.raises(ValueError, match="sub-keys are tried in mode 'exact', got mode 'compat' and 64 sub-keys"):
        Detector(None, MARK, mode="compat")
    with pytest.raises(ValueError, match="tokens are scored under one key, got 64 sub-keys of kgw; give one of them"):
        next(Detector(None, MARK).score([np.arange(9)]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_detector_reads_what_has_as_many_sub_keys_or_fewer(kind: str) -> None:
    few, many, one = (KINDS[kind](key=1, subkeys=v) for v in (16, 64, 1))
    assert reads_alike(few, many) and reads_alike(many, many) and reads_alike(one, one) and reads_alike(one, many)
    assert not reads_alike(many, few) and not reads_alike(many, one)
    assert watermark_from(said_of(many), 1) == many
    own = KINDS[kind](key=1, subkey=20)
    assert own.is_read_by(many) and own.is_read_by(own)
    assert not own.is_read_by(few) and not own.is_read_by(one) and not one.is_read_by(own)


def test_a_text_is_tested_by_a_detector_of_all_its_sub_keys() -> None:
    from caw.detectable.trial import make_trial
    from caw.settings import Settings

    settings = Settings(detectable_at=1e-3)
    theirs = Detector(lambda text: text, KGW(key=77, subkeys=16))
    with pytest.raises(ValueError, match="detector must try the 64 sub-keys of the watermark that marks, got 16"):
        make_trial(settings, theirs, MARK, theirs.tokenizer, 200)
    for mark in (KGW(key=77), KGW(key=77, subkeys=16), KGW(key=77, subkeys=16, subkey=9)):
        assert make_trial(settings, theirs, mark, theirs.tokenizer, 200).mark == mark
