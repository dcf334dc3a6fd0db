"""Bad usage is one line on stderr and exit code 2; a bug of ours keeps its traceback."""

from pathlib import Path
from typing import Any

import pytest
from cli.running import KEY, assert_refused, generate, run, write_prompts
from tiny import save_tiny

import caw
from caw.cli.options import WATERMARK_OPTIONS
from caw.policies.names import POLICIES
from caw.watermarks.keys import parse_key
from caw.watermarks.names import WATERMARKS, watermark_arguments

pytestmark = pytest.mark.usefixtures("environment")

BAD_GENERATE = {
    "no prompt": ([], "one of --prompt and --input"),
    "two sources": (["--prompt", "x", "--input", "y"], "got both"),
    "no such file": (["--input", "none.jsonl"], "none.jsonl"),
    "resume nothing": (["--prompt", "x", "--resume"], "--output"),
    "no folder": (["--prompt", "x", "--output", "none/out.jsonl"], "folder"),
    "watermark": (["--prompt", "x", "--watermark", "red"], "kgw, unigram, exp, synthid, none"),
    "policy": (["--prompt", "x", "--policy", "luck"], "fixed, entropy"),
    "gamma": (["--prompt", "x", "--gamma", "1.5"], "gamma must be"),
    "unknown evaluator": (["--prompt", "x", "--policy", "capacity", "--evaluator", "none"], "evaluator must be"),
    "no number": (["--prompt", "x", "--policy", "entropy"], "--nats"),
    "a stranger's option": (["--prompt", "x", "--watermark", "exp", "--delta", "2"], "kgw and unigram"),
    "a stranger's policy option": (["--prompt", "x", "--policy", "fixed", "--theta", "0.5"], "policy capacity"),
    "no watermark, but delta": (["--prompt", "x", "--watermark", "none", "--delta", "2"], "--delta"),
    "no watermark, but a policy": (["--prompt", "x", "--watermark", "none", "--policy", "fixed"], "--policy is only"),
    "no watermark, but a target": (["--prompt", "x", "--watermark", "none", "--target", "0.1"], "--target is only"),
    "another watermark's option without its name": (
        ["--prompt", "x", "--strength-exp", "scale"],
        "leave it out, or give --watermark exp",
    ),
    "greedy, but a temperature": (["--prompt", "x", "--temperature", "0.7"], "add --sample"),
    "greedy, but top_k": (["--prompt", "x", "--greedy", "--top-k", "7"], "--top-k is only"),
    "dtype": (["--prompt", "x", "--dtype", "float8"], "dtype must be"),
    "device": (["--prompt", "x", "--device", "abacus"], "device must be"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_GENERATE)
def test_bad_generate(case: str, model: str, evaluator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD_GENERATE[case]
    assert_refused(generate(model, *(a.replace("EVALUATOR", evaluator) for a in arguments)), expected)


@pytest.mark.parametrize(("name", "expected"), [
    ("no-such-model", "does not exist"), ("./none", "does not exist"), ("EMPTY", "config.json"), ("x.gguf", "no"),
])  # fmt: skip
def test_bad_models(name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = name.replace("EMPTY", str(tmp_path))
    assert_refused(generate(name, "--prompt", "x"), expected)
    assert_refused(run("detect", "--text", "x", "--tokenizer", name), expected)


def test_no_chat_template(tmp_path: Path) -> None:
    assert_refused(generate(str(save_tiny(tmp_path, chat=False)), "--prompt", "x", "--chat"), "chat template")


def test_unknown_options_are_usage_errors(model: str) -> None:
    for arguments in (["--colour", "red"], ["--theta", "much"], ["--batch-size", "0"]):
        result = generate(model, "--prompt", "x", *arguments)
        assert result.exit_code == 2 and "Traceback" not in result.output and result.stdout == ""
    assert run("paint").exit_code == 2


def test_a_bug_of_ours_is_not_dressed_up(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr("caw.models.load.load_for_command", broken)
    assert isinstance(generate(model, "--prompt", "x").exception, AssertionError)


def test_traceback_on_request(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_TRACEBACK", "1")
    assert isinstance(generate(model, "--prompt", "").exception, ValueError)


def test_a_key_that_is_no_text_shows_nothing_of_itself(model: str) -> None:
    """CAW_KEY of other bytes reaches Python as halves of surrogate pairs; its own error shows one of them."""
    for arguments in (["generate", "--model", model, "--prompt", "x"], ["detect", "--tokenizer", model, "--text", "x"]):
        result = run(*arguments, key="secret\udcff\udce9")
        assert_refused(result, "key must be text that UTF-8 can encode")
        assert "udcff" not in result.output and "\udcff" not in result.output and "position" not in result.output


@pytest.mark.parametrize(("key", "expected"), [(None, "CAW_KEY"), (str(1 << 64), "2**64")])
def test_bad_keys(model: str, key: str | None, expected: str) -> None:
    for arguments in (["generate", "--model", model, "--prompt", "x"], ["detect", "--tokenizer", model, "--text", "x"]):
        result = run(*arguments, key=key)
        assert_refused(result, expected)
        assert key is None or key not in result.output


def test_blank_keys_are_refused_from_everywhere(model: str, tmp_path: Path) -> None:
    detect, said = ["detect", "--tokenizer", model, "--text", "x"], "key must have a visible character"
    assert_refused(run("generate", "--model", model, "--prompt", "x", "--key", "\u3000", key=None), said)
    assert_refused(run(*detect, key=" "), said)
    for key in ('key: " "', "key_env: CAW_KEY"):
        (tmp_path / "keys.yaml").write_text(f"watermarks: [{{{key}}}]")
        assert_refused(run(*detect, "--config", str(tmp_path / "keys.yaml"), key=" "), said)


def test_no_key_leaves_the_program(model: str, evaluator: str, tmp_path: Path) -> None:
    secret = "9007199254740993"
    number = caw.KGW(key=KEY).secret
    source, out = write_prompts(tmp_path / "prompts.jsonl", 1), tmp_path / "out.jsonl"
    source.write_text(source.read_text() + "broken\n")
    for key, name in ((secret, "a"), (KEY, "b")):
        file = out.with_suffix(f".{name}")
        results = [
            generate(model, "--input", str(source), "--output", str(file), "--key", key, key=None),
            generate(model, "--input", str(source), key=key),
            generate(model, "--prompt", "x", "--gamma", "7", key=key),
            run("detect", "--input", str(file), "--tokenizer", model, "--json", "--key", key, key=None),
            run("detect", "--input", str(file), "--tokenizer", model, key=key),
            run("demo", "--model", model, "--evaluator", evaluator, "--max-new-tokens", "5", key=key),
            run("generate", "--help", key=key),
        ]
        everything = "".join(r.output for r in results) + file.read_text()
        assert key not in everything and str(number) not in everything
        assert caw.KGW(key=parse_key(key)).key_id in everything


def test_every_watermark_and_policy_is_reachable() -> None:
    assert list(WATERMARK_OPTIONS) == list(WATERMARKS)
    for name, options in WATERMARK_OPTIONS.items():
        assert set(options.values()) <= set(watermark_arguments(name))


def test_help_names_every_choice() -> None:
    """The lists stand in the help as text, since the modules that define them import PyTorch."""
    shown = "".join(run("generate", "--help-all").stdout.split())
    assert "|".join([*WATERMARKS, "none"]) in shown and "|".join(POLICIES) in shown
