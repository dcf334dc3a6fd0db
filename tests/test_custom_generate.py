"""model.generate(custom_generate=caw.decode): parity with transformers' own generate, and what it must refuse."""

import copy
import functools
from typing import Any

import pytest
import torch
from decoding.architectures import VOCAB, build, prompt, spread_evaluator, tokenizer
from decoding.brute_force import BruteForce, agree
from decoding.drafts.guessing import Knowing
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
    StopStringCriteria,
    TextStreamer,
    WatermarkingConfig,
    pipeline,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

import caw

NEW = 14
PROMPTS = [prompt(9), prompt(3, 2), prompt(6, 1)]


@pytest.fixture(params=["llama", "gpt2", "gemma3"])
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param)


@pytest.fixture
def llama() -> Any:
    return build("llama")


def left_padded(prompts: list[list[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


def both(model: Any, inputs: dict[str, torch.Tensor] | None = None, **options: Any) -> tuple[Any, Any]:
    inputs = inputs or left_padded()
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(**inputs, custom_generate=caw.decode, **options), model.generate(**inputs, **options)


def frequent_ends(model: Any) -> list[int]:
    """Tokens that end the rows of a greedy batch at different places."""
    plain = model.generate(**left_padded(), max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None)
    new = plain[:, -NEW:]
    return [int(new[0, 4]), int(new[1, 8])]


class OnlyNearRow(LogitsProcessor):
    """Depends on the row's number and on the whole text before it, as prefix constraints do."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        row = torch.arange(len(scores))[:, None]
        return scores.masked_fill((torch.arange(VOCAB) + input_ids.shape[1] + row) % 3 == 0, -torch.inf)


class StopAt(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


PARITY: dict[str, dict[str, Any]] = {
    "greedy": {},
    "repetition penalty": {"repetition_penalty": 1.8},
    "minimum": {"min_new_tokens": 7},
    "no repeats": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[39], [15, 129]]},
    "suppressed": {"suppress_tokens": list(range(20, 60))},
    "forced end": {"forced_eos_token_id": 7},
    "max_length": {"max_length": 15, "max_new_tokens": None},
    "stopping": {"stopping_criteria": [StopAt(15)]},
    "stop strings": {"stopping_criteria": [StopStringCriteria(tokenizer(), ["!", "a", "Q"])]},
    "processor": {"logits_processor": [OnlyNearRow()]},
    "config": {"generation_config": GenerationConfig(max_new_tokens=5, repetition_penalty=1.3, pad_token_id=0)},
}


@pytest.mark.parametrize("what", PARITY)
def test_greedy_parity(llama: Any, what: str) -> None:
    options = {**PARITY[what], **({"max_new_tokens": 5} if what == "config" else {})}
    ours, theirs = both(llama, **options)
    assert torch.equal(ours, theirs)
    ended, theirs = both(llama, **options, eos_token_id=frequent_ends(llama))
    assert torch.equal(ended, theirs)
    plain = {"greedy", "max_length", "config", "minimum"}
    assert what in plain or ours.shape != both(llama)[0].shape or not torch.equal(ours, both(llama)[0])


def test_theta_zero_is_stock_generate(model: Any) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(model), theta=0.0)
    _, theirs = both(model)
    marked = model.generate(**left_padded(), max_new_tokens=NEW, do_sample=False, custom_generate=caw.decode,
                            watermark=caw.EXP(key=1), policy=policy)  # fmt: skip
    assert torch.equal(marked, theirs)


@pytest.mark.parametrize("watermark", [caw.KGW(key=1), caw.EXP(key=2, top_k=60)])
def test_same_tokens_as_caw_generate(model: Any, watermark: Any) -> None:
    policy = caw.CapacityPolicy(spread_evaluator(model), theta=1.0, beta=1.5)
    expected = caw.generate(model, tokenizer(), PROMPTS, watermark=watermark, policy=policy, max_new_tokens=NEW)
    ours = model.generate(**left_padded(), max_new_tokens=NEW, do_sample=False, custom_generate=caw.decode,
                          watermark=watermark, policy=policy)  # fmt: skip
    reference = BruteForce(model, watermark, policy, eos=(2,))
    for ids, row, wanted in zip(PROMPTS, ours[:, 9:].tolist(), expected.sequences, strict=True):
        agree(row[: len(wanted)], wanted, reference, ids, f"custom_generate {watermark.name}")
        assert not any(row[len(wanted) :])


def test_rows_that_lag_keep_their_processors(llama: Any) -> None:
    """More rungs than slots: a row waits a step, and penalties still see its own tokens and its own row number."""
    watermark, policy = caw.EXP(key=2, top_k=60), caw.CapacityPolicy(spread_evaluator(llama), theta=1.0, beta=1.6)
    options = {"max_new_tokens": NEW, "do_sample": False, "watermark": watermark, "policy": policy,
               "repetition_penalty": 1.5, "custom_generate": caw.decode}  # fmt: skip
    together = llama.generate(**left_padded(), **options)
    for row, ids in enumerate(PROMPTS):
        alone = llama.generate(torch.tensor([ids]), **options)
        tokens = alone[0, len(ids) :].tolist()
        assert together[row, 9 : 9 + len(tokens)].tolist() == tokens


# Sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["plain", "caw", "sampled"])
def test_drafts_change_nothing(llama: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    saw: list[int] = []
    monkeypatch.setattr("caw.decoding.drafts.proposer.Proposer.saw", lambda self, *counts: saw.append(counts[2]))
    options: dict[str, Any] = {
        "plain": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
        "caw": {"watermark": caw.KGW(key=3), "policy": caw.CapacityPolicy(spread_evaluator(llama), theta=0.7)},
        "sampled": {"watermark": caw.EXP(key=3), "do_sample": True, "temperature": 0.7, "top_k": 30, "seed": 5},
    }[what]  # fmt: skip
    made = functools.partial(
        llama.generate, **left_padded(), custom_generate=caw.decode, max_new_tokens=NEW, pad_token_id=0,
        **{"do_sample": False, **options},
    )  # fmt: skip
    plain = made(speculate=None)
    drafter = Knowing(list(zip(PROMPTS, plain[:, -NEW:].tolist(), strict=True)), ["right", "last wrong", "too long"])
    assert made(speculate=drafter).equal(plain) and sum(saw) > NEW // 3

    class Seventh(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return torch.tensor([input_ids.shape[1] >= left_padded()["input_ids"].shape[1] + 7])

    assert made(speculate=drafter, stopping_criteria=[Seventh()]).equal(plain[:, : 7 - NEW])


def test_a_processor_that_remembers_sees_rows_of_one_length(llama: Any) -> None:
    """Unless drafts are asked for by name, there are none beside it."""
    lengths: list[int] = []

    class Counting(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            lengths.append(input_ids.shape[1])
            return scores

    inputs = {"input_ids": torch.tensor([[5, 6, 7] * 5] * 2), "custom_generate": caw.decode, "pad_token_id": 0}
    llama.generate(**inputs, max_new_tokens=NEW, do_sample=False, logits_processor=[Counting()])
    assert lengths == list(range(15, 15 + NEW))


def test_sampling_is_governed_by_seed_or_torch(llama: Any) -> None:
    options = {"max_new_tokens": NEW, "do_sample": True, "custom_generate": caw.decode, "top_k": 0}
    inputs = left_padded()
    first = llama.generate(**inputs, seed=3, **options)
    assert torch.equal(first, llama.generate(**inputs, seed=3, **options))
    assert not torch.equal(first, llama.generate(**inputs, seed=4, **options))
    by_torch = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        by_torch.append(llama.generate(**inputs, **options))
    assert torch.equal(by_torch[0], by_torch[1])
    assert not torch.equal(by_torch[0], by_torch[2])


def test_seeded_sampling_is_caw_generates(llama: Any) -> None:
    warpers = {"temperature": 0.9, "top_k": 30, "top_p": 0.9}
    ours = llama.generate(
        **left_padded(), max_new_tokens=NEW, do_sample=True, seed=3, custom_generate=caw.decode, **warpers
    )
    expected = caw.generate(llama, tokenizer(), PROMPTS, max_new_tokens=NEW, do_sample=True, seed=3, **warpers)
    for row, wanted in zip(ours[:, 9:].tolist(), expected.sequences, strict=True):
        assert row[: len(wanted)] == wanted


def test_a_recommended_marks_cool_texts_by_the_lists_and_others_by_the_race(llama: Any) -> None:
    """As `caw.generate` does, here by the generation config. A bonus of 16 over 4 is worth one of 4 before it."""
    mark = caw.Recommended(5)
    lists = {"watermark": caw.KGW(5, delta=16.0), "policy": caw.FixedStrength(target=mark.level_of_each(mark.target))}

    def made(temperature: float, **options: Any) -> list[list[int]]:
        own = {"do_sample": True, "temperature": temperature, "top_k": 0, "max_new_tokens": NEW, "seed": 3}
        out = llama.generate(**left_padded(), custom_generate=caw.decode, pad_token_id=0, **own, **options)
        return out.tolist()  # type: ignore[no-any-return]

    assert made(0.25, watermark=mark) == made(0.25, **lists) != made(0.25)
    assert made(0.3, watermark=mark) == made(0.3, watermark=mark.drawn)
    with pytest.raises(ValueError, match="samples from one token, which leaves nothing to mark"):
        made(0.01, watermark=mark)


# Forms of output and input -----------------------------------------------------------------------------------------


def test_dict_output(llama: Any) -> None:
    ours, theirs = both(llama, return_dict_in_generate=True)
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert torch.equal(ours.sequences, theirs.sequences)


def test_pipeline(llama: Any) -> None:
    texts = ["abc", "Q"]
    pipe = pipeline("text-generation", model=llama, tokenizer=tokenizer())
    options = {"custom_generate": caw.decode, "watermark": caw.KGW(key=1), "max_new_tokens": 5, "do_sample": False}
    shown = [out[0]["generated_text"] for out in pipe(texts, batch_size=2, return_full_text=False, **options)]
    assert shown == caw.generate(llama, tokenizer(), texts, watermark=caw.KGW(key=1), max_new_tokens=5).texts


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.given: list[Any] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.given.append(value.tolist())

    def end(self) -> None:
        self.ended += 1


def test_streamer(llama: Any, capsys: pytest.CaptureFixture) -> None:
    recorder = Recorder()
    inputs = {"input_ids": torch.tensor(PROMPTS[:1])}
    out = llama.generate(**inputs, max_new_tokens=4, custom_generate=caw.decode, caw_streamer=recorder, do_sample=False)
    assert recorder.given == [PROMPTS[:1], *[[t] for t in out[0, 9:].tolist()]]
    assert recorder.ended == 1
    text = TextStreamer(tokenizer(), skip_prompt=True)
    llama.generate(**inputs, max_new_tokens=4, custom_generate=caw.decode, caw_streamer=text, do_sample=False)
    assert capsys.readouterr().out.rstrip("\n") == tokenizer().decode(out[0, 9:])


@pytest.mark.parametrize(("options", "message"), [
    ({"num_beams": 3}, "num_beams must be 1 for watermarked decoding, got 3"),
    ({"watermarking_config": WatermarkingConfig()}, "watermarking_config must be None when a caw watermark"),
    ({"guidance_scale": 1.5}, "guidance_scale must be 1"),
    ({"return_dict_in_generate": True, "output_scores": True}, "returns sequences only, got output_scores=True"),
    ({"return_dict_in_generate": True, "output_logits": True}, "returns sequences only, got output_logits=True"),
    ({"watermark": "kgw"}, "watermark must be a caw watermark"), ({"policy": 1.0}, "policy must be a caw policy"),
    ({"caw_streamer": Recorder()}, "a streamer requires a batch of 1, got 3"), ({"thtea": 0.5}, "thtea"),
    ({"detectable_at": 1e-3}, "detectable_at"),
    ({"position_ids": torch.arange(99).repeat(3, 1)}, "position_ids must count each prompt's tokens from 0"),
    ({"position_ids": torch.ones(3, 9, dtype=torch.long)}, "position_ids must count each prompt's tokens from 0"),
    ({"force_words_ids": [[5]]}, "force_words_ids"),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused(llama: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        llama.generate(**left_padded(), max_new_tokens=3, do_sample=False, custom_generate=caw.decode, **options)
    assert llama.config._attn_implementation == "sdpa"
    if "caw_streamer" in options:
        assert options["caw_streamer"].ended == 1


def test_embeddings_and_empty_rows_are_refused(llama: Any) -> None:
    embeddings = llama.get_input_embeddings()(torch.tensor(PROMPTS[:1]))
    with pytest.raises(ValueError, match="inputs_embeds are not supported"):
        llama.generate(inputs_embeds=embeddings, max_new_tokens=3, custom_generate=caw.decode)
    inputs = left_padded()
    inputs["attention_mask"][1] = 0
    with pytest.raises(ValueError, match="row 1 is all padding"):
        llama.generate(**inputs, max_new_tokens=3, custom_generate=caw.decode)


def test_usual_positions_are_taken(llama: Any) -> None:
    inputs = left_padded()
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "custom_generate": caw.decode}
    mask = inputs["attention_mask"]
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)  # as transformers has it
    assert torch.equal(llama.generate(**inputs, position_ids=positions, **options), llama.generate(**inputs, **options))


def test_keys_and_values_of_another_call_are_refused(llama: Any) -> None:
    cache = DynamicCache()
    llama(torch.tensor([[1, 2, 3]]), past_key_values=cache)
    with pytest.raises(ValueError, match="past_key_values must be empty in watermarked decoding, got 3 positions"):
        ids = torch.tensor([[1, 2, 3, 4]])
        llama.generate(ids, past_key_values=cache, max_new_tokens=3, custom_generate=caw.decode)


def test_decode_is_not_called_alone(llama: Any) -> None:
    with pytest.raises(TypeError, match=r"decode is called by model.generate\(custom_generate=caw.decode\)"):
        caw.decode(llama, torch.tensor(PROMPTS[:1]))


def test_dropout_stays_on_as_in_transformers_and_is_named() -> None:
    model = copy.deepcopy(build("gpt2")).train()
    calls = []
    handle = model.transformer.drop.register_forward_hook(lambda module, given, out: calls.append(module.training))
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with pytest.warns(UserWarning, match=r"train mode.*dropout of transformer\.drop on.*call model\.eval\(\) first"):
        model.generate(**left_padded(), custom_generate=caw.decode, **options)
    handle.remove()
    assert calls and all(calls) and model.training
    ours, theirs = both(model.eval(), max_new_tokens=6)
    assert torch.equal(ours, theirs)
