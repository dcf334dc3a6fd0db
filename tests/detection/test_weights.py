"""Weights per token: tables, their estimation, and weighted tests that keep their false-positive rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from scipy import stats

from caw.detection import Detector, detect
from caw.detection.weight_estimates import weights_by_kind
from caw.detection.weights import MOST, TokenWeights, shipped
from caw.testing import assert_close
from caw.watermarks import EXP, KGW, SynthID, Unigram, Watermark
from tests import tiny


def table(levels: Any, **about: Any) -> TokenWeights:
    return TokenWeights(np.array(levels), 3, about)


MARKS = [KGW(key=1), Unigram(key=1), EXP(key=1, context_width=2)]


@pytest.mark.parametrize("watermark", MARKS, ids=lambda w: w.name)
def test_equal_weights_change_nothing(watermark: Watermark) -> None:
    ids = np.random.default_rng(0).integers(0, 40, 120).tolist()
    plain, weighted = detect(ids, None, watermark), detect(ids, None, watermark, weights=table([5] * 40))
    assert_close(weighted.p_value, plain.p_value, "weighted")
    assert_close(weighted.z_score, plain.z_score, "float64")
    assert_close(weighted.score, 5 * plain.score, "float64")
    assert weighted.token_scores == plain.token_scores


def test_weight_zero_leaves_tokens_out_and_unknown_ids_have_the_default() -> None:
    ids = list(range(60))
    weights = table([0, 7] * 20)  # 40 of the 60 ids
    result = detect(ids, None, KGW(key=1), weights=weights)
    assert [s is None for s in result.token_scores] == [i < 40 and i % 2 == 0 for i in ids]
    levels = weights.of(np.array(ids)).tolist()
    scores = zip(result.token_scores, levels, strict=True)
    assert result.score == sum(s * level for s, level in scores if s is not None)


@pytest.mark.parametrize("kind", ["kgw", "exp"])
def test_p_values_of_fresh_keys_are_uniform(kind: str) -> None:
    rng = np.random.default_rng(1)
    weights = table(rng.integers(0, MOST + 1, 60))
    found = []
    for _ in range(250):
        key = int(rng.integers(0, 2**62))
        watermark = KGW(key=key) if kind == "kgw" else EXP(key=key, context_width=1)
        found.append(detect(rng.integers(0, 60, 100).tolist(), None, watermark, weights=weights).p_value)
    assert stats.kstest(found, "uniform").pvalue > 1e-6
    assert stats.binomtest(int((np.array(found) <= 0.05).sum()), 250, 0.05, "greater").pvalue > 1e-6


@pytest.mark.slow
def test_weights_find_what_protected_tokens_hide() -> None:
    """Ids below 50 are never marked, the others half of the time: leaving out the first finds more texts."""
    rng = np.random.default_rng(2)
    found = {"plain": 0, "weighted": 0}
    weights = table([0] * 50 + [MOST] * 2950)
    for seed in range(30):
        watermark = KGW(key=seed)
        ids = [1]
        while len(ids) < 80:
            options = rng.integers(50, 3000, 12)
            scored = [float(watermark.score_tokens(_row(ids[-1], o)).values[1]) for o in options]
            best = int(options[int(np.argmax(scored))])
            ids.append(
                int(rng.integers(0, 50)) if rng.random() < 0.6 else best if rng.random() < 0.5 else int(options[0])
            )
        found["plain"] += detect(ids, None, watermark).is_watermarked
        found["weighted"] += detect(ids, None, watermark, weights=weights).is_watermarked
    assert found["weighted"] > found["plain"] + 5


def _row(*ids: int) -> Any:
    import torch

    return torch.tensor(ids)


def test_tables_are_saved_and_loaded(tmp_path: Path) -> None:
    weights = table([0, 3, 15], key_ids=["abc"], note="x")
    weights.save(tmp_path / "t.safetensors")
    loaded = TokenWeights.load(tmp_path / "t.safetensors")
    assert np.array_equal(loaded.levels, weights.levels) and loaded.provenance == weights.provenance
    assert loaded.default == 3
    by_name = Detector(None, KGW(key=1), weights=str(tmp_path / "t.safetensors"))
    assert isinstance(by_name.weights, TokenWeights)
    (tmp_path / "bad").write_bytes(b"no table")
    with pytest.raises(ValueError, match="must be a weight table"):
        TokenWeights.load(tmp_path / "bad")
    with pytest.raises(FileNotFoundError, match="weights must be a shipped table"):
        TokenWeights.load("nowhere")
    for name in shipped():
        assert TokenWeights.load(name).levels.any()


def test_the_tested_key_must_not_have_made_the_table() -> None:
    weights = table([1, 2], key_ids=[KGW(key=9).key_id])
    with pytest.raises(ValueError, match="which would make"):
        Detector(None, KGW(key=9), weights=weights)
    assert Detector(None, KGW(key=8), weights=weights)


@pytest.mark.parametrize("levels", [[], [[1]], [1.5], [-1], [16], [0, 0]])
def test_bad_levels(levels: Any) -> None:
    with pytest.raises(ValueError, match="levels must be"):
        TokenWeights(np.array(levels))


def test_what_weights_do_not_go_with() -> None:
    weights = table([1, 2])
    with pytest.raises(ValueError, match="weights require mode 'exact'"):
        Detector(None, KGW(key=1), mode="compat", weights=weights)
    with pytest.raises(ValueError, match="weights support KGW, Unigram and EXP"):
        Detector(None, SynthID("k"), weights=weights)


@pytest.mark.parametrize("default", [16, -1, 1.5, True, "8", None])
def test_bad_defaults(default: Any) -> None:
    """16 made an index out of range later, -1 counted against a text."""
    with pytest.raises((TypeError, ValueError), match=r"default must be an integer in \[0, 15\], got"):
        TokenWeights(np.array([1, 2]), default)


@pytest.mark.parametrize("provenance", [None, [1], "text", {"key_ids": 5}, {"key_ids": "abc"}, {"key_ids": [7]}])
def test_provenance_that_cannot_be_read(provenance: Any) -> None:
    """A table that does not say its keys in the one form would be taken for one of other keys."""
    with pytest.raises(TypeError, match="provenance must be a dict whose 'key_ids' is a list of texts, got"):
        TokenWeights(np.array([1, 2]), provenance=provenance)
    with pytest.raises(TypeError, match="provenance must be JSON-serializable"):
        TokenWeights(np.array([1, 2]), provenance={"made": object()})


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"provenance": None}, "must have a default level and provenance in its metadata; make it again"),
        ({"provenance": "{"}, "must have a default level"),
        ({"provenance": "[1]"}, "provenance must be a dict"),
        ({"default": None}, "must have a default level"),
        ({"default": "many"}, "must have a default level"),
        ({"default": "16"}, r"default must be an integer in \[0, 15\]"),
    ],
)
def test_files_with_other_metadata(tmp_path: Path, about: dict[str, Any], message: str) -> None:
    fields = {"version": "1", "default": "8", "provenance": "{}", **about}
    file = tmp_path / "t.safetensors"
    file.write_bytes(save({"levels": np.array([1, 2], np.uint8)}, {k: v for k, v in fields.items() if v is not None}))
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        TokenWeights.load(file)
    assert "\n" not in str(caught.value)


def test_a_table_is_known_by_its_name_and_digest(tmp_path: Path) -> None:
    weights = TokenWeights(np.array([1, 2, 15], np.uint8), default=3)
    weights.save(tmp_path / "t.safetensors")
    loaded = TokenWeights.load(tmp_path / "t.safetensors")
    assert (weights.name, loaded.name) == ("", str(tmp_path / "t.safetensors")) and len(weights.digest) == 64
    assert loaded.digest == weights.digest
    others = [TokenWeights(np.array([1, 2, level]), default) for level, default in ((15, 4), (14, 3))]
    assert weights.digest not in {other.digest for other in others}


def test_a_table_of_another_model_is_refused(tmp_path: Path) -> None:
    """Under the ids of another vocabulary a table found 24 texts of 60, where the right one finds 40 and none 35."""
    own, other = tiny.tiny_tokenizer(), tiny.tiny_tokenizer()
    other.add_tokens(["quite", "other"])  # these come last, so this is still the same vocabulary
    made = weights_by_kind(TokenWeights.load("smollm2-135m"), own)
    made.save(tmp_path / "t.safetensors")
    for weights in (made, str(tmp_path / "t.safetensors")):
        assert Detector(own, KGW(key=1), weights=weights) and Detector(other, KGW(key=1), weights=weights)
    for name in shipped():
        with pytest.raises(ValueError, match=f"the weight table {name} was made for a vocabulary of .*--like"):
            Detector(own, KGW(key=1), weights=name)


def test_shipped_tables_say_their_vocabulary(demo_tokenizer: Any) -> None:
    for name in shipped():
        vocabulary = TokenWeights.load(name).vocabulary
        assert vocabulary is not None and vocabulary.agrees(demo_tokenizer) == name.startswith("smollm2")


def test_a_file_without_a_vocabulary_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "old.safetensors"
    table([1, 2]).save(file)
    with pytest.warns(
        UserWarning, match=r"old.safetensors is from an earlier version and does not name its vocabulary.*make it again"
    ):
        Detector(tiny.tiny_tokenizer(), KGW(key=1), weights=file)
    Detector(None, KGW(key=1), weights=file)  # of ids nothing is known


@pytest.mark.parametrize("said", ["x", "[1, 2]"])
def test_a_vocabulary_that_cannot_be_read(tmp_path: Path, said: str) -> None:
    fields = {"version": "1", "default": "8", "provenance": "{}", "vocabulary": said}
    (tmp_path / "t").write_bytes(save({"levels": np.array([1, 2], np.uint8)}, fields))
    with pytest.raises(ValueError, match="its metadata; make it again"):
        TokenWeights.load(tmp_path / "t")
