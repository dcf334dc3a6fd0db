"""`--watermark recommended`: generate, detect, its receipts, and what it refuses."""

import json
from pathlib import Path

import pytest
from cli.running import KEY, assert_refused, generate, read, run, write_prompts
from flat_evaluator import flat_evaluator

import caw

pytestmark = pytest.mark.usefixtures("environment")
MARK = ("--watermark", "recommended")


@pytest.mark.parametrize("sample", [True, False])
def test_texts_of_both_families_are_found_with_the_same_options(model: str, tmp_path: Path, sample: bool) -> None:
    source, out = write_prompts(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    sampling = ("--sample", "--temperature", "2", "--seed", "3") if sample else ()
    more = ("--max-new-tokens", "150", "--detectable-at", "1e-2", "--evaluator", flat_evaluator())
    result = generate(model, "-i", str(source), "-o", str(out), *MARK, *more, *sampling)
    assert result.exit_code == 0, result.stderr
    drawn = "marking drawn texts with exp at full strength, which costs no quality"
    assert (drawn in result.stderr) is sample
    lines, mark = read(out), caw.Recommended(KEY, evaluator=flat_evaluator())
    for line in lines:
        said = {"name": "recommended", "target": 1e-3, "evaluator": flat_evaluator()}
        assert line["watermark"] == said
        policy = line["policy"]
        assert policy["name"] == ("fixed" if sample else "capacity")
        assert sample or policy["target"] == mark.level_of_each(1e-3)
        assert line["key_id"] == mark.key_id == line["receipt"]["key_id"]
    how = (*MARK, "--receipt", str(out), "--json")
    found = run("detect", "--tokenizer", model, "-i", str(out), *how)
    assert found.exit_code == 0, found.stderr
    results = [json.loads(line) for line in found.stdout.splitlines()]
    assert [r["p_value"] for r in results] == [line["receipt"]["p_value"] for line in lines]
    assert {r["family"] for r in results if r["is_watermarked"]} == {"exp" if sample else "kgw"}


@pytest.mark.parametrize(("sampling", "kind"), [
    (("--temperature", "0.29"), "texts drawn below temperature 0.3, where a race is not found, with kgw (delta 4)"),
    (("--temperature", "0.3"), "drawn texts with exp at full strength"),
    (("--top-k", "1"), "greedy texts with kgw (delta 4)"),
])  # fmt: skip
def test_the_line_says_which_family_marks_and_why(
    model: str, tmp_path: Path, sampling: tuple[str, ...], kind: str
) -> None:
    out = tmp_path / "out.jsonl"
    result = generate(model, "--prompt", "the sky", "-o", str(out), *MARK, "--sample", *sampling)
    assert result.exit_code == 0 and result.stderr.startswith(f"caw: marking {kind}")
    assert read(out)[0]["policy"]["name"] == "fixed"


# Lines that say how their texts were made ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    source, out = write_prompts(folder / "in.jsonl", 2), folder / "out.jsonl"
    more = ("--detectable-at", "1e-2", "--max-new-tokens", "40", "--dtype", "float32")
    sampling = ("--sample", "--temperature", "2", "--top-k", "50", "--seed", "3")
    made = generate(model, "-i", str(source), "-o", str(out), "--with-prompt", *MARK, *more, *sampling)
    assert made.exit_code == 0, made.stderr
    return out


def test_another_watermark_is_said_in_one_sentence(model: str, drawn: Path) -> None:
    read_as = ("detect", "--tokenizer", model, "-i", str(drawn))
    for how in ((), ("--receipt", str(drawn))):
        result = run(*read_as, *how)
        assert (result.exit_code, result.stderr) == (0, "")
    assert run(*read_as, key="another").exit_code == 0, "texts of another key are no mistake"
    other = run(*read_as, "--watermark", "kgw")
    assert other.exit_code == 1 and "recommended in 2 of them, got kgw" in other.stderr


def test_a_model_reads_drawn_texts_as_their_lines_say(model: str, drawn: Path, tmp_path: Path) -> None:
    how = ("--weights", f"model:{model}", "--prompt-field", "prompt", "--dtype", "float32")

    def p_values(source: Path, *more: str) -> list[float]:
        result = run("detect", "-i", str(source), "--field", "tokens", "--json", *how, *more)
        assert result.exit_code == 0, result.stderr
        return [json.loads(line)["p_value"] for line in result.stdout.splitlines()]

    own = p_values(drawn)
    assert own == p_values(drawn, "--temperature", "2", "--top-k", "50") != p_values(drawn, "--temperature", "1")
    lines = read(drawn)
    mixed = tmp_path / "mixed.jsonl"
    lines[1]["settings"]["sampling"]["temperature"] = 1.0
    mixed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert p_values(mixed) == [own[0], p_values(drawn, "--temperature", "1", "--top-k", "50")[1]]
    for line in lines:
        del line["settings"]
    mixed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("detect", "-i", str(mixed), "--field", "tokens", *how)
    assert result.exit_code == 0 and "got texts that do not say it, so those of a race are read" in result.stderr


@pytest.mark.parametrize(("options", "said"), [
    (("--theta", "0.5"), "watermark recommended brings its own policies, got --theta as well; leave it out"),
    (("--policy", "fixed"), "watermark recommended brings its own policies, got --policy as well; leave it out"),
    (("--gamma", "0.5"), "--gamma is only for watermark kgw and unigram, got watermark recommended"),
    (("--free", "2"), "--free is only for watermark exp, got watermark recommended"),
    (("--subkeys", "4"), "--subkeys is only for watermark kgw and unigram, got watermark recommended"),
    (("--target", "2"), "target must be a number in (0, 1)"),
    (("--weights", "maths", "--detectable-at", "1e-3"), "--weights are for one watermark, got recommended"),
])  # fmt: skip
def test_what_it_decides_is_refused_in_one_sentence(options: tuple[str, ...], said: str) -> None:
    assert_refused(run("generate", "--model", "smollm2-135m", "--prompt", "x", *MARK, *options), said)
    if "--weights" not in options:
        assert_refused(run("serve", "--model", "no-such-model", *MARK, *options), said)
