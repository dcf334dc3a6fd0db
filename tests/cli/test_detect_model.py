"""`caw detect --weights model:NAME`: what the library says with the same model, and options that would do nothing."""

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.running import KEY, assert_refused, generate, read, run

import caw
from caw.detection import Detector
from caw.detection.calibration import Calibration
from caw_lab.training.fit_calibration import fit_calibration

pytestmark = pytest.mark.usefixtures("environment")
MARK = caw.KGW(key=KEY, delta=2.0)
FULL = ["--policy", "fixed", "--delta", "2"]


def detect(*arguments: str) -> Any:
    return run("detect", *arguments)


def p_values(*arguments: str) -> list[float]:
    result = detect("--json", "--dtype", "float32", *arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return [json.loads(line)["p_value"] for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def loaded(model: str) -> Any:
    return caw.load_model(model, dtype="float32")


@pytest.fixture(scope="module")
def lines(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    prompts, out = folder / "prompts.jsonl", folder / "out.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("the sky is blue", "a small text")))
    given = ["-i", str(prompts), "-o", str(out), "--with-prompt", *FULL, "--dtype", "float32"]
    made = generate(model, *given, "--max-new-tokens", "40", "--min-new-tokens", "40")
    assert made.exit_code == 0, made.stderr
    return out


def library(loaded: Any, prompt: str | None, content: Any, policy: Any = None, **options: Any) -> float:
    weights = caw.ReaderWeights(*loaded, prompt, policy or caw.FixedStrength(), **options)
    return float(caw.detect(content, loaded[1], MARK, weights=weights).p_value)


def test_p_values_are_the_librarys(model: str, loaded: Any, lines: Path, tmp_path: Path) -> None:
    rows, weights = read(lines), ["--weights", f"model:{model}"]
    given = [*weights, *FULL, "--input", str(lines), "--field", "tokens"]
    own = [library(loaded, row["prompt"], row["tokens"]) for row in rows]
    mixed = tmp_path / "mixed.jsonl"  # a prompt that cannot be read costs its own line alone
    mixed.write_text("".join(json.dumps(row) + "\n" for row in ({**rows[0], "id": "none", "prompt": ""}, *rows)))
    beside = ["--field", "tokens", "--input", str(mixed), "--prompt-field", "prompt", "--json", "--dtype", "float32"]
    answer = detect(*weights, *FULL, *beside)
    assert [json.loads(line)["p_value"] for line in answer.stdout.splitlines()] == own and answer.exit_code == 1
    assert "line 1: prompt must have at least one token" in answer.stderr and "with the prompt, Fixed" in answer.stderr
    without = [library(loaded, None, row["tokens"]) for row in rows]
    assert p_values(*given) == without and all(a < b for a, b in zip(own, without, strict=True))
    prompt, text = tmp_path / "prompt.txt", tmp_path / "text.txt"
    prompt.write_text(rows[0]["prompt"])
    text.write_text(rows[0]["text"], encoding="utf-8")
    known = [*weights, "--prompt-file", str(prompt), str(text)]  # the model's tokenizer reads the text
    content = rows[0]["text"]
    assert p_values(*known, *FULL) == [library(loaded, rows[0]["prompt"], content)]
    assert p_values(*known, *FULL, "--chat") == [library(loaded, rows[0]["prompt"], content, chat=True)]
    half = library(loaded, rows[0]["prompt"], content, caw.EntropyThreshold(1.0, 0.5))
    assert p_values(*known, "--nats", "1", "--strength", "0.5", "--delta", "2") == [half]


def test_people_are_told_what_weighs(model: str, lines: Path) -> None:
    result = detect("--weights", f"model:{model}", "--tokenizer", model, "--text", read(lines)[0]["text"])
    assert result.exit_code == 0, result.stderr
    name = Path(model).name
    assert f"weights by model:{name} without the prompt, CapacityPolicy(evaluator='universal-window00'" in result.stderr
    assert "the universal one serves it" in result.stderr


def test_receipts_are_checked_with_the_same_model(model: str, loaded: Any, tmp_path: Path) -> None:
    detector = Detector(loaded[1], MARK, 0.05, weights=caw.ReaderWeights(*loaded))
    options: dict[str, Any] = {"max_new_tokens": 40, "min_new_tokens": 40, "progress": False}
    out = caw.generate(*loaded, ["the sky"], watermark=MARK, detectable_at=0.05, detector=detector, **options)
    receipt, text = tmp_path / "receipt.json", tmp_path / "text.txt"
    receipt.write_text(json.dumps(out.receipts[0].as_dict()))
    text.write_text(out.texts[0], encoding="utf-8")
    given = [str(text), "--receipt", str(receipt)]
    same = ["--weights", f"model:{model}", *FULL]
    assert p_values(*given, *same) == [out.receipts[0].p_value]
    assert_refused(
        detect(*given), "without the prompt, FixedStrength(value=1.0), got no model; give --weights model:NAME"
    )
    stronger = detect(*given, *same, "--strength", "2", "--dtype", "float32")
    assert stronger.exit_code == 2 and "give the same file with --weights" in stronger.stderr


def test_what_would_do_nothing_is_refused(model: str, lines: Path, tmp_path: Path) -> None:
    text, weights = ["--text", "some text"], ["--weights", f"model:{model}"]
    for option, value in (("delta", "2"), ("policy", "fixed"), ("prompt-file", str(lines)), ("threads", "1")):
        assert_refused(detect(*text, f"--{option}", value), f"--{option} requires --weights model:NAME")
    assert_refused(detect(*text, "--chat"), "--chat requires --weights model:NAME")
    assert_refused(detect(*text, "--weights", "model:"), "must name a model, got none")
    assert_refused(detect(*text, *weights, "--prompt-field", "prompt"), "--prompt-field requires --input")
    both = ["--input", str(lines), "--prompt-field", "prompt", "--prompt-file", str(lines)]
    assert_refused(detect(*weights, *both), "exclude each other, got both")
    assert_refused(detect(*text, *weights, "--chat"), "--chat requires a prompt, got none")
    learned = ["--calibration", str(lines), "--prompt-file", str(lines)]
    assert_refused(detect(*text, *weights, *learned), "with unknown prompts, got a prompt")
    assert_refused(detect(*text, "--calibration", str(lines)), "--calibration requires --weights model:NAME")
    assert_refused(detect(*text, *weights, "--calibration", str(lines)), "must be a calibration of this version")
    reports = ["--null-report", str(lines), "--prompt-field", "prompt"]
    assert_refused(detect(*weights, *reports), "--prompt-field requires --input")
    assert_refused(detect("--input", "-", *weights, "--prompt-file", "-"), "stdin can be read only once")
    # before the model is loaded
    nowhere = ["--weights", "model:smollm2-135m", *text]
    assert_refused(detect(*nowhere, "--regions"), "--mode exact without --weights")
    assert_refused(detect(*nowhere, "--watermark", "synthid"), "weights support KGW, Unigram and EXP")
    assert_refused(
        detect(*nowhere, "--payload-bits", "8"), "payloads require mode 'exact' without mid_p and weights; leave"
    )
    assert_refused(detect(*nowhere, "--top-k-exp", "5"), "--top-k-exp is only for watermark exp, got watermark kgw")


def test_a_reader_that_does_not_fit_is_refused_in_a_sentence(model: str, lines: Path, tmp_path: Path) -> None:
    other, prompt = tmp_path / "other", tmp_path / "prompt.txt"
    shutil.copytree(model, other)
    written = json.loads((other / "tokenizer.json").read_text())
    special = {token["content"] for token in written["added_tokens"]}
    plain = [token for token in written["model"]["vocab"] if token not in special]
    ids = [written["model"]["vocab"][token] for token in plain]
    written["model"]["vocab"] |= dict(zip(plain, ids[7:] + ids[:7], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(written))
    given = ["--weights", f"model:{model}", "--dtype", "float32", *FULL, "--text", "some text"]
    answer = detect(*given, "--tokenizer", str(other))
    assert answer.exit_code == 2 and "whose ids stand for other tokens; take a model of" in answer.stderr
    prompt.write_text("the sky is blue " * 200)
    answer = detect(*given, "--prompt-file", str(prompt))
    assert answer.exit_code == 2 and "512 positions, got" in answer.stderr and "shorten it" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_reports_of_many_texts_take_a_model(model: str, lines: Path) -> None:
    weights = ["--weights", f"model:{model}", *FULL, "--field", "tokens", "--json"]
    power = detect(*weights, "--power", str(lines))
    assert power.exit_code == 0 and json.loads(power.stdout.splitlines()[0])["tokens"] == 25
    null = detect(*weights, "--null-report", str(lines))
    assert null.exit_code == 0 and json.loads(null.stdout)["texts"] == 2


def test_a_calibration_is_what_the_library_learns(model: str, loaded: Any, lines: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn (pip install scikit-learn)")
    config, made = tmp_path / "keys.yaml", tmp_path / "calibration.json"
    config.write_text(f"watermarks: [{{name: a, key: {KEY}}}]")
    command = ["detection-weights", "--reader", model, "-i", str(lines), "--config", str(config), "-o", str(made)]
    command += ["--dtype", "float32"]
    result = run(*command)
    assert result.exit_code == 0, (result.stderr, result.exception)
    weights = caw.ReaderWeights(*loaded)
    expected = fit_calibration({MARK: [row["tokens"] for row in read(lines)]}, weights, progress=False)
    found = Calibration.load(made)
    assert found.key_ids == (MARK.key_id,) and found.provenance["command"] == shlex.join(["caw", *sys.argv[1:]])
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-6, atol=1e-9)
    asked = ["--weights", f"model:{model}", "--calibration", str(made), "--input", str(lines), "--dtype", "float32"]
    refused = detect(*asked, *FULL)  # learned under that key
    assert refused.exit_code == 2 and "the tested key" in refused.stderr, refused.stderr
    rows = read(lines)
    for broken in ({**rows[1], "policy": {"name": "unheard"}}, {**rows[1], "policy": None}):
        lines_two = tmp_path / "two.jsonl"
        lines_two.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], broken)))
        assert_refused(run(*[str(lines_two) if part == str(lines) else part for part in command]), "lines")
    assert_refused(run(*command[:3], "--like", "smollm2-135m", "-o", str(made)), "--reader requires marked texts")
    assert_refused(run("detection-weights", "--like", "smollm2-135m", "-o", str(made)), "give --tokenizer")
