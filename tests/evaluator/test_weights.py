"""The evaluators that ship: honest provenance, better than rules without training, reproducible on held-out text."""

import json

import numpy as np
import pytest
import torch

import caw
from caw.evaluator import Evaluator, shipped, shipped_for, warn_of_other_model
from caw.evaluator.shelf import WEIGHTS_FOLDER
from caw_lab.training.labels import read_labels
from caw_lab.training.metrics import auroc
from caw_lab.training.pipeline import fitted
from caw_lab.training.positions import part_of
from caw_lab.training.recording import record_positions
from caw_lab.training.train import predict

NAMES = shipped()
WINDOWS = {name: name.rpartition("-window")[2] for name in NAMES if "-window" in name}
OF_ENGINES = {name: window for name, window in WINDOWS.items() if not name.startswith("universal")}
OF_ALL = [name for name in NAMES if name.startswith("universal")]
# AUROC of 20 of the 109 test documents drawn at random has standard deviation 0.012 around the figure of all; times 4
INTERVAL = 0.048


def test_those_that_ship():
    own = {"smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"}
    of_engines = {"smollm2-135m-window00", "qwen2.5-coder-0.5b-window00"}
    universal = {"universal", "universal-answers", "universal-window00"}
    assert set(NAMES) == own | of_engines | universal | {"smollm2-135m-paper"}


@pytest.mark.parametrize(("model", "name"), [
    ("smollm2-135m", "smollm2-135m"),
    ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "qwen2.5-coder-0.5b"),
    ("models/qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf", "qwen2.5-coder-0.5b"),
    ("Qwen/Qwen2.5-0.5B", None),
    ("smollm2", None),
])  # fmt: skip
def test_a_models_own_evaluator_is_found_however_the_model_is_named(model, name):
    assert shipped_for(model) == name


@pytest.fixture(scope="module")
def held_out(demo, data_dir, tmp_path_factory):
    texts = read_labels(data_dir / "key_segments" / "gsm8k_train.jsonl", data_dir)
    chosen = [t for t in texts if part_of(t.name) == "test"][:20]
    return record_positions(*demo, chosen, tmp_path_factory.mktemp("positions"), progress=False)


@pytest.mark.slow(seconds=15)
def test_an_evaluator_reads_another_model_with_that_models_token_classes(held_out):
    positions, every = held_out, np.arange(len(held_out))
    own, other = Evaluator.load("smollm2-135m"), Evaluator.load("qwen2.5-coder-0.5b")
    assert fitted(own, "smollm2-135m", positions) is own
    table = fitted(other, "smollm2-135m", positions).token_class
    assert torch.equal(table[: len(own.token_class)], own.token_class[: len(table)])
    capacity = predict(other, positions.features(other.spec, every, table))
    assert auroc(positions.key, capacity) > auroc(positions.key, positions.baselines()["entropy"]) + 0.1


@pytest.mark.parametrize("name", NAMES)
def test_loads_by_name(name):
    evaluator = Evaluator.load(name)
    evaluator.spec.check_decodable()
    window = WINDOWS.get(name, "11")
    assert [evaluator.spec.previous, evaluator.spec.next] == [int(number) for number in window]
    assert evaluator.spec.k == (10 if evaluator.universal else 25 if name in OF_ENGINES else 100)
    capacity = evaluator(torch.randn(5, evaluator.spec.size))
    assert bool(((capacity >= 0) & (capacity <= 1)).all())
    assert (WEIGHTS_FOLDER / f"{name}.safetensors").stat().st_size < 1_000_000
    warn_of_other_model(evaluator, evaluator.provenance.get("model", "any model"))


@pytest.mark.parametrize("name", OF_ALL)
def test_universal_ones_take_any_tokenizer_and_say_what_they_were_trained_on(name):
    made, written = Evaluator.load(name), json.loads((WEIGHTS_FOLDER / f"{name}.json").read_text())
    assert made.provenance == written and made.universal and made.token_class is None and made.vocabulary is None
    assert written["data"]["licence"] and "bench_universal.py" in written["command"]
    if name != "universal-answers":
        assert all(0.85 < row["unseen"] <= row["seen"] for row in written["metrics"]["sets"])
        window = WINDOWS.get(name, "11")
        assert ("--previous {} --next {}".format(*window) in written["command"]) == (window != "11")


@pytest.mark.parametrize("name", OF_ENGINES)
def test_other_engines_take_those_that_do_not_look_ahead(name):
    """They are nobody's default: with a look-ahead the model's own evaluator ranks better."""
    evaluator, model = Evaluator.load(name), name.rpartition("-window")[0]
    policy, size = caw.CapacityPolicy(name), len(evaluator.token_class)
    assert not policy.looks_ahead and policy.beta == caw.CapacityPolicy(model).beta
    chooser = caw.Chooser(caw.KGW(key=1), policy, vocab_size=size)
    assert chooser.history == evaluator.spec.previous
    with pytest.raises(ValueError, match="must not read the next position"):
        caw.Chooser(caw.KGW(key=1), caw.CapacityPolicy(model), vocab_size=size)
    assert shipped_for(evaluator.provenance["model"]) == model
    ours, own = (Evaluator.load(each).provenance["metrics"]["auroc_ci"] for each in (name, model))
    assert 0.9 < ours[0] < own[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ALL])
def test_provenance(name, recwarn):
    written = json.loads((WEIGHTS_FOLDER / f"{name}.json").read_text())
    assert Evaluator.load(name).provenance == written
    for field in ("model", "dtype", "prompt", "data", "features", "metrics", "command", "versions"):
        assert written[field], field
    data = written["data"]
    assert data["licence"] and data["documents"] == sum(
        data["split"][p]["documents"] for p in ("train", "validation", "test")
    )
    assert written["metrics"]["auroc_ci"][0] > written["metrics"]["evaluators"]["entropy"]["auroc"]


@pytest.mark.slow
def test_held_out_figures_can_be_had_again(held_out):
    positions, every = held_out, np.arange(len(held_out))
    for name in ("smollm2-135m", "smollm2-135m-paper"):
        evaluator = Evaluator.load(name)
        capacity = predict(evaluator, positions.features(evaluator.spec, every, evaluator.token_class))
        stated = evaluator.provenance["metrics"]["evaluators"]["capacity"]["auroc"]
        assert abs(auroc(positions.key, capacity) - stated) < INTERVAL
        baseline = auroc(positions.key, positions.baselines()["entropy"])
        assert auroc(positions.key, capacity) > baseline + 0.1
