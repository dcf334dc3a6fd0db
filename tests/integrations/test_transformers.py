"""Inside transformers' own generate: the tokens of `caw.generate`, or an error, never an unmarked text."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding.architectures import VOCAB, build, prompt, spread_evaluator, tokenizer
from generating import Recorder
from transformers import GenerationConfig, StopStringCriteria

import caw
from caw.integrations.transformers import FOLDER, LogitsProcessor
from caw.policies import Target

NEW = 12
PROMPTS = [prompt(9), prompt(3, 2)]
MARKS = {
    "kgw": caw.KGW(key=3),
    "exp": caw.EXP(key=3, top_k=20),
    "unigram": caw.Unigram(key=3),
    "synthid": caw.SynthID(key=3),
    "reads the prompt": caw.KGW(key=15485863, format="transformers"),
}
DRAWN = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 7}
SETTINGS: dict[str, dict[str, Any]] = {"greedy": {}, "drawn": DRAWN}
TARGET = Target(0.01)


def padded(prompts: list[list[int]] = PROMPTS) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


def processed(model: Any, watermark: Any, policy: Any = None, own: dict[str, Any] | None = None, **options: Any) -> Any:
    rows = caw.RowSettings(max_new_tokens=NEW, **(own or {}))
    inputs = padded()
    processor = LogitsProcessor(model, watermark, policy, settings=rows, attention_mask=inputs["attention_mask"])
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **options}
    made = model.generate(**inputs, logits_processor=[processor], **options)[:, inputs["input_ids"].shape[1] :]
    return [row[: row.index(2) + 1] if 2 in row else row for row in made.tolist()]


def by_caw(model: Any, watermark: Any, policy: Any = None, **own: Any) -> list[list[int]]:
    return caw.generate(model, tokenizer(), PROMPTS, watermark=watermark, policy=policy, max_new_tokens=NEW,
                        **own).sequences  # fmt: skip


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("name", MARKS)
def test_the_tokens_of_caw_generate(llama: Any, name: str, sampling: str) -> None:
    expected = by_caw(llama, MARKS[name], **SETTINGS[sampling])
    drawing = {"do_sample": True, "temperature": 0.3, "top_k": 5, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.5}
    for options in ({}, drawing, {"do_sample": True, "temperature": 1e-6}):
        assert processed(llama, MARKS[name], own=SETTINGS[sampling], **options) == expected
    assert expected != by_caw(llama, None, **SETTINGS[sampling])


def test_a_target_and_rows_of_their_own(llama: Any) -> None:
    policy = caw.FixedStrength(1.0, TARGET)
    assert processed(llama, MARKS["kgw"], policy) == by_caw(llama, MARKS["kgw"], policy)
    rows = [caw.RowSettings(max_new_tokens=NEW, **DRAWN), caw.RowSettings(max_new_tokens=NEW, key=9)]
    processor = LogitsProcessor(llama, MARKS["kgw"], settings=rows, attention_mask=padded()["attention_mask"])
    made = llama.generate(**padded(), logits_processor=[processor], max_new_tokens=NEW)[:, 9:].tolist()
    expected = [by_caw(llama, MARKS["kgw"], **DRAWN)[0], by_caw(llama, caw.KGW(key=9))[1]]
    assert [row[: len(ids)] for row, ids in zip(made, expected, strict=True)] == expected


@pytest.mark.parametrize("window", [(0, 0), (1, 0)])
def test_an_evaluator_of_what_an_engine_knows(llama: Any, window: tuple[int, int]) -> None:
    """What follows the original token is not known here; nor is what comes before the first, but of one-token prompts
    there is none."""
    policy = caw.CapacityPolicy(spread_evaluator(llama, *window), 0.8, 1.5)
    processor = LogitsProcessor(llama, MARKS["kgw"], policy, settings=caw.RowSettings(max_new_tokens=NEW))
    made = llama.generate(torch.tensor([[5]]), logits_processor=[processor], max_new_tokens=NEW, do_sample=False)
    out = caw.generate(llama, tokenizer(), [[5]], watermark=MARKS["kgw"], policy=policy, max_new_tokens=NEW,
                       return_trace=True)  # fmt: skip
    expected = out.sequences[0]
    assert made[0, 1 : 1 + len(expected)].tolist() == expected
    assert 0 < sum(choice > 0 for choice in out.trace[0].choice) < len(expected)
    if window == (0, 0):
        assert processed(llama, MARKS["kgw"], policy) == by_caw(llama, MARKS["kgw"], policy)
    with pytest.raises(ValueError, match="must not read the next position"):
        processed(llama, MARKS["kgw"], caw.CapacityPolicy(spread_evaluator(llama)))


def test_a_recommended_whose_evaluator_reads_the_tokenizer(llama: Any) -> None:
    mark, words, prompt_ids = caw.Recommended(3, evaluator="universal-window00"), tokenizer(), torch.tensor([[5]])
    given: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False}
    processor = LogitsProcessor(llama, mark, settings=caw.RowSettings(max_new_tokens=NEW), tokenizer=words)
    made = llama.generate(prompt_ids, logits_processor=[processor], **given)
    [expected] = caw.generate(llama, words, [[5]], watermark=mark, max_new_tokens=NEW).sequences
    decoded = llama.generate(prompt_ids, custom_generate=caw.decode, watermark=mark, caw_tokenizer=words, **given)
    for ids in (made, decoded):
        assert ids[0, 1 : 1 + len(expected)].tolist() == expected
    assert expected != caw.generate(llama, words, [[5]], max_new_tokens=NEW).sequences[0]
    with pytest.raises(ValueError, match=r"needs the token classes .* pass the model's own as tokenizer="):
        llama.generate(prompt_ids, logits_processor=[LogitsProcessor(llama, mark)], **given)
    with pytest.raises(TypeError, match=r"reads token classes .*\(to caw\.decode as caw_tokenizer="):
        llama.generate(prompt_ids, custom_generate=caw.decode, watermark=mark, **given)


def test_sampling_that_the_processor_does_not_see_is_named(llama: Any, recwarn: pytest.WarningsRecorder) -> None:
    """Chat models' own configs sample: their texts became greedy, and nothing said so."""
    sampling = copy.deepcopy(llama.generation_config)
    sampling.do_sample = True
    LogitsProcessor(llama, MARKS["kgw"])
    for settings in (caw.RowSettings(), caw.RowSettings(do_sample=True)):
        LogitsProcessor(llama, MARKS["kgw"], generation_config=sampling, settings=settings)
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"generation config samples, .* greedy; give settings=caw.RowSettings\(do"):
        LogitsProcessor(llama, MARKS["kgw"], generation_config=sampling)
    inputs = padded()
    for options, asked in (({"do_sample": True}, True), ({"do_sample": False}, False)):
        recwarn.clear()
        processor = LogitsProcessor(llama, MARKS["kgw"], attention_mask=inputs["attention_mask"])
        llama.generate(**inputs, logits_processor=[processor], max_new_tokens=2, **options)
        assert any("this call of generate samples" in str(each.message) for each in recwarn.list) == asked


def test_rows_that_end_early(llama: Any) -> None:
    expected = by_caw(llama, MARKS["kgw"])
    config = copy.deepcopy(llama.generation_config)
    config.eos_token_id, config.pad_token_id = [expected[0][3]], 0
    inputs = padded()
    ends = {"generation_config": config, "attention_mask": inputs["attention_mask"]}
    processor = LogitsProcessor(llama, MARKS["kgw"], mark_eos=True, **ends)
    made = llama.generate(inputs["input_ids"], **ends, logits_processor=[processor], max_new_tokens=NEW)[:, 9:].tolist()
    ended = caw.generate(llama, tokenizer(), PROMPTS[:1], watermark=MARKS["kgw"], max_new_tokens=NEW).sequences[0][:4]
    assert made[0] == [*ended, *[0] * (NEW - 4)] and made[1] == expected[1]
    words = [tokenizer().decode([expected[0][2]])]
    stopped = processed(llama, MARKS["kgw"], stopping_criteria=[StopStringCriteria(tokenizer(), words)])
    assert stopped[0][:3] == expected[0][:3] and set(stopped[0][3:]) == {0} and stopped[1] == expected[1]


def test_processors_of_generate_come_before(llama: Any) -> None:
    banned = [[token] for token in by_caw(llama, MARKS["kgw"])[0]]
    made = processed(llama, MARKS["kgw"], bad_words_ids=banned)
    assert not {token for [token] in banned} & {token for row in made for token in row}


@pytest.mark.parametrize("asked", [
    {"num_beams": 2}, {"penalty_alpha": 0.6, "top_k": 4}, {"dola_layers": "low"}, {"prompt_lookup_num_tokens": 3},
])  # fmt: skip
def test_other_decoding_is_refused(llama: Any, asked: dict[str, Any]) -> None:
    config = GenerationConfig(**asked)
    with pytest.raises(ValueError, match=f"{next(iter(asked))} must be off beside a watermark's processor"):
        LogitsProcessor(llama, MARKS["kgw"], generation_config=config)


def test_beams_that_no_config_tells_of_are_the_marked_text_or_an_error(llama: Any) -> None:
    for own in SETTINGS.values():
        assert processed(llama, MARKS["kgw"], own=own, num_beams=2) == by_caw(llama, MARKS["kgw"], **own)
    try:
        made = processed(llama, MARKS["kgw"], own=DRAWN, num_beams=2, do_sample=True)
    except (ValueError, RuntimeError):
        return
    assert made == by_caw(llama, MARKS["kgw"], **DRAWN)


class Forcing(torch.nn.Module):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores[:, 77] = 1e31
        return scores


def test_texts_that_go_on_otherwise_are_an_error(llama: Any) -> None:
    inputs, options = padded(), {"max_new_tokens": NEW, "pad_token_id": 0}

    def made() -> LogitsProcessor:
        return LogitsProcessor(llama, MARKS["kgw"], attention_mask=inputs["attention_mask"])

    with pytest.raises(ValueError, match="row 0 must go on with the token chosen for it, got another; leave out beam"):
        llama.generate(**inputs, logits_processor=[made(), Forcing()], do_sample=False, **options)
    used = made()
    llama.generate(**inputs, logits_processor=[used], do_sample=False, **options)
    with pytest.raises(ValueError, match=r"one call of generate .* give each call a processor of its own"):
        llama.generate(**inputs, logits_processor=[used], do_sample=False, **options)
    one = {name: value[:1] for name, value in inputs.items()}
    with pytest.raises(ValueError, match=r"leave out beam search|go on with the token chosen"):
        llama.generate(
            **one, logits_processor=[LogitsProcessor(llama, MARKS["kgw"])], assistant_model=build("qwen2"), **options
        )
    short = LogitsProcessor(llama, MARKS["kgw"], attention_mask=inputs["attention_mask"][:, 1:])
    with pytest.raises(ValueError, match="attention_mask must be the one that generate gets"):
        llama.generate(**inputs, logits_processor=[short], **options)


def test_scores(llama: Any) -> None:
    scores = torch.randn(2, VOCAB)
    kept = scores.clone()
    marked = LogitsProcessor(llama, MARKS["exp"])(padded()["input_ids"], scores)
    assert torch.equal(scores, kept) and (marked == scores).sum(1).tolist() == [1, 1]
    assert marked.isneginf().sum(1).tolist() == [VOCAB - 1] * 2


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return {"custom_generate": FOLDER, "trust_remote_code": True, "max_new_tokens": NEW, "pad_token_id": 0}


def test_the_folder_is_caw_decode(llama: Any, options: dict[str, Any]) -> None:
    made = llama.generate(**padded(), **options, watermark=MARKS["exp"], do_sample=True, temperature=0.8, top_k=0,
                          seed=7)  # fmt: skip
    expected = by_caw(llama, MARKS["exp"], do_sample=True, temperature=0.8, seed=7)
    assert [row[: len(ids)] for row, ids in zip(made[:, 9:].tolist(), expected, strict=True)] == expected


def test_the_folder_serves_what_transformers_keeps_from_functions(llama: Any, options: dict[str, Any]) -> None:
    expected = by_caw(llama, MARKS["kgw"])[0]
    one, recorder = {"input_ids": torch.tensor(PROMPTS[:1])}, Recorder()
    word = tokenizer().decode([expected[4]])
    made = llama.generate(**one, **options, watermark=MARKS["kgw"], streamer=recorder, stop_strings=[word],
                          tokenizer=tokenizer())[0, 9:].tolist()  # fmt: skip
    assert made == expected[: expected.index(expected[4]) + 1]
    assert recorder.given[1:] == [[token] for token in made] and recorder.ended == 1
    config = copy.deepcopy(llama.generation_config)
    config.stop_strings = [word]
    again = llama.generate(
        **one, **options, watermark=MARKS["kgw"], tokenizer=tokenizer(), generation_config=config, do_sample=False
    )
    assert again[0, 9:].tolist() == made and config.stop_strings == [word]


def test_what_the_folder_refuses(llama: Any, options: dict[str, Any]) -> None:
    for asked, said in (
        ({"stop_strings": ["a"]}, "stop_strings need tokenizer=, the model's"),
        ({"assistant_model": 1}, "assistant_model must be None"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha must be off in watermarked decoding, got 0.6"),
        ({"dola_layers": "low"}, "dola_layers must be off in watermarked decoding, got 'low'"),
        ({"num_beams": 3}, "num_beams must be 1"),
        ({"thtea": 0.5}, "thtea"),
    ):
        recorder = Recorder()
        with pytest.raises(ValueError, match=said):
            llama.generate(torch.tensor(PROMPTS[:1]), **options, watermark=MARKS["kgw"], streamer=recorder, **asked)
        assert recorder.ended >= 1
