"""`caw generate --detectable-at`, runs of it that were killed, and `caw detect --receipt`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from cli.running import KEY, assert_refused, generate, read, run, write_prompts

import caw
from caw.detectable.receipts import Receipt, text_digest
from caw.detection import TokenWeights
from caw.io.show import is_p
from caw.models import load_tokenizer

FOUND = ("--detectable-at", "1e-2", "--policy", "fixed", "--strength", "0.3", "--delta", "2", "--max-new-tokens", "30")
MARK = caw.KGW(key=KEY, delta=2.0)


def make(model: str, folder: Path, *more: str, count: int = 6) -> tuple[Path, list[dict[str, Any]], str]:
    source, out = write_prompts(folder / "prompts.jsonl", count), folder / "out.jsonl"
    result = generate(model, "-i", str(source), "-o", str(out), *FOUND, *more)
    assert result.exit_code == 0, result.stderr
    return out, read(out), result.stderr


def test_guarded_lines_say_what_they_keep(model: str, tmp_path: Path) -> None:
    _, lines, _ = make(model, tmp_path, "--guard", "json:name", count=2)
    for line in lines:
        receipt = line["receipt"]
        assert receipt["keeps"] == line["settings"]["guard"]["keeps"] == "json:name"
        assert receipt["kept"] is not False  # None: the unmarked text is no JSON
        assert receipt["changes"] <= receipt["rollouts"] > 0


def detect(model: str, *arguments: str, **settings: Any) -> Any:
    return run("detect", "--tokenizer", model, *arguments, **settings)


def test_lines_have_receipts_that_the_detector_confirms(model: str, tmp_path: Path) -> None:
    out, lines, errors = make(model, tmp_path)
    tokenizer = load_tokenizer(model)
    for line in lines:
        receipt = Receipt.from_dict(line["receipt"])
        result = caw.detect(line["text"], tokenizer, MARK, 1e-2)
        told = (receipt.detected, receipt.p_value, receipt.key_id)
        assert told == (result.is_watermarked, result.p_value, MARK.key_id)
        assert receipt.digest == text_digest(line["text"]) and KEY not in json.dumps(line)
        said = f"line {line['id']}: not detected: {receipt.reason}\n"
        assert (said in errors) == (not receipt.detected) == bool(receipt.reason)
        assert line["settings"]["detectable_at"] == 1e-2 and line["settings"]["best_of"] == 1
    assert {line["receipt"]["detected"] for line in lines} == {True, False}
    assert max(line["receipt"]["attempts"] for line in lines) > 1
    confirmed = detect(model, "-i", str(out), "--receipt", str(out), "--json")
    assert confirmed.exit_code == 0, confirmed.stderr
    by_id = {result["id"]: result for result in map(json.loads, confirmed.stdout.splitlines())}
    assert {line["id"]: line["receipt"]["p_value"] for line in lines} == {i: r["p_value"] for i, r in by_id.items()}
    assert {r["fpr"] for r in by_id.values()} == {1e-2}


def test_a_run_cut_short_makes_its_unfinished_texts_anew(model: str, tmp_path: Path) -> None:
    out, made, _ = make(model, tmp_path)
    whole = out.read_bytes()
    assert [line["id"] for line in made] == list(range(1, 7))
    lines = whole.splitlines(keepends=True)
    out.write_bytes(lines[4] + lines[2] + lines[0][:-40])
    arguments = ["-i", str(tmp_path / "prompts.jsonl"), "-o", str(out), "--resume"]
    result = generate(model, *arguments, *FOUND)
    assert result.exit_code == 0, result.stderr
    assert out.read_bytes() == whole
    for change in (["--max-attempts", "3"], ["--detectable-at", "1e-3"], ["--edits", "0.1"]):
        assert_refused(generate(model, *arguments, *FOUND, *change), "resume with the same options")


def test_weights_are_used_named_and_checked(model: str, tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(1, 16, 384).astype(np.uint8)
    table, other = tmp_path / "table.safetensors", tmp_path / "other.safetensors"
    TokenWeights(levels).save(table)
    TokenWeights(levels[::-1].copy()).save(other)
    out, lines, _ = make(model, tmp_path, "--weights", str(table), count=2)
    assert lines[0]["receipt"]["weights"] == {"name": str(table), "digest": TokenWeights(levels).digest}
    given = ["-i", str(out), "--receipt", str(out)]
    results = [json.loads(line) for line in detect(model, *given, "--json").stdout.splitlines()]
    assert [r["p_value"] for r in results] == [line["receipt"]["p_value"] for line in lines]
    assert_refused(detect(model, *given, "--weights", str(other)), "give the same file with --weights")
    known = tmp_path / "known.safetensors"
    TokenWeights(levels, provenance={"key_ids": [MARK.key_id]}).save(known)
    told = f"estimated from texts of the tested key {MARK.key_id}, which would make"
    assert_refused(generate(model, "--prompt", "the sky", *FOUND, "--weights", str(known)), told)
    assert_refused(detect(model, "--text", "the sky", "--weights", str(known)), told)
    table.rename(tmp_path / "moved.safetensors")
    assert_refused(detect(model, *given), "table.safetensors does not exist")
    assert detect(model, *given, "--weights", str(tmp_path / "moved.safetensors")).exit_code == 0
    (tmp_path / "again").mkdir()
    unweighted, _, _ = make(model, tmp_path / "again", count=1)
    assert_refused(
        detect(model, "-i", str(unweighted), "--receipt", str(unweighted), "--weights", str(other)), "without weights"
    )


def test_torn_lines_of_receipts_are_named_and_skipped(model: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 3), tmp_path / "out.jsonl"
    assert generate(model, "-i", str(source), "-o", str(out), *FOUND).exit_code == 0
    first, second, third = out.read_text().splitlines()
    torn = tmp_path / "torn.jsonl"
    torn.write_text(f"{first}\n{second[:30]}{second}\n[]\n{third}\n{third[:-9]}")
    result = detect(model, "-i", str(out), "--receipt", str(torn))
    assert result.exit_code == 1, result.output  # the second text has no receipt any more
    for number in (2, 3, 5):
        assert f"{torn}, line {number}: expected" in result.stderr
    assert f"{torn}: 3 of its lines are skipped" in result.stderr
    assert "line 2: no receipt in " in result.stderr and result.stderr.count("no receipt in ") == 1
    torn.write_text(second[:30])
    assert_refused(detect(model, "-i", str(out), "--receipt", str(torn)), f"{torn}, line 1: expected one JSON object")


def test_a_receipt_of_one_text_from_files(model: str, tmp_path: Path) -> None:
    _, [line], _ = make(model, tmp_path, count=1)
    text, receipt = tmp_path / "text.txt", tmp_path / "receipt.json"
    text.write_text(line["text"] + "\n", encoding="utf-8")
    receipt.write_text(json.dumps(line["receipt"]))
    for given in ([str(text)], ["--text", line["text"]]):
        result = detect(model, *given, "--receipt", str(receipt))
        assert result.exit_code == 0 and "0.01" in result.stdout, result.stderr
    assert_refused(detect(model, "--text", "another", "--receipt", str(receipt)), "no receipt in ")
    assert_refused(detect(model, str(text), "--receipt", str(receipt), key="another"), "is for kgw with key ")
    assert_refused(detect(model, str(text), "--receipt", str(receipt), "--fpr", "1e-5"), "leave --fpr out")
    other = detect(model, str(text), "--receipt", str(receipt), "--gamma", "0.5")
    assert other.exit_code == 1 and f"receipt.json records {is_p(line['receipt']['p_value'])}: " in other.stderr
    assert other.stderr.startswith("caw: p ") and " differ from those of the test; give the same" in other.stderr
    assert_refused(detect(model, str(text), "--receipt", str(receipt), "--regions"), "leave --regions out")
    assert_refused(
        detect(model, "--null-report", str(text), "--receipt", str(receipt)), "got --null-report; leave one out"
    )
    for content, message in (
        ("{}", "must contain a receipt, found none"),
        ('{"digest": 1}', "a receipt must have detected"),
    ):
        receipt.write_text(content)
        assert_refused(detect(model, str(text), "--receipt", str(receipt)), message)


def test_changed_lines_are_bad_lines(model: str, tmp_path: Path) -> None:
    out, lines, _ = make(model, tmp_path, count=3)
    changed = tmp_path / "changed.jsonl"
    lines[1]["text"] += " and more"
    lines[2]["text"] = ""  # as on_undetected="drop" leaves a line
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = detect(model, "-i", str(changed), "--receipt", str(out), "--json")
    assert result.exit_code == 1 and result.stdout.count("\n") == 1
    empty = "it is empty, because on_undetected='drop' drops texts that are not detected"
    for line, why in ((2, "the text was changed or has another receipt"), (3, empty)):
        assert re.search(f"line {line}: no receipt in .* has the text's digest: {why}", result.stderr)


def test_dropped_and_raised(model: str, tmp_path: Path) -> None:
    _, lines, _ = make(model, tmp_path, "--on-undetected", "drop", "--max-attempts", "1")
    dropped = [line for line in lines if line["finish_reason"] == "undetected"]
    assert dropped and all(line["text"] == "" and not line["receipt"]["detected"] for line in dropped)
    source = str(tmp_path / "prompts.jsonl")
    raised = generate(model, "-i", source, "-o", str(tmp_path / "r.jsonl"), *FOUND, "--on-undetected", "raise",
                      "--max-attempts", "1")  # fmt: skip
    assert raised.exit_code == 2
    [number] = re.findall(
        r"every text must be detectable at 0.01, line (\d)'s is not after 1 attempt \(", raised.stderr
    )
    assert int(number) in {line["id"] for line in dropped}
