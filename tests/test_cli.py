"""The command line on a tiny random model: what it writes, what it refuses and how, and that no key leaves it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import save_tiny, tiny_tokenizer
from typer.testing import CliRunner

import caw
from caw.cli import app
from caw.cli.options import POLICIES, WATERMARKS, parse_key
from caw.evaluator import Evaluator, FeatureSpec
from caw.generate import GenerationResult
from caw.models import load_tokenizer

KEY = "correct horse battery staple"
COMMANDS = ("demo", "generate", "detect", "train-evaluator", "detection-weights", "label", "tune")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("evaluator") / "tiny.safetensors"
    Evaluator(FeatureSpec(), hidden=8).save(path)
    return str(path)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A wide terminal without colours; no key from outside."""
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    for name in ("CAW_KEY", "CAW_TRACEBACK", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield


def run(*arguments: str, key: str | None = KEY, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"CAW_KEY": key}, input=stdin)


def generate(model: str, *arguments: str, **settings: Any) -> Any:
    return run("generate", "--model", model, "--max-new-tokens", "12", *arguments, **settings)


def write_prompts(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"the sky {i}"}) + "\n" for i in range(count)))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


# help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples_and_no_key(command: str) -> None:
    result = run(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout and f"caw {command}".strip() in result.stdout
    assert KEY not in result.output


def test_help_explains_exit_codes() -> None:
    # line breaks and panels differ with the terminal
    assert "0 it ran, 1 some lines of --input were bad, 2 bad usage" in " ".join(run("detect", "--help").stdout.split())
    assert "130 interrupted" in " ".join(run("--help").stdout.split())


def test_help_shows_brackets_and_braces() -> None:
    """Text in brackets is not taken for markup."""
    shown = " ".join(run("generate", "--help").stdout.split())
    assert "[0.25]" in shown and '{"prompt": ..., "id": ...}' in shown


def test_version() -> None:
    assert run("--version").stdout.strip() == f"caw {caw.__version__}"


# generate --------------------------------------------------------------------------------------------------------


def test_prompt_in_text_out(model: str) -> None:
    result = generate(model, "--prompt", "the sky", "--watermark", "none", key=None)
    network, tokenizer = caw.load_model(model)
    [text] = caw.generate(network, tokenizer, ["the sky"], max_new_tokens=12).texts
    assert (result.exit_code, result.stdout, result.stderr) == (0, text + "\n", "")


def test_prompt_from_stdin(model: str) -> None:
    assert generate(model, "--prompt", "-", stdin="the sky").stdout == generate(model, "--prompt", "the sky").stdout


def test_lines_hold_what_made_them_and_are_those_of_the_library(model: str, evaluator: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 3), tmp_path / "out.jsonl"
    result = generate(
        model, "--input", str(source), "--output", str(out), "--policy", "capacity", "--evaluator", evaluator,
        "--theta", "0.6", "--beta", "2", "--delta", "3", "--gamma", "0.5", "--with-prompt", "--trace",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "")
    lines = sorted(read(out), key=lambda line: line["id"])
    network, tokenizer = caw.load_model(model)
    watermark = caw.KGW(key=KEY, gamma=0.5, delta=3.0)
    expected = caw.generate(
        network, tokenizer, [f"the sky {i}" for i in range(3)], watermark=watermark, max_new_tokens=12,
        policy=caw.CapacityPolicy(evaluator, theta=0.6, beta=2.0),
    )  # fmt: skip
    assert [line["tokens"] for line in lines] == expected.sequences
    assert [line["text"] for line in lines] == expected.texts
    assert [line["finish_reason"] for line in lines] == expected.finish_reasons
    first = lines[0]
    assert (first["id"], first["prompt"], first["key_id"]) == (1, "the sky 0", watermark.key_id)
    assert first["policy"] == {"name": "capacity", "evaluator": evaluator, "theta": 0.6, "beta": 2.0}
    assert first["watermark"] == {
        "name": "kgw", "gamma": 0.5, "delta": 3.0, "seeding": "lefthash", "context_width": 1, "format": "native",
    }  # fmt: skip
    assert first["settings"]["model"] == model and first["settings"]["sampling"] is None
    assert expected.trace is not None and first["trace"]["choice"] == expected.trace[0].choice


def test_jsonl_through_pipes(model: str) -> None:
    result = generate(model, "--input", "-", stdin='{"id": "a", "prompt": "the sky"}\n')
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["a"]


@pytest.mark.parametrize(
    "options",
    [
        ["--watermark", "unigram", "--delta", "6", "--policy", "entropy", "--nats", "1"],
        ["--watermark", "exp", "--top-k-exp", "5", "--policy", "logit-delta", "--gap", "2", "--strength", "0.5"],
        ["--watermark", "exp", "--strength-exp", "scale", "--context-width", "2"],
        ["--watermark", "kgw", "--seeding", "selfhash", "--sample", "--seed", "3", "--top-p", "0.9", "--top-k", "50"],
        ["--max-memory", "500MB", "--prefill-attention", "eager"],
        ["--branching", "sequential", "--batch-size", "1", "--dtype", "bfloat16", "--device", "cpu", "--threads", "1"],
        ["--chat", "--stop", "the", "--stop", "sky", "--min-new-tokens", "2", "--temperature", "0.7", "--sample"],
    ],
)
def test_every_option_works(model: str, options: list[str]) -> None:
    result = generate(model, "--prompt", "the sky", *options)
    assert result.exit_code == 0, result.stderr


def test_options_arrive(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each at another value than the default, so that a forgotten one shows."""
    from caw.cli import generate_command

    seen: dict[str, Any] = {}

    def record(network: Any, tokenizer: Any, prompts: Any, **options: Any) -> Iterator[Any]:
        seen.update(options, prompts=prompts)
        yield from ()

    monkeypatch.setattr(generate_command, "iter_generate", record)
    result = run(
        "generate", "--model", model, "--prompt", "the sky", "--chat", "--max-new-tokens", "9", "--min-new-tokens", "2",
        "--sample", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "3", "--branching", "batch",
        "--batch-size", "4", "--stop", "x", "--stop", "y", "--trace", "--watermark", "unigram", "--delta", "1",
        "--policy", "logit-delta", "--gap", "3", "--strength", "0.5", "--max-memory", "8GiB",
        "--prefill-attention", "eager", "--compile",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert callable(seen.pop("report"))
    prompt = tiny_tokenizer()("<user>the sky<assistant>")["input_ids"]  # the tiny model's chat template
    assert [list(p) for p in seen.pop("prompts")] == [prompt]
    assert seen.pop("watermark") == caw.Unigram(key=KEY, delta=1.0)
    assert seen.pop("policy") == caw.LogitDeltaThreshold(3.0, 0.5)
    assert seen == {
        "max_new_tokens": 9, "min_new_tokens": 2, "do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9,
        "seed": 3, "branching": "batch", "batch_size": 4, "stop": ("x", "y"), "return_trace": True,
        "max_memory": "8GiB", "prefill_attention": "eager", "compile": True,
    }  # fmt: skip


def test_bad_lines_are_named_and_the_others_done(model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    long = json.dumps({"prompt": "sky " * 600})
    source.write_text(
        f'{{"prompt": "the sky"}}\n{{broken\n{{"text": "x"}}\n{{"prompt": ""}}\n{long}\n{{"prompt": "b"}}\n'
    )
    result = generate(model, "--input", str(source), "--output", str(out))
    assert result.exit_code == 1
    assert sorted(line["id"] for line in read(out)) == [1, 6]
    complaints = result.stderr.splitlines()
    assert [c.split(": ")[1] for c in complaints] == [f"{source}, line {number}" for number in (2, 3, 4, 5)]
    assert "at least one token" in complaints[2] and "512 positions" in complaints[3]
    assert not any("prompt 0" in c for c in complaints)


def test_texts_that_break_off_are_named(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result with an error is a bad line, not an output line; of a single prompt it is the error."""
    from caw.cli import generate_command

    def broken(network: Any, tokenizer: Any, prompts: Any, **options: Any) -> Iterator[GenerationResult]:
        for index in range(len(prompts)):
            error = f"prompt {index}: expected finite logits" if index == 0 else ""
            yield GenerationResult(index, "x", [1], "error" if error else "length", None, error)

    monkeypatch.setattr(generate_command, "iter_generate", broken)
    source = tmp_path / "prompts.jsonl"
    source.write_text('{broken\n{"prompt": "a"}\n{"prompt": "b"}\n')
    result = generate(model, "--input", str(source))
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [3]
    assert result.stderr.splitlines()[1:] == [f"caw: {source}, line 2: expected finite logits"]
    alone = generate(model, "--prompt", "a")
    assert alone.exit_code == 2 and "expected finite logits" in alone.stderr and "prompt 0" not in alone.stderr


def test_a_prompt_that_leaves_little_room_is_warned_about(model: str, tmp_path: Path) -> None:
    source = tmp_path / "prompts.jsonl"
    count = 508
    tokenizer = tiny_tokenizer()
    prompt = tokenizer.decode(tokenizer("the sky " * 600)["input_ids"][:count])
    source.write_text(json.dumps({"prompt": prompt}) + "\n")
    result = generate(model, "--input", str(source))
    assert result.exit_code == 0
    assert re.findall(r"line 1: warning: the prompt has \d+ tokens", result.stderr) and result.stderr.count("\n") == 1
    assert len(json.loads(result.stdout)["tokens"]) <= 12


def test_no_lines_no_output(model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    source.touch()
    assert generate(model, "--input", str(source), "--output", str(out)).exit_code == 0
    assert out.read_bytes() == b""


def test_resume_continues_after_a_line_cut_short(model: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 5), tmp_path / "out.jsonl"
    arguments = ["--input", str(source), "--output", str(out)]
    assert generate(model, *arguments).exit_code == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert generate(model, *arguments).exit_code == 2  # never over an existing file
    result = generate(model, *arguments, "--resume")
    assert result.exit_code == 0
    assert out.read_bytes().startswith(b"".join(lines[:2]))
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())
    again = generate(model, *arguments, "--resume")
    assert again.exit_code == 0 and "nothing left to do" in again.stderr
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_resume_with_other_settings_is_refused(model: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 2), tmp_path / "out.jsonl"
    arguments = ["--input", str(source), "--output", str(out)]
    assert generate(model, *arguments).exit_code == 0
    before = out.read_bytes()
    for change in (["--delta", "1"], ["--sample"], ["--watermark", "exp"], ["--stop", "x"]):
        assert_refused(generate(model, *arguments, "--resume", *change), "resume with the same options")
    assert_refused(generate(model, *arguments, "--resume", key="another"), "key_id")
    assert out.read_bytes() == before


def test_ctrl_c_keeps_what_is_written(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.cli import generate_command

    real = generate_command.iter_generate

    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        results = real(*args, **kwargs)
        yield next(results)
        raise KeyboardInterrupt

    source, out = write_prompts(tmp_path / "prompts.jsonl", 4), tmp_path / "out.jsonl"
    arguments = ["--input", str(source), "--output", str(out)]
    monkeypatch.setattr(generate_command, "iter_generate", interrupted)
    result = generate(model, *arguments)
    assert result.exit_code == 130 and "1 of 4 texts are written" in result.stderr
    assert len(read(out)) == 1
    monkeypatch.undo()
    assert generate(model, *arguments, "--resume").exit_code == 0
    assert sorted(line["id"] for line in read(out)) == [1, 2, 3, 4]


# detect ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marked(model: str) -> str:
    network, tokenizer = caw.load_model(model)
    [text] = caw.generate(network, tokenizer, ["the sky"], watermark=caw.KGW(key=KEY), max_new_tokens=80).texts
    return text


def detect_json(*arguments: str, **settings: Any) -> list[dict[str, Any]]:
    result = run("detect", "--json", *arguments, **settings)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_detect_agrees_with_the_library(model: str, marked: str, tmp_path: Path) -> None:
    expected = caw.detect(marked, load_tokenizer(model), caw.KGW(key=KEY), fpr=1e-4)
    assert expected.is_watermarked
    [line] = detect_json("--text", marked, "--tokenizer", model, "--fpr", "1e-4")
    assert (line["p_value"], line["z_score"]) == (expected.p_value, expected.z_score)
    assert line["is_watermarked"] is True and line["key_id"] == caw.KGW(key=KEY).key_id and "token_ids" not in line
    file = tmp_path / "text.txt"
    file.write_text(marked, encoding="utf-8", newline="")
    assert detect_json(str(file), "--tokenizer", model)[0]["p_value"] == expected.p_value
    [line] = detect_json("-", "--tokenizer", model, "--scores", stdin=marked.encode())
    assert line["token_scores"] == list(expected.token_scores) and line["token_ids"] == list(expected.token_ids)


def test_detect_lines_texts_and_ids(model: str, marked: str, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    ids = tiny_tokenizer()(marked)["input_ids"]
    source.write_text(
        "".join(json.dumps(x) + "\n" for x in [{"text": marked, "id": "m", "tokens": ids}, {"text": "the sky"}])
    )
    lines = detect_json("--input", str(source), "--tokenizer", model)
    assert [(line["id"], line["is_watermarked"]) for line in lines] == [("m", True), (2, False)]
    result = run("detect", "--input", str(source), "--field", "tokens", "--json")  # ids need no tokenizer
    assert result.exit_code == 1 and "line 2" in result.stderr
    assert json.loads(result.stdout)["p_value"] == lines[0]["p_value"]


def test_detect_for_people(model: str, marked: str, tmp_path: Path) -> None:
    result = run("detect", "--text", marked, "--tokenizer", model)
    assert result.exit_code == 0 and "watermarked at a false-positive rate of 0.001" in result.stdout
    result = run("detect", "--text", "", "--tokenizer", model)
    assert result.exit_code == 0 and "p = 1" in result.stdout
    source = tmp_path / "texts.jsonl"
    source.write_text(json.dumps({"text": marked}) + "\n" + json.dumps({"text": "[bold]the sky"}) + "\n")
    result = run("detect", "--input", str(source), "--tokenizer", model)
    assert result.exit_code == 0 and "1 of 2 texts are watermarked" in result.stdout


def test_detect_bad_lines(model: str, tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text(
        '{"text": "the sky"}\n{"text": 3}\n{"t": "x"}\n[]\n{"text": [1, -5]}\n{"text": [1, [2]]}\n{"text": [1, 2]}\n'
    )
    result = run("detect", "--input", str(source), "--tokenizer", model, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 7]
    assert [re.search(r"line (\d)", c).group(1) for c in result.stderr.splitlines()] == ["2", "3", "4", "5", "6"]  # type: ignore[union-attr]


def test_detect_ids_that_are_none(tmp_path: Path) -> None:
    source = tmp_path / "texts.jsonl"
    source.write_text('{"text": [1, -5]}\n')
    result = run("detect", "--input", str(source))
    assert result.exit_code == 1 and result.stderr.startswith("caw: line 1: ") and result.stdout == ""


@pytest.mark.slow
def test_detection_dequantises_no_model(demo_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model's tokenizer comes straight from its .gguf file while no dequantised copy is there."""
    monkeypatch.setenv("CAW_CACHE", str(tmp_path / "cache"))
    tokenizer = load_tokenizer("smollm2-135m")
    assert not (tmp_path / "cache").exists()
    assert tokenizer.get_vocab() == demo_tokenizer.get_vocab()
    text = "Hello wörld 12345  <|im_end|>\n\n tabs\t"
    assert tokenizer(text)["input_ids"] == demo_tokenizer(text)["input_ids"]


def test_detection_loads_no_model(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    assert run("detect", "--text", "the sky", "--tokenizer", model).exit_code == 0


# train-evaluator -------------------------------------------------------------------------------------------------


def test_train_evaluator(model: str, tmp_path: Path) -> None:
    """From labels to weights that `generate` takes; every number of these sums is key."""
    (tmp_path / "toy").mkdir()
    rows, labels = [], []
    for i in range(40):
        answer = f"so {i} is small\n#### {2 * i}"
        at = answer.index(str(i))
        rows.append({"question": f"{i} plus {i}?", "answer": answer})
        labels.append({"dataset": "toy", "split": "train", "index": i, "spans": [[at, at + len(str(i))]]})
    for name, lines in (("toy/train.jsonl", rows), ("labels.jsonl", labels)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    weights = tmp_path / "tiny.safetensors"
    result = run(
        "train-evaluator", "--model", model, "--labels", str(tmp_path / "labels.jsonl"), "--data-dir", str(tmp_path),
        "--output", str(weights), "--hidden", "8", "--max-epochs", "2", "--transform", "gap",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    written = json.loads(weights.with_suffix(".json").read_text())
    assert written["features"]["transform"] == "gap" and written["model"] == model
    assert f"{written['metrics']['evaluators']['capacity']['auroc']:.3f}" in result.stdout
    result = generate(model, "--prompt", "the sky", "--policy", "capacity", "--evaluator", str(weights))
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"--labels": "none.jsonl"}, "none.jsonl"),
        ({"--output": "weights.bin"}, ".safetensors"),
        ({"--output": "none/weights.safetensors"}, "folder"),
        ({"--next": "9"}, "window"),
        ({"--transform": "sqrt"}, "transform"),
        ({"--hidden": "0"}, "hidden"),
        ({"--prefix-file": "none.txt"}, "none.txt"),
    ],
)
def test_bad_train_evaluator(
    change: dict[str, str], expected: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.jsonl").touch()
    options = {"--model": model, "--labels": "labels.jsonl", "--data-dir": ".", "--output": "w.safetensors", **change}
    assert_refused(run("train-evaluator", *(part for pair in options.items() for part in pair)), expected)


# bad usage -------------------------------------------------------------------------------------------------------


def assert_refused(result: Any, expected: str) -> None:
    """Exit code 2, one line on stderr, no traceback, no key."""
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("caw: ")
    assert expected in result.stderr
    assert "Traceback" not in result.output and KEY not in result.output


BAD_GENERATE = {
    "no prompt": ([], "one of --prompt and --input"),
    "two sources": (["--prompt", "x", "--input", "y"], "got both"),
    "empty prompt": (["--prompt", ""], "at least one token"),
    "long prompt": (["--prompt", "sky " * 600], "512 positions"),
    "no such file": (["--input", "none.jsonl"], "none.jsonl"),
    "resume nothing": (["--prompt", "x", "--resume"], "--output"),
    "no folder": (["--prompt", "x", "--output", "none/out.jsonl"], "folder"),
    "watermark": (["--prompt", "x", "--watermark", "red"], "kgw, unigram, exp, synthid, none"),
    "policy": (["--prompt", "x", "--policy", "luck"], "fixed, entropy"),
    "gamma": (["--prompt", "x", "--gamma", "1.5"], "gamma must be"),
    "gamma nan": (["--prompt", "x", "--gamma", "nan"], "gamma must be"),
    "delta": (["--prompt", "x", "--delta", "-1"], "delta must be"),
    "seeding": (["--prompt", "x", "--seeding", "left"], "lefthash"),
    "context width": (["--prompt", "x", "--context-width", "0"], "context_width"),
    "top_k": (["--prompt", "x", "--watermark", "exp", "--top-k-exp", "101"], "top_k"),
    "theta": (["--prompt", "x", "--policy", "capacity", "--evaluator", "EVALUATOR", "--theta", "1.5"], "theta"),
    "beta": (["--prompt", "x", "--policy", "capacity", "--evaluator", "EVALUATOR", "--beta", "-1"], "beta"),
    "beta for exp": (
        ["--prompt", "x", "--watermark", "exp", "--policy", "capacity", "--evaluator", "EVALUATOR", "--beta", "20"],
        "at most 100",
    ),
    "no evaluator": (["--prompt", "x", "--policy", "capacity"], "--evaluator"),
    "unknown evaluator": (["--prompt", "x", "--policy", "capacity", "--evaluator", "none"], "evaluator must be"),
    "no number": (["--prompt", "x", "--policy", "entropy"], "--nats"),
    "a stranger's option": (["--prompt", "x", "--watermark", "exp", "--delta", "2"], "kgw and unigram"),
    "a stranger's policy option": (["--prompt", "x", "--theta", "0.5"], "policy capacity"),
    "no watermark, but delta": (["--prompt", "x", "--watermark", "none", "--delta", "2"], "--delta"),
    "max_new_tokens": (["--prompt", "x", "--max-new-tokens", "0"], "max_new_tokens"),
    "temperature": (["--prompt", "x", "--temperature", "0"], "temperature"),
    "top_p": (["--prompt", "x", "--top-p", "0"], "top_p"),
    "seed": (["--prompt", "x", "--seed", "-1"], "seed"),
    "branching": (["--prompt", "x", "--branching", "bush"], "tree, sequential, batch"),
    "stop": (["--prompt", "x", "--stop", ""], "stop must be"),
    "dtype": (["--prompt", "x", "--dtype", "float8"], "dtype must be"),
    "device": (["--prompt", "x", "--device", "abacus"], "device must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GENERATE)
def test_bad_generate(case: str, model: str, evaluator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD_GENERATE[case]
    assert_refused(generate(model, *(a.replace("EVALUATOR", evaluator) for a in arguments)), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("no-such-model", "does not exist"), ("./none", "does not exist"), ("EMPTY", "config.json"), ("x.gguf", "no")],
)
def test_bad_models(name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = name.replace("EMPTY", str(tmp_path))
    assert_refused(generate(name, "--prompt", "x"), expected)
    assert_refused(run("detect", "--text", "x", "--tokenizer", name), expected)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "fake.gguf"
    file.write_bytes(b"not a model")
    assert_refused(generate(str(file), "--prompt", "x"), "GGUF")


def test_a_broken_evaluator(model: str, tmp_path: Path) -> None:
    file = tmp_path / "fake.safetensors"
    file.write_bytes(b"not weights")
    assert_refused(generate(model, "--prompt", "x", "--policy", "capacity", "--evaluator", str(file)), "evaluator")


def test_no_chat_template(tmp_path: Path) -> None:
    assert_refused(generate(str(save_tiny(tmp_path, chat=False)), "--prompt", "x", "--chat"), "chat template")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_no_gpu(model: str) -> None:
    assert_refused(generate(model, "--prompt", "x", "--device", "cuda"), "CUDA")


def test_output_is_not_input(model: str, tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "prompts.jsonl", 1)
    before = source.read_bytes()
    result = generate(model, "--input", str(source), "--output", str(source), "--resume")
    assert_refused(result, "another file")
    assert source.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "one of FILE, --text and --input"),
        (["x.txt", "--text", "x"], "FILE and --text"),
        (["none.txt"], "none.txt"),
        (["--text", "x"], "--tokenizer"),
        (["--text", "x", "--watermark", "none"], "kgw, unigram, exp"),
        (["--text", "x", "--fpr", "0"], "fpr"),
        (["--text", "x", "--fpr", "2"], "fpr"),
        (["--text", "x", "--mode", "loose"], "mode"),
        (["--text", "x", "--watermark", "exp", "--gamma", "0.5"], "--gamma"),
        (["--text", "x", "--scores"], "--json"),
    ],
)
def test_bad_detect(arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run("detect", *arguments), expected)


def test_a_file_that_is_no_text(model: str, tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"\xff\xd8\xff")
    assert_refused(run("detect", str(file), "--tokenizer", model), "UTF-8")


def test_unknown_options_are_usage_errors(model: str) -> None:
    for arguments in (["--colour", "red"], ["--theta", "much"], ["--batch-size", "0"]):
        result = generate(model, "--prompt", "x", *arguments)
        assert result.exit_code == 2 and "Traceback" not in result.output and result.stdout == ""
    assert run("paint").exit_code == 2


def test_a_bug_of_ours_is_not_dressed_up(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw.cli import generate_command

    def broken(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(generate_command, "load_model", broken)
    assert isinstance(generate(model, "--prompt", "x").exception, AssertionError)


def test_traceback_on_request(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_TRACEBACK", "1")
    assert isinstance(generate(model, "--prompt", "").exception, ValueError)


# keys ------------------------------------------------------------------------------------------------------------


def test_keys_as_in_the_library() -> None:
    assert parse_key("42") == 42 and caw.KGW(key=parse_key("42")).key_id == caw.KGW(key=42).key_id
    assert [parse_key(k) for k in ("-1", "4 2", "٤٢", "4_2", "")] == ["-1", "4 2", "٤٢", "4_2", ""]


@pytest.mark.parametrize(("key", "expected"), [(None, "CAW_KEY"), (str(1 << 64), "2**64")])
def test_bad_keys(model: str, key: str | None, expected: str) -> None:
    for arguments in (["generate", "--model", model, "--prompt", "x"], ["detect", "--tokenizer", model, "--text", "x"]):
        result = run(*arguments, key=key)
        assert_refused(result, expected)
        assert key is None or key not in result.output


def test_no_key_leaves_the_program(model: str, evaluator: str, tmp_path: Path) -> None:
    secret = "9007199254740993"
    number = caw.KGW(key=KEY).secret
    source, out = write_prompts(tmp_path / "prompts.jsonl", 1), tmp_path / "out.jsonl"
    source.write_text(source.read_text() + "broken\n")
    for key, name in ((secret, "a"), (KEY, "b")):
        file = out.with_suffix(f".{name}")
        results = [
            generate(model, "--input", str(source), "--output", str(file), "--trace", "--key", key, key=None),
            generate(model, "--input", str(source), key=key),
            generate(model, "--prompt", "x", "--gamma", "7", key=key),
            run("detect", "--input", str(file), "--tokenizer", model, "--json", "--scores", "--key", key, key=None),
            run("detect", "--input", str(file), "--tokenizer", model, key=key),
            run("demo", "--model", model, "--evaluator", evaluator, "--max-new-tokens", "5", key=key),
            run("generate", "--help", key=key),
        ]
        everything = "".join(r.output for r in results) + file.read_text()
        assert key not in everything and str(number) not in everything
        assert caw.KGW(key=parse_key(key)).key_id in everything


def test_every_watermark_and_policy_is_reachable() -> None:
    assert {kind for kind, _ in WATERMARKS.values()} == {caw.KGW, caw.Unigram, caw.EXP, caw.SynthID}
    assert {kind for kind, _ in POLICIES.values()} == {
        caw.FixedStrength, caw.EntropyThreshold, caw.LogitDeltaThreshold, caw.CapacityPolicy,
    }  # fmt: skip


# the real program ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_cut_short_is_resumed(model: str, tmp_path: Path, how: signal.Signals) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 120), tmp_path / "out.jsonl"
    command = [
        sys.executable, "-m", "caw.cli", "generate", "--model", model, "--input", str(source), "--output", str(out),
        "--max-new-tokens", "30", "--batch-size", "2", "--threads", "1",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "CAW_KEY": KEY},
        # shells start background jobs with Ctrl-C ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while (not out.exists() or out.read_bytes().count(b"\n") < 3) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how), errors
    assert "Traceback" not in errors
    kept = out.read_bytes()
    assert 3 <= kept.count(b"\n") < 120
    arguments = ["--input", str(source), "--output", str(out), "--resume", "--max-new-tokens", "30", "--threads", "1"]
    assert generate(model, *arguments).exit_code == 0
    assert out.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert sorted(line["id"] for line in read(out)) == list(range(1, 121))


@pytest.mark.slow
def test_the_program_ends_quietly_when_nobody_reads(model: str, tmp_path: Path) -> None:
    source = write_prompts(tmp_path / "prompts.jsonl", 30)
    script = f"{sys.executable} -m caw.cli generate --model {model} --input {source} --threads 1 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "CAW_KEY": KEY}, check=False
    )
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr
