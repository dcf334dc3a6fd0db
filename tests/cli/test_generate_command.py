"""`caw generate` on one prompt: the library's text on stdout; every option works and arrives."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cli.running import KEY, assert_refused, generate, run
from tiny import save_tiny, tiny_tokenizer
from transformers import GenerationConfig

import caw
from caw.cli.generate_command import sampling_settings

pytestmark = pytest.mark.usefixtures("environment")


def test_who_decides_about_ends(model: str, tmp_path: Path) -> None:
    for options, expected in (
        ((), False), (("--format", "transformers", "--seeding", "lefthash"), True), (("--mark-eos",), True),
        (("--format", "transformers", "--keep-eos"), False), (("--watermark", "synthid"), True),
    ):  # fmt: skip
        output = tmp_path / "out.jsonl"
        command = ("generate", "--model", model, "--prompt", "the sky", "--max-new-tokens", "2", "-o", str(output))
        result = run(*command, "--key", "5", *options)
        assert result.exit_code == 0, result.stderr
        assert json.loads(output.read_text())["settings"]["mark_eos"] is expected
        output.unlink()


def test_ends_are_a_marks_affair(model: str) -> None:
    refused = run("generate", "--model", model, "--prompt", "the sky", "--watermark", "none", "--keep-eos")
    assert refused.exit_code == 2
    assert "--mark-eos and --keep-eos require a watermark, got none" in refused.stderr


def test_prompt_in_text_out(model: str) -> None:
    result = generate(model, "--prompt", "the sky", "--watermark", "none", key=None)
    network, tokenizer = caw.load_model(model)
    [text] = caw.generate(network, tokenizer, ["the sky"], max_new_tokens=12).texts
    assert (result.exit_code, result.stdout, result.stderr) == (0, text + "\n", "")


def test_letters_that_stdout_lacks_are_escaped(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from caw.cli.generate_prompts import print_text

    monkeypatch.setattr(sys, "stdout", open(1, "w", encoding="ascii", closefd=False))  # noqa: SIM115
    print_text({"text": "blå"})
    assert capfdbinary.readouterr().out == b"bl\\xe5\n"


def test_prompt_from_stdin(model: str) -> None:
    assert generate(model, "--prompt", "-", stdin="the sky").stdout == generate(model, "--prompt", "the sky").stdout


def test_options_arrive(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def record(
        network: Any, tokenizer: Any, accepted: Any, watermark: Any, policy: Any, settings: Any, *, report: Any,
        detector: Any,
    ) -> Iterator[Any]:  # fmt: skip
        assert detector is None
        seen.update(asdict(settings), prompts=accepted.ids, watermark=watermark, policy=policy, report=report)
        yield from ()

    monkeypatch.setattr("caw.entrance.stream_results", record)
    result = run(
        "generate", "--model", model, "--prompt", "the sky", "--chat", "--max-new-tokens", "9", "--min-new-tokens", "2",
        "--sample", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "3",
        "--batch-size", "4", "--stop", "x", "--stop", "y", "--watermark", "unigram", "--delta", "1",
        "--policy", "logit-delta", "--gap", "3", "--strength", "0.5", "--target", "0.02", "--max-memory", "8GiB",
        "--compile", "--mark-eos", "--detectable-at", "0.1", "--max-attempts", "5",
        "--on-undetected", "drop", "--edits", "0.2",
        "--speculate", "7", "--min-p", "0.1", "--repetition-penalty", "1.2", "--presence-penalty", "0.3",
        "--frequency-penalty", "-0.4",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert callable(seen.pop("report"))
    prompt = tiny_tokenizer()("<user>the sky<assistant>")["input_ids"]  # the tiny model's chat template
    assert [list(p) for p in seen.pop("prompts")] == [prompt]
    assert seen.pop("watermark") == caw.Unigram(key=KEY, delta=1.0)
    assert seen.pop("policy") == caw.LogitDeltaThreshold(3.0, 0.5, 0.02)
    assert seen == {
        "max_new_tokens": 9, "min_new_tokens": 2, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
        "seed": 3, "branching": "tree", "batch_size": 4, "stop": ("x", "y"), "return_trace": False,
        "max_memory": "8GiB", "prefill_attention": "sdpa", "compile": True,
        "mark_eos": True, "chat": True, "slots": None, "backend": None, "detectable_at": 0.1, "max_attempts": 5,
        "best_of": 1, "select": "weakest", "on_undetected": "drop", "edits": 0.2, "guard": None,
        "speculate": 7, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4,
        "logit_bias": None,
    }  # fmt: skip


def test_speculate(model: str) -> None:
    text = [generate(model, "--prompt", "the sky", "--speculate", how).stdout for how in ("auto", "own", "none", "3")]
    assert len(set(text)) == 1 and text[0]
    refused = {"": "--speculate must be auto, own, none or a number, got ''", "small": "--speculate must be",
               "65": "speculate must be an integer in [1, 64]"}  # fmt: skip
    for wrong, said in refused.items():
        assert_refused(generate(model, "--prompt", "the sky", "--speculate", wrong), said)


@pytest.fixture
def suggesting(tmp_path: Path) -> str:
    folder = save_tiny(tmp_path / "model")
    config = GenerationConfig.from_pretrained(folder)
    config.update(do_sample=True, temperature=0.6, top_p=0.95, repetition_penalty=1.05)
    config.save_pretrained(folder)
    return str(folder)


def test_the_models_suggestion_is_applied_where_it_is_asked_for_and_said(
    suggesting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"do_sample": None, "temperature": 0.2, "top_p": None, "seed": 3}
    assert sampling_settings("plain", suggesting, given) == {"temperature": 0.2, "seed": 3}
    assert capsys.readouterr().err == ""
    found = sampling_settings("model", suggesting, given)
    assert found == {
        "do_sample": True, "temperature": 0.2, "top_p": 0.95, "repetition_penalty": 1.05, "seed": 3,
    }  # fmt: skip
    assert "do_sample=True, top_p=0.95, repetition_penalty=1.05" in capsys.readouterr().err


def test_another_source_is_refused() -> None:
    with pytest.raises(ValueError, match="--sampling must be one of plain, model, got 'mine'"):
        sampling_settings("mine", "", {})
