"""`caw generate` on one prompt: the library's text on stdout; every option works and arrives."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), False),
        (("--format", "transformers", "--seeding", "lefthash"), True),
        (("--mark-eos",), True),
        (("--format", "transformers", "--keep-eos"), False),
        (("--watermark", "synthid"), True),
    ],
)
def test_who_decides_about_ends(model: str, tmp_path: Path, options: tuple[str, ...], expected: bool) -> None:
    output = tmp_path / "out.jsonl"
    command = ("generate", "--model", model, "--prompt", "the sky", "--max-new-tokens", "2", "-o", str(output))
    result = run(*command, "--key", "5", *options)
    assert result.exit_code == 0, result.stderr
    assert json.loads(output.read_text())["settings"]["mark_eos"] is expected


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


@pytest.mark.parametrize(
    "options",
    [
        ["--watermark", "unigram", "--delta", "6", "--policy", "entropy", "--nats", "1"],
        ["--watermark", "exp", "--top-k-exp", "5", "--policy", "logit-delta", "--gap", "2", "--strength", "0.5"],
        ["--watermark", "kgw", "--seeding", "selfhash", "--sample", "--seed", "3", "--top-p", "0.9", "--top-k", "50"],
        ["--branching", "sequential", "--batch-size", "1", "--dtype", "bfloat16", "--device", "cpu", "--threads", "1"],
        ["--chat", "--stop", "the", "--stop", "sky", "--min-new-tokens", "2", "--temperature", "0.7", "--sample"],
    ],
)
def test_every_option_works(model: str, options: list[str]) -> None:
    result = generate(model, "--prompt", "the sky", *options)
    assert result.exit_code == 0, result.stderr


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
        "--sample", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "3", "--branching", "batch",
        "--batch-size", "4", "--stop", "x", "--stop", "y", "--trace", "--watermark", "unigram", "--delta", "1",
        "--policy", "logit-delta", "--gap", "3", "--strength", "0.5", "--target", "0.02", "--max-memory", "8GiB",
        "--prefill-attention", "eager", "--compile", "--mark-eos", "--detectable-at", "0.1", "--max-attempts", "5",
        "--best-of", "2", "--select", "likeliest", "--on-undetected", "drop", "--edits", "0.2",
        "--speculate", "7", "--min-p", "0.1", "--repetition-penalty", "1.2", "--presence-penalty", "0.3",
        "--frequency-penalty", "-0.4", "--logit-bias", "5=-1.5", "--logit-bias", "7=2",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert callable(seen.pop("report"))
    prompt = tiny_tokenizer()("<user>the sky<assistant>")["input_ids"]  # the tiny model's chat template
    assert [list(p) for p in seen.pop("prompts")] == [prompt]
    assert seen.pop("watermark") == caw.Unigram(key=KEY, delta=1.0)
    assert seen.pop("policy") == caw.LogitDeltaThreshold(3.0, 0.5, 0.02)
    assert seen == {
        "max_new_tokens": 9, "min_new_tokens": 2, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
        "seed": 3, "branching": "batch", "batch_size": 4, "stop": ("x", "y"), "return_trace": True,
        "max_memory": "8GiB", "prefill_attention": "eager", "compile": True,
        "mark_eos": True, "chat": True, "slots": None, "backend": None, "detectable_at": 0.1, "max_attempts": 5,
        "best_of": 2, "select": "likeliest", "on_undetected": "drop", "edits": 0.2, "guard": None,
        "speculate": 7, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": -0.4,
        "logit_bias": ((5, -1.5), (7, 2.0)),
    }  # fmt: skip


def test_speculate(model: str) -> None:
    """The texts stay the same."""
    text = [generate(model, "--prompt", "the sky", "--speculate", how).stdout for how in ("auto", "own", "none", "3")]
    assert len(set(text)) == 1 and text[0]
    refused = {"": "--speculate must be auto, own, none or a number, got ''", "small": "--speculate must be",
               "65": "speculate must be an integer in [1, 64]"}  # fmt: skip
    for wrong, said in refused.items():
        assert_refused(generate(model, "--prompt", "the sky", "--speculate", wrong), said)


@pytest.fixture
def suggesting(tmp_path: Path) -> str:
    """A model whose publisher suggests how to sample it."""
    folder = save_tiny(tmp_path / "model")
    config = GenerationConfig.from_pretrained(folder)
    config.update(do_sample=True, temperature=0.6, top_p=0.95, repetition_penalty=1.05)
    config.save_pretrained(folder)
    return str(folder)


def test_the_models_suggestion_is_applied_where_it_is_asked_for_and_said(
    suggesting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {"do_sample": None, "temperature": 0.2, "top_p": None, "seed": 3}
    assert sampling_settings("plain", suggesting, given, None) == {"temperature": 0.2, "seed": 3, "logit_bias": None}
    assert capsys.readouterr().err == ""
    found = sampling_settings("model", suggesting, given, None)
    assert found == {
        "do_sample": True, "temperature": 0.2, "top_p": 0.95, "repetition_penalty": 1.05, "seed": 3, "logit_bias": None,
    }  # fmt: skip
    assert "do_sample=True, top_p=0.95, repetition_penalty=1.05" in capsys.readouterr().err


def test_biases() -> None:
    assert sampling_settings("plain", "", {}, ["42=-1.5", "7=3"]) == {"logit_bias": {42: -1.5, 7: 3.0}}
    for wrong in ("42", "a=1", "42=x", "-1=3", "=", "42="):
        with pytest.raises(ValueError, match="--logit-bias must be ID=NUMBER, got"):
            sampling_settings("plain", "", {}, [wrong])


def test_another_source_is_refused() -> None:
    with pytest.raises(ValueError, match="--sampling must be one of plain, model, got 'mine'"):
        sampling_settings("mine", "", {}, None)
