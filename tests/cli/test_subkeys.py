"""`--subkeys` and `--free`: what lines and receipts say of them."""

import json
from pathlib import Path

import pytest
from cli.running import KEY, assert_refused, generate, read, run, write_prompts

import caw

pytestmark = pytest.mark.usefixtures("environment")
KGW = ("--watermark", "kgw", "--policy", "fixed")


@pytest.fixture(scope="module")
def marked(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marked")
    source, out = write_prompts(folder / "in.jsonl", 2), folder / "out.jsonl"
    more = ("--subkeys", "128", "--detectable-at", "1e-2", "--max-new-tokens", "60")
    made = generate(model, "-i", str(source), "-o", str(out), *KGW, *more)
    assert made.exit_code == 0, made.stderr
    return out


def test_lines_and_receipts_name_the_sub_keys(model: str, marked: Path) -> None:
    lines = read(marked)
    plain = generate(model, "-i", str(marked.parent / "in.jsonl"), *KGW, "--max-new-tokens", "60")
    assert plain.exit_code == 0 and "subkeys" not in json.loads(plain.stdout.splitlines()[0])["watermark"]
    for line in lines:
        assert line["watermark"]["subkeys"] == 128 and "subkey" not in line["watermark"]
        assert (line["receipt"]["subkey"], line["receipt"]["subkeys"]) == (0, 128)
    found = run("detect", "--tokenizer", model, "-i", str(marked), *KGW[:2], "--subkeys", "128", "--json")
    assert found.exit_code == 0, found.stderr
    for line, told in zip(lines, map(json.loads, found.stdout.splitlines()), strict=True):
        result = caw.detect(line["text"], caw.models.load_tokenizer(model), caw.KGW(KEY, subkeys=128))
        assert (told["p_value"], told["subkey"]) == (result.p_value, result.subkey) and told["num_subkeys"] == 128


def test_more_sub_keys_than_the_detector_has_are_said_in_one_sentence(model: str, marked: Path) -> None:
    read_as = ("detect", "--tokenizer", model, "-i", str(marked), *KGW[:2])
    result = run(*read_as, "--subkeys", "64")
    said = "the test must read the marks of the texts, kgw (subkeys 128) in 2 of them, got kgw (subkeys 64)"
    assert result.exit_code == 1 and said in result.stderr and "give --watermark kgw --subkeys 128" in result.stderr
    for enough in ("128", "256"):
        result = run(*read_as, "--subkeys", enough)
        assert (result.exit_code, result.stderr) == (0, "")
    told = run(*read_as, "--receipt", str(marked))
    assert_refused(told, "is for texts of 128 sub-keys, got a test that tries 1; give --subkeys 128")
    assert run(*read_as, "--receipt", str(marked), "--subkeys", "128").exit_code == 0


def test_a_beginning_is_named_where_it_is_asked_for(model: str, tmp_path: Path) -> None:
    out, race = tmp_path / "out.jsonl", ("--watermark", "exp", "--strength-exp", "scale", "--sample")
    for free in ((), ("--free", "2"), ("--free", "0")):
        made = generate(model, "--prompt", "the sky", "-o", str(out), *race, *free)
        assert made.exit_code == 0, made.stderr
        [line] = read(out)
        assert line["watermark"].get("free") == (float(free[1]) if free else None)
        found = run("detect", "--tokenizer", model, "-i", str(out), *race[:4][:2])
        assert found.exit_code == 0, found.stderr
        out.unlink()
