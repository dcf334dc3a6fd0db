"""Stored records: those of a plain forward of the model at the same positions, and of decoding."""

import numpy as np
import pytest
import torch
from tiny import tiny_model, tiny_tokenizer

import caw
from caw.evaluator import Evaluator, FeatureSpec
from caw.policies.entropy import entropy
from caw.record import Record
from caw.testing import assert_close
from caw_lab.training.labels import EncodedText, LabelledText, encode
from caw_lab.training.recording import record_encoded, record_positions
from caw_lab.training.train import predict

SOLUTIONS = ["5", "She has 7 * 6 = 42 🦙.\n#### 42", "Yes", "the sky is blue " * 6 + "1", "a 2"]


def texts():
    return [LabelledText("toy", "train", i, "Q" * (3 * i), s, ((len(s) - 1, len(s)),)) for i, s in enumerate(SOLUTIONS)]


@pytest.fixture(scope="module")
def tiny():
    tokenizer = tiny_tokenizer()
    return tiny_model(len(tokenizer)), tokenizer


@pytest.mark.parametrize("batch_tokens", [1, 100, 4096], ids=["one-by-one", "few", "all-at-once"])
@pytest.mark.parametrize("window", [(1, 1), (3, 3)])
def test_records_equal_a_plain_forward(tiny, tmp_path, batch_tokens, window):
    model, tokenizer = tiny
    positions = record_positions(model, tokenizer, texts(), tmp_path, batch_tokens=batch_tokens, progress=False)
    spec = FeatureSpec(previous=window[0], next=window[1])
    done = 0
    for text in texts():
        coded = encode(tokenizer, text)
        with torch.inference_mode():
            logits = model(torch.tensor([coded.ids])).logits[0]
        record = Record.from_logits(logits)  # row j - 1 is p_j
        empty = Record.empty(1, torch.device("cpu"))
        for t in range(len(coded.key)):
            at = [coded.first + t + j for j in range(-window[0], window[1] + 1)]
            rows = [record.take(torch.tensor([j - 1])) if 1 <= j <= len(coded.ids) else empty for j in at]
            actual = positions.features(spec, np.array([done + t]))
            assert_close(actual, spec.assemble(rows), "capacity")
        here = slice(done, done + len(coded.key))
        own = logits[coded.first - 1 : -1]
        row = positions.arrays["row"][here]
        assert positions.arrays["token"][here].tolist() == list(coded.ids[coded.first :])
        assert positions.key[here].tolist() == list(coded.key)
        assert np.array_equal(positions.agree[here], (own.argmax(-1) == torch.tensor(coded.ids[coded.first :])).numpy())
        assert_close(positions.arrays["entropy"][row], entropy(own), "capacity")
        assert_close(positions.arrays["values"][row], record.values[coded.first - 1 : -1], "forward")
        ids = torch.from_numpy(positions.arrays["ids"][row].astype(np.int64))
        assert_close(positions.arrays["values"][row], own.gather(1, ids), "forward")
        done = here.stop
    assert done == len(positions) == positions.meta["tokens"]
    assert positions.meta["documents"] == [t.name for t in texts()]


def test_a_prompt_of_one_token_has_no_earlier_record(tiny, tmp_path):
    model, tokenizer = tiny
    text = LabelledText("toy", "train", 0, "", "5 6", ((0, 1),))
    positions = record_positions(model, tokenizer, [text], tmp_path, template="{question}?", progress=False)
    assert encode(tokenizer, text, "{question}?").first == 1
    assert positions.window(np.array([0, 1]), -1).tolist() == [-1, 0]  # p_0 does not exist
    assert len(positions.arrays["entropy"]) == len(positions) + 1


def test_the_head_is_given_rows_without_gaps(tiny, tmp_path):
    """A slice of [B, T, D] has gaps, and torch's bfloat16 product of such rows took 16 times as long on a CPU."""
    model, tokenizer = tiny
    seen = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        record_positions(model, tokenizer, texts(), tmp_path, progress=False)
    finally:
        hook.remove()
    assert seen and any(rows.shape[0] > 1 and rows.shape[1] > 1 for rows in seen)
    assert all(rows.is_contiguous() for rows in seen)


def test_refuses(tiny, tmp_path):
    model, tokenizer = tiny
    with pytest.raises(ValueError, match="at least one labelled text"):
        record_positions(model, tokenizer, [], tmp_path)
    long = LabelledText("toy", "train", 3, "Q", "z1" * 300, ((0, 1),))
    with pytest.raises(ValueError, match=r"fit the model's 512 positions, toy/train/3 has 6\d\d tokens"):
        record_positions(model, tokenizer, [long], tmp_path)


def test_refuses_logits_that_are_not_finite(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match="the model's logits must be finite, they are not on toy/train/0"):
        record_positions(model, tokenizer, texts()[:1], tmp_path, progress=False)
    assert not (tmp_path / "meta.json").exists()


def compare_with_decoding(model, tokenizer, prompts, folder, previous, **options):
    """Capacities of decoding against a teacher-forced pass, where the original token was emitted; their number."""
    evaluator = Evaluator(FeatureSpec(previous=previous), hidden=16)
    evaluator.scale.fill_(10.0)  # capacities over the whole of (0, 1), not at its ends
    policy = caw.CapacityPolicy(evaluator.eval(), theta=1.0)
    watermark = caw.KGW(key=5, delta=6.0)
    ids = [tokenizer(p).input_ids for p in prompts]
    out = caw.generate(model, tokenizer, ids, watermark=watermark, policy=policy, progress=False, **options)
    name = LabelledText("toy", "train", 0, "", "", ())
    coded = [
        EncodedText(name, (*prompt, *new), len(prompt), (True,) * len(new))
        for prompt, new in zip(ids, out.sequences, strict=True)
    ]
    positions = record_encoded(model, coded, folder, progress=False)
    forced = predict(evaluator, positions.features(evaluator.spec, np.arange(len(positions))))
    capacity = np.array([c for trace in out.trace for c in trace.capacity])
    original = np.array([c == 0 for trace in out.trace for c in trace.choice])
    compared = original & ~np.isnan(capacity)
    assert (~original).sum() > 5  # the watermark did change tokens, so histories are those of a marked text
    assert_close(capacity[compared], forced[compared], "capacity")
    return int(compared.sum())


@pytest.mark.parametrize("previous", [0, 1, 2])
def test_decoding_sees_the_same_features(tiny, tmp_path, previous):
    model, tokenizer = tiny
    prompts = ["a", "the sky is blue because", "7 * 6 ="]
    assert compare_with_decoding(model, tokenizer, prompts, tmp_path, previous, max_new_tokens=40) > 20
