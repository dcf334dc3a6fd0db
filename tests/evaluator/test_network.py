"""Evaluator: round trip, refusals, the model it was trained on."""

import copy
import json
import warnings

import pytest
import torch
from decoding import architectures
from safetensors.torch import load_file, save_file

from caw.evaluator import Evaluator, FeatureSpec, warn_of_other_model
from caw.evaluator.token_classes import class_table
from caw.policies import CapacityPolicy
from caw.testing import assert_close

SPEC = FeatureSpec(previous=2, next=1, k=11, transform="gap")


def saved(path, **metadata):
    network = Evaluator(SPEC, 17, {"model": "tiny"})
    network.save(path)
    if metadata:
        fields = {"spec": json.dumps(SPEC.to_dict()), "hidden": "17", "provenance": "{}", **metadata}
        save_file(load_file(path), str(path), {k: v for k, v in fields.items() if v is not None})
    return network


def test_round_trip(tmp_path):
    network = Evaluator(SPEC, 17, {"model": "tiny", "metrics": {"auroc": 0.9}})
    network.mean.normal_(), network.scale.uniform_(0.5, 2)
    network.save(tmp_path / "e.safetensors")
    again = Evaluator.load(tmp_path / "e.safetensors")
    features = torch.randn(13, SPEC.size)
    assert (again.spec, again.hidden, again.provenance) == (SPEC, 17, network.provenance)
    assert_close(again(features), network.eval()(features), "exact")
    assert not again.training and not any(p.requires_grad for p in again.parameters())


def test_forward_is_the_formula():
    network = Evaluator(SPEC, 5).eval()
    network.mean.normal_(), network.scale.uniform_(0.5, 2)
    features = torch.randn(7, SPEC.size)
    mean, scale, w1, b1, w2, b2, w3, b3 = (t.double() for t in network.weights())
    x = ((features.double() - mean) / scale @ w1.T + b1).clamp_min(0)
    x = (x @ w2.T + b2).clamp_min(0)
    assert_close(network(features), (1 / (1 + (-(x @ w3.T + b3)).exp()))[:, 0], "float32")


def test_dropout_only_while_training():
    network, features = Evaluator(SPEC, 32), torch.randn(4, SPEC.size)
    network.dropout = 0.5
    assert not torch.equal(network.train()(features), network(features))
    assert torch.equal(network.eval()(features), network(features))


@pytest.mark.parametrize("metadata", [
    {"spec": json.dumps({**SPEC.to_dict(), "version": 99})}, {"spec": json.dumps({**SPEC.to_dict(), "k": 101})},
    {"spec": json.dumps({**SPEC.to_dict(), "k": 12})}, {"spec": json.dumps({**SPEC.to_dict(), "unknown": 1})},
    {"spec": "no json"}, {"spec": None}, {"hidden": "wide"}, {"hidden": "18"}, {"hidden": "1000000000"},
    {"hidden": "0"}, {"hidden": "-5"}, {"universal": '"yes"'}, {"universal": "no json"}, {"vocabulary": "[1, 2]"},
    {"vocabulary": "x"}, {"provenance": "[1]"}, {"provenance": None},
])  # fmt: skip
def test_load_refuses_other_metadata(tmp_path, metadata):
    path = tmp_path / "e.safetensors"
    saved(path, **metadata)
    with pytest.raises(
        ValueError, match=r"expected evaluator weights of this version in .*e\.safetensors, found: .*train"
    ):
        Evaluator.load(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -5])
def test_load_refuses_damaged_files(tmp_path, keep):
    path = tmp_path / "e.safetensors"
    saved(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="expected evaluator weights of this version"):
        Evaluator.load(path)


BAD_NUMBERS = {
    "scale 0": ("scale", 0.0, "scales must be positive, .* holds 0; train again"),
    "negative scale": ("scale", -1.0, "scales must be positive, .* holds -1; train again"),
    "tiny scale": ("scale", 1e-38, r"keep every sum below 1e\+30, those of .* can reach \d.* and give NaN"),
    "denormal scale": ("scale", 1e-42, r"keep every sum below 1e\+30"),
    "infinite scale": ("scale", torch.inf, "must be finite"),
    "NaN mean": ("mean", torch.nan, "must be finite"),
    "huge mean": ("mean", 3e38, r"keep every sum below 1e\+30"),
    "infinite weight": ("layer1.weight", -torch.inf, "must be finite"),
    "huge weights": ("layer2.weight", 1e38, r"keep every sum below 1e\+30"),
    "NaN bias": ("layer3.bias", torch.nan, "must be finite"),
}


@pytest.mark.parametrize("what", BAD_NUMBERS)
def test_load_refuses_weights_that_can_give_no_capacity(tmp_path, what):
    """With a scale of 0 or 1e-38 every capacity was NaN, which left every token unmarked without a word."""
    name, value, message = BAD_NUMBERS[what]
    network = Evaluator(SPEC, 3)
    network.state_dict()[name].view(-1)[0] = value
    network.save(tmp_path / "e.safetensors")
    for refused in (lambda: Evaluator.load(tmp_path / "e.safetensors"), lambda: CapacityPolicy(network)):
        with pytest.raises(ValueError, match=message) as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_sums_at_the_limit_are_numbers():
    """The bound holds: weights just inside it give a capacity for the worst features."""
    network = Evaluator(SPEC, 4).eval()
    for tensor in network.state_dict().values():
        tensor.fill_(1.0)
    network.state_dict()["scale"].fill_(24 * SPEC.size * 16 / 0.9e30)
    network.check_numbers()
    for sign in (-1, 1):
        assert network(torch.full((1, SPEC.size), sign * 23.03)).isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_weights_that_change_after_a_check_are_checked_again(value):
    network = Evaluator(SPEC, 4)
    network.check_numbers()
    network.check_numbers()
    network.layer2.weight.data[1, 2] = value  # torch counts no version of this
    with pytest.raises(ValueError, match="evaluator weights must"):
        network.check_numbers()
    network.layer2.weight.data[1, 2] = 0.5
    network.check_numbers()


@pytest.mark.parametrize(
    "table", [torch.full((4,), 11, dtype=torch.uint8), torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8)]
)
def test_tables_of_no_classes_are_refused(table):
    with pytest.raises(ValueError, match=r"token_class must be uint8 \[V\] below 11, got"):
        Evaluator(FeatureSpec(classes=11), 3, None, table)


def universal(spec=None):
    torch.manual_seed(3)
    return Evaluator(spec or FeatureSpec(k=5, classes=11, line_ends=True), 4, {"what": "any"}, universal=True).eval()


def test_a_universal_one_reads_the_classes_of_the_tokenizer_that_it_serves(tmp_path):
    network, tokenizer = universal(), architectures.tokenizer()
    network.save(tmp_path / "e.safetensors")
    loaded = Evaluator.load(tmp_path / "e.safetensors")
    assert loaded.universal and loaded.token_class is None and loaded.provenance == {"what": "any"}
    served = loaded.serving(tokenizer)
    assert served.source == loaded.source and served.universal and served.serving(None) is served
    assert torch.equal(served.token_class, class_table(tokenizer, len(tokenizer), line_ends=True))
    assert served.token_class is loaded.serving(tokenizer).token_class  # made once for each tokenizer
    features = torch.randn(7, network.spec.size)
    assert torch.equal(served(features), network(features)) and loaded.token_class is None
    served.check_served()


def test_a_universal_one_moves_to_another_tokenizer(tmp_path):
    """Its table used to stay, also in a file, and its error said that no token differed."""
    first, other = architectures.tokenizer(), copy.deepcopy(architectures.tokenizer())
    other.add_tokens(["new"])
    served = universal().serving(first)
    served.save(tmp_path / "e.safetensors")
    for network in (served, Evaluator.load(tmp_path / "e.safetensors")):
        moved = network.serving(other)
        assert torch.equal(moved.token_class, class_table(other, len(other), line_ends=True))
        assert len(moved.token_class) > len(network.token_class) and moved.serving(other) is moved
        assert network.serving(None) is network and network.serving(first) is network


def test_one_without_classes_serves_as_it_is():
    network = universal(FeatureSpec(k=5))
    assert network.serving(None) is network
    network.check_served()


class NamesOnly:
    def __len__(self):
        return 9

    def convert_ids_to_tokens(self, ids):
        return ["a" for _ in ids]


@pytest.mark.parametrize("tokenizer", [None, object(), "text", NamesOnly()])
def test_a_tokenizer_without_classes_is_refused_in_one_sentence(tokenizer):
    network = universal()
    with pytest.raises(TypeError, match=r"^this evaluator reads token classes from the model's tokenizer, .*; pass "):
        network.serving(tokenizer)
    with pytest.raises(ValueError, match=r"^the evaluator needs the token classes of the model's tokenizer, which is"):
        network.check_served()


@pytest.mark.parametrize("name", ["no-such-evaluator", "folder/none.safetensors", ""])
def test_load_refuses_missing_files(name):
    with pytest.raises(FileNotFoundError, match=r"evaluator must be a \.safetensors file or one of"):
        Evaluator.load(name)


def test_names_with_dots_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("caw.evaluator.network.WEIGHTS_FOLDER", tmp_path)
    saved(tmp_path / "qwen2.5-coder-0.5b.safetensors")
    assert Evaluator.load("qwen2.5-coder-0.5b").spec == SPEC


@pytest.mark.parametrize("trained, used, same", [
    ("smollm2-135m", "smollm2-135m", True), ("smollm2-135m", "some/SmolLM2-135M-Instruct.Q4_1.gguf", True),
    ("qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct", True),
    ("Qwen/Qwen2.5-Coder-0.5B-Instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct", False), ("smollm2-135m", "gpt2", False),
    (None, "gpt2", True),
])  # fmt: skip
def test_warn_of_other_model_warns_once(trained, used, same):
    evaluator = Evaluator(SPEC, 3, {"model": trained} if trained else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_other_model(evaluator, used)
    assert len(caught) == (0 if same else 1)
    if not same:
        assert trained in str(caught[0].message) and used in str(caught[0].message)
