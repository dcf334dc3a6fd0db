"""`caw detect`: key lists, reports, formats and what texts may go through before they are tested."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import TEXT, tiny_tokenizer
from typer.testing import CliRunner

import caw
from caw.cli import app

KEY = "a key for tests"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["detect", *arguments], env={"CAW_KEY": KEY, "CAW_TRACEBACK": ""})


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run("--json", *arguments)
    assert result.exit_code == 0, (result.stderr, result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def marked_ids(watermark: Any, count: int, vocab_size: int = 300) -> list[int]:
    import torch

    ids = [5]
    generator = torch.Generator().manual_seed(3)
    while len(ids) < count:
        options = torch.randint(0, vocab_size, (4,), generator=generator)
        rows = torch.stack([torch.tensor([*ids[-watermark.window :], int(o)]) for o in options])
        scores = [float(watermark.score_tokens(row).values[-1]) for row in rows]
        ids.append(int(options[max(range(4), key=scores.__getitem__)]))
    return ids


def corpus(path: Path, contents: list[Any], field: str = "text") -> str:
    path.write_text("".join(json.dumps({"id": i, field: c}) + "\n" for i, c in enumerate(contents)))
    return str(path)


def test_watermarks_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECOND_KEY", "17")
    config = tmp_path / "keys.yaml"
    config.write_text(
        "watermarks:\n"
        "  - {name: ours, watermark: kgw, key_env: CAW_KEY}\n"
        "  - {name: old, watermark: kgw, key_env: SECOND_KEY}\n"
        "  - {name: partner, key: 15485863, format: transformers, vocab_size: 300}\n"
        "  - {name: layers, watermark: synthid, key: [654, 400]}\n"
        "  - {name: pair, watermark: exp, key: [0x0123456789abcdef, 7], format: sglang}\n"
    )
    source = corpus(tmp_path / "ids.jsonl", [marked_ids(caw.KGW(key=17), 80), list(range(80))], "ids")
    first, second = lines("--config", str(config), "--input", source, "--field", "ids")
    assert first["matches"] == ["old"] and first["is_watermarked"] and second["matches"] == []
    assert set(first["results"]) == {"ours", "old", "partner", "layers", "pair"} and first["p_values"]["ours"] > 1e-3
    table = run("--config", str(config), "--input", source, "--field", "ids").stdout
    assert "old" in table and KEY not in table and "15485863" not in table


BAD_CONFIGS = [
    ("nothing: 1", "must contain a list `watermarks`"),
    ("watermarks: [3]", "must be a mapping"),
    ("watermarks: [{watermark: nil, key: 1}]", "watermark must be one of"),
    ("watermarks: [{watermark: [kgw], key: 1}]", "watermark must be one of"),
    ("watermarks: [{key: 1, key_env: X}]", "one of key and key_env, got both"),
    ("watermarks: [{key_env: CAW_NO_SUCH_VARIABLE}]", "environment variable CAW_NO_SUCH_VARIABLE must hold the key"),
    ("watermarks: [{key: 1, top_k: 3}]", "'top_k' is not a parameter of kgw"),
    ("watermarks: [{name: a, key: 1}, {name: a, key: 2}]", "must use each name once"),
    ("watermarks: [{key: [1, 2]}]", "key must be an int below 2**64, a str or bytes, got list"),
    ("watermarks: [{key: 987654321, format: transformers}]", "requires vocab_size"),
    ("a: [", "is not valid YAML"),
]


@pytest.mark.parametrize("content, expected", BAD_CONFIGS)
def test_bad_key_lists(content: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(content)
    result = run("--config", str(tmp_path / "c.yaml"), "--text", "x")
    assert result.exit_code == 2 and expected in result.stderr and result.stderr.count("\n") == 1
    assert "987654321" not in result.stderr


REFUSED = [
    (["--text", "x", "--qq", "a.png"], "--qq requires --null-report"),
    (["--text", "x", "--normalize", "upper"], "normalize must name steps of"),
    (["--text", "x", "--format", "markllm", "--key", "5"], "requires vocab_size"),
    (["--text", "x", "--format", "klingon"], "format must be one of native"),
    (["--text", "x", "--weights", "no-such-table"], "weights must be a shipped table"),
    (["--text", "x", "--null-report", "y"], "got --text and --null-report"),
    (["--power", "y", "--html", "page.html"], "--html is per text and --power is about all texts together"),
    (["--null-report", "y", "--regions"], "--regions is per text and --null-report is about all texts together"),
    (["--text", "x", "--payload-bits", "8", "--mode", "compat"], "payloads require mode 'exact'"),
    (["--null-report", "y", "--payload-bits", "8"], "do not support payloads"),
    (["--text", "x", "--regions", "--payload-bits", "8"], "do not support payloads"),
    (["--text", "x", "--watermark", "recommended", "--mode", "compat"], "sub-keys are tried in mode 'exact'"),
    (["--text", "x", "--regions", "--mode", "compat"], "--regions requires --mode exact"),
    (["--text", "x", "--config", "c.yaml", "--gamma", "0.5"], "--config defines"),
]


@pytest.mark.parametrize("arguments, expected", REFUSED)
def test_refused(arguments: list[str], expected: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and expected in result.stderr and result.stderr.count("\n") == 1


def test_null_report(model: str, tmp_path: Path) -> None:
    texts = [f"{TEXT[0][i:]} {i} {TEXT[1][: 40 + i]}" for i in range(40)]
    source = corpus(tmp_path / "plain.jsonl", texts)
    (report,) = lines("--tokenizer", model, "--null-report", source)
    assert report["texts"] == 40 and [r["level"] for r in report["rates"]] == [1e-1, 1e-2, 1e-3, 1e-4]
    shown = run("--tokenizer", model, "--null-report", source)
    assert shown.exit_code == 0 and "unmarked texts" in " ".join(shown.stdout.split())
    short = corpus(tmp_path / "short.jsonl", [*texts, "", ""])
    (report,) = lines("--tokenizer", model, "--null-report", short)
    assert report["texts"] == 42 and report["without_evidence"] == 2
    shown = run("--tokenizer", model, "--null-report", short)
    assert "texts without evidence (p = 1): 2" in " ".join(shown.stdout.split())
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    plot = tmp_path / "qq.png"
    assert run("--tokenizer", model, "--null-report", source, "--qq", str(plot)).exit_code == 0
    assert plot.stat().st_size > 1000


def test_power(tmp_path: Path) -> None:
    watermark = caw.KGW(key=KEY)
    source = corpus(tmp_path / "marked.jsonl", [marked_ids(watermark, 60)] * 3, "ids")
    rows = lines("--watermark", "kgw", "--power", source, "--field", "ids")
    by = {(r["tokens"], r["fpr"]): r for r in rows}
    assert by[50, 1e-3]["measured"] == 1 and by[50, 1e-3]["expected"] > 0.9 and by[100, 1e-3]["measured"] is None
    assert "measured" in run("--power", source, "--field", "ids").stdout
    first = lines("--power", source, "--field", "ids")[2]  # of the recommended watermark: nothing is expected of it
    assert (first["measured"], first["expected"]) == (1, None)


def test_formats_and_texts_that_came_through_other_programs(model: str) -> None:
    vocab = ["--format", "transformers", "--vocab-size", "400", "--key", "7", "--tokenizer", model]
    text = TEXT[0]
    expected = caw.detect(text, tiny_tokenizer(), caw.KGW(key=7, format="transformers", vocab_size=400))
    (line,) = lines(*vocab, "--text", text)
    assert line["p_value"] == expected.p_value
    (line,) = lines(*vocab, "--text", "Prompt: " + text.replace(" ", "\u00a0"), "--normalize", "spaces",
                    "--prefix", "Prompt: ", "--mode", "compat")  # fmt: skip
    compat = caw.detect(
        " " + text, tiny_tokenizer(), caw.KGW(key=7, format="transformers", vocab_size=400), mode="compat"
    )
    assert line["z_score"] == compat.z_score


def test_what_a_table_says_of_each_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reedsolo", reason="needs reedsolo (pip install reedsolo)")
    monkeypatch.setenv("COLUMNS", "200")
    import torch

    watermark = caw.KGW(key=KEY, payload=77, payload_bits=8)
    ids, generator = [5], torch.Generator().manual_seed(1)
    while len(ids) < 150:
        options = torch.randint(0, 3000, (12,), generator=generator)
        green = watermark.green_tokens(torch.tensor([ids[-1:]]), options[None])[0]
        ids.append(int(options[int(green.int().argmax())]))
    loop = [7, 8, 9, 10, 11, 12] * 33
    source = ["--input", corpus(tmp_path / "ids.jsonl", [ids, loop, [1, 2]], "ids"), "--field", "ids"]
    shown = run(*source, "--payload-bits", "8").stdout
    assert "payload (least certain bit)" in shown and "77 (100 %)" in shown
    (one, *_) = lines(*source, "--payload-bits", "8")
    assert one["payload"] == 77 and one["message"].endswith("payload 77")
    source += ["--watermark", "kgw"]
    plain = run(*source).stdout
    assert "payload" not in plain and "too short to decide" in plain and "tokens scored" in plain
    assert "mostly repetition: repeated text counts once" in plain and "7 of 198" in plain
    (_, again, _) = lines(*source)
    assert again["mostly_repetition"] and again["num_repeated"] == 191 and "mostly repetition" in again["message"]
    page = tmp_path / "page.html"
    assert run(*source, "--html", str(page)).exit_code == 0
    assert "mostly repetition: 191 of its 198 tokens" in page.read_text()
    assert "This text is too short to decide" in page.read_text()


def test_regions_say_the_same_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ids = [*range(400, 2400), *marked_ids(caw.KGW(key=KEY), 80), *range(2400, 3400)]
    source = ["--input", corpus(tmp_path / "ids.jsonl", [ids, ids[:300]], "ids"), "--field", "ids"]
    page = tmp_path / "page.html"
    kgw = [*source, "--watermark", "kgw"]
    found, nothing = lines(*kgw, "--regions", "--html", str(page))
    assert found["is_watermarked"] and found["text_p_value"] > 1e-3 and found["message"].startswith("watermarked in a")
    assert not nothing["is_watermarked"] and nothing["regions"] == []
    assert "A part of this text carries the mark" in page.read_text()
    shown = run(*kgw, "--regions").stdout
    p, where = f"{found['p_value']:.2g}", found["regions"][0]
    assert p in shown and "corrected p-value" in shown and f"marked: tokens {where['start']} to {where['end']}" in shown
    assert "1 of 2 texts are watermarked" in shown
    config = tmp_path / "keys.yaml"
    config.write_text("watermarks: [{name: ours, key_env: CAW_KEY}, {name: other, key: 5}]")
    both, none = lines(*source, "--regions", "--config", str(config))
    assert both["matches"] == ["ours"] and both["p_values"]["ours"] == pytest.approx(2 * found["p_value"], rel=1e-12)
    assert both["results"]["ours"]["regions"] and not none["is_watermarked"]
    assert "ours" in run(*source, "--regions", "--config", str(config)).stdout


def test_a_file_without_lines_is_said_to_be_one(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for more in ([], ["--json"], ["--regions"]):
        result = run("--input", str(empty), *more)
        assert result.exit_code == 0 and result.stdout == ""
        assert result.stderr == f"caw: {empty} has no lines; nothing to test\n"
    empty.write_text("[]\n")
    result = run("--input", str(empty))
    assert result.exit_code == 1 and "no lines" not in result.stderr


def test_detection_weights(model: str, tmp_path: Path) -> None:
    config, table = tmp_path / "keys.yaml", tmp_path / "table.safetensors"
    config.write_text("watermarks: [{name: a, key: 11}, {name: b, key: 12}]")
    rows = [{"tokens": marked_ids(caw.KGW(key=k), 200), "key_id": caw.KGW(key=k).key_id} for k in (11, 12)]
    source = tmp_path / "marked.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["detection-weights", "--tokenizer", model, "-i", str(source), "--config", str(config), "-o", str(table)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and "token class" in result.stdout, result.stderr
    like = ["detection-weights", "--tokenizer", model, "--like", str(table), "-o", str(tmp_path / "like.safetensors")]
    assert CliRunner().invoke(app, like).exit_code == 0
    assert CliRunner().invoke(app, like[:3] + like[5:]).exit_code == 2
    source.write_text(json.dumps({**rows[0], "key_id": "00000000"}) + "\n" + json.dumps(rows[1]) + "\n")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "key_id must be in --config" in result.stderr
    ids = corpus(tmp_path / "ids.jsonl", [rows[1]["tokens"]], "ids")
    weighted = ["--input", ids, "--field", "ids", "--weights", str(table)]
    assert run(*weighted, "--key", "12").exit_code == 2  # the table was made with that key
    assert len(lines(*weighted, "--key", "13")) == 1


def test_generate_writes_payloads_formats_and_synthid(model: str) -> None:
    pytest.importorskip("reedsolo", reason="needs reedsolo (pip install reedsolo)")
    for mark in (
        ["--watermark", "exp", "--payload", "3", "--payload-bits", "4"],
        ["--watermark", "kgw", "--format", "transformers", "--seeding", "selfhash", "--key", "77"],
        ["--watermark", "synthid"],
    ):
        command = ["generate", "--model", model, "--prompt", "the sky", "--max-new-tokens", "8", *mark]
        result = CliRunner().invoke(app, command, env={"CAW_KEY": KEY})
        assert result.exit_code == 0 and result.stdout.strip(), result.stderr
    refused = ["generate", "--model", model, "--prompt", "x", "--payload-bits", "4"]
    result = CliRunner().invoke(app, refused, env={"CAW_KEY": KEY})
    assert result.exit_code == 2 and "requires a payload, got none" in result.stderr
