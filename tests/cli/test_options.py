"""Options that commands share: keys, which never leave the program, and the names of watermarks and policies."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.running import KEY, assert_refused, generate, run, write_prompts

import caw
from caw.cli.options import POLICIES, WATERMARKS, parse_key

pytestmark = pytest.mark.usefixtures("environment")


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
