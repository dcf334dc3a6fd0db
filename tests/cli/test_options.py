"""Options that commands share: keys, which never leave the program, and the names of watermarks and policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.running import KEY, assert_refused, generate, run, write_prompts

import caw
from caw.cli.options import WATERMARK_OPTIONS
from caw.policies.names import POLICIES
from caw.settings import BRANCHINGS, PREFILL_ATTENTIONS
from caw.watermarks.keys import parse_key
from caw.watermarks.names import WATERMARKS, watermark_arguments

pytestmark = pytest.mark.usefixtures("environment")


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
    assert list(WATERMARK_OPTIONS) == list(WATERMARKS)
    for name, options in WATERMARK_OPTIONS.items():
        assert set(options.values()) <= set(watermark_arguments(name))


def test_help_names_every_choice() -> None:
    """The lists stand in the help as text, since the modules that define them import PyTorch."""
    shown = "".join(run("generate", "--help").stdout.split())
    assert "|".join(PREFILL_ATTENTIONS) in shown and "|".join(BRANCHINGS) in shown
    assert "|".join([*WATERMARKS, "none"]) in shown and "|".join(POLICIES) in shown
