"""`caw keys` and `caw audit`, from the first key to a report."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.running import assert_refused
from registry.samples import begun, closed
from typer.testing import CliRunner

from caw.cli import app
from caw.detectable.receipts import text_digest
from caw.manifest import AIGC_LABEL
from caw.registry import open_registry
from caw.registry.master_key import MasterKeys, new_master_key

pytestmark = pytest.mark.usefixtures("environment")
MASTER = new_master_key()


@pytest.fixture
def caw(tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 'keys.db'}"

    def run(*arguments: str, **environment: str | None) -> Any:
        given = {"CAW_REGISTRY": url, "CAW_MASTER_KEY": MASTER, "CAW_MASTER_KEY_FILE": None, **environment}
        done = CliRunner().invoke(app, list(arguments), env=given)
        assert MASTER not in done.output
        return done

    run.url = url  # type: ignore[attr-defined]
    return run


def listed(caw: Any, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in caw("keys", "list", "--json", *options).stdout.splitlines()]


def test_keys_from_the_first_to_the_last(caw: Any) -> None:
    made = caw("keys", "create", "acme", "--public")
    assert made.exit_code == 0 and made.stdout.startswith("marking key "), made.output
    old = made.stdout.split()[2]
    token = caw("keys", "create", "acme", "--api", "--opt-out")
    id = token.stdout.split("_")[1]
    assert token.stdout.startswith("caw_") and token.stdout.count("\n") == 1 and f"API key {id} of acme" in token.stderr
    assert token.stdout.strip() not in token.stderr
    turned = caw("keys", "rotate", "acme")
    new = turned.stdout.split()[2]
    assert f"instead of {old}" in turned.stdout
    assert caw("keys", "rotate", id).stdout.startswith("caw_")
    assert (
        caw("keys", "revoke", new).exit_code == caw("keys", "create", "globex", "--from", "2090-01-01").exit_code == 0
    )
    rows = listed(caw)
    assert {(r["kind"], r["id"], r["state"]) for r in rows} >= {
        ("marking", old, "over"), ("marking", new, "revoked"), ("api", id, "over"),
    }  # fmt: skip
    assert [r["state"] for r in listed(caw, "--tenant", "globex")] == ["waiting"]
    table = caw("keys", "list").stdout
    assert all(row["id"] in table for row in rows) and "public" in table and "may opt out" in table
    secrets = {"secret", "digest", "key", "token"}
    assert not any(secrets & set(row) for row in rows)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_a_list_fits_its_terminal(caw: Any, columns: str) -> None:
    names = ("acme", "an-operator.whose-name_is-as-long-as.names-may-be-in.registry")
    window = ("--from", "2030-01-01", "--until", "2090-01-02")
    for name in names:
        caw("keys", "create", name, "--watermark", "unigram", "--public", *window)
        caw("keys", "create", name, "--api", "--opt-out", *window[2:])
    rows = listed(caw)
    shown = caw("keys", "list", COLUMNS=columns).stdout
    assert max(map(len, shown.splitlines())) <= int(columns)
    for row in rows:
        [line] = [line for line in shown.splitlines() if row["id"] in line]
        assert f" {row['state']} " in line and "2090-01-02" in line and row["tenant"][:8] in line
        assert ("2090-01-02 00:00" in line) == (columns == "120")
    assert len(rows) == 4 and shown.count("may opt out") == shown.count("public") == 2


def test_texts_are_tested_under_the_keys_of_a_registry(caw: Any, model: str, tmp_path: Path) -> None:
    options = ("--watermark", "kgw", "--gamma", "0.5", "--key-env", "OLD")
    old = caw("keys", "create", "acme", *options, OLD="7").stdout.split()[2]
    caw("keys", "rotate", "acme")
    caw("keys", "create", "acme", "--from", "2090-01-01")
    exp = caw("keys", "create", "globex", "--watermark", "exp").stdout.split()[2]
    assert [r["watermark"]["name"] for r in listed(caw)] == ["kgw", "kgw", "exp", "kgw"]
    text = caw("generate", "--model", model, "--gamma", "0.5", "--policy", "fixed", "--max-new-tokens", "120",
               "--prompt", "the sky", CAW_KEY="7").stdout.removesuffix("\n")  # fmt: skip
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": t, "id": i}) + "\n" for i, t in enumerate((text, "people " * 9, 5))))
    asked = ("detect", "--tokenizer", model, "--input", str(lines), "--registry", caw.url)
    done = caw(*asked, "--json")
    marked, plain = (json.loads(line) for line in done.stdout.splitlines())
    assert done.exit_code == 1 and "line 3" in done.stderr, "a line without a text"
    [match] = marked["matches"]
    assert marked["is_watermarked"] and match["key_id"] == old and match["watermark"] == "kgw" and marked["keys"] == 3
    assert marked["p_value"] == pytest.approx(1 - (1 - match["p_value"]) ** 3, rel=1e-6)
    assert not plain["is_watermarked"] and plain["matches"] == []
    shown = caw(*asked, "--tenant", "acme").stdout
    assert old in shown and "too short" in shown and "1 of 2 texts are watermarked" in shown
    only = caw("detect", "--tokenizer", model, "--text", text, "--registry", caw.url, "--tenant", "globex")
    assert only.exit_code == 0 and "no watermark found" in only.stdout and "1 key tried" in only.stdout
    assert exp not in only.stdout
    for strange, said in (
        (("--gamma", "0.5"), "got --gamma as well"), (("--regions",), "got --regions as well"),
        (("--key", "7"), "got --key or CAW_KEY as well"),
        (("--tenant", "nobody"), "tenant 'nobody' must have marking keys, found none"),
    ):  # fmt: skip
        assert_refused(caw(*asked, *strange), said)
    assert_refused(caw("detect", "--text", "x", "--tenant", "acme"), "a registry is required, got none")


def test_a_server_marks_with_what_its_keys_say(caw: Any) -> None:
    caw("keys", "create", "acme", "--watermark", "exp", "--top-k-exp", "3")
    caw("keys", "create", "acme", "--watermark", "kgw", "--from", "2090-01-01")
    serve = ("serve", "--model", "no-such-model", "--registry", caw.url)
    asked = [caw(*serve, "--policy", "fixed", "--detectable-at", level).stderr for level in ("2e-3", "1e-3")]
    assert "--detectable-at 0.002 is above 0.001" in asked[0] and "above" not in asked[1]
    said = caw(*serve, "--policy", "fixed").stderr
    assert "marking with exp (top_k 3)" in said and "will mark with KGW(" in said and "from 2090-01-01" in said
    assert (
        "marking with exp (top_k 5)"
        in caw(*serve, "--policy", "fixed", "--watermark", "exp", "--top-k-exp", "5").stderr
    )
    assert_refused(caw(*serve, "--watermark", "kgw"), "one server marks with one watermark, got KGW(")
    caw("keys", "create", "globex")  # like the key that marks now
    assert "marking with exp (top_k 3)" in caw(*serve, "--policy", "fixed").stderr
    caw("keys", "create", "globex", "--watermark", "kgw")
    assert_refused(caw(*serve), "one server marks with one watermark, got EXP(")


def test_keys_that_no_server_marks_with_together_are_warned_of(caw: Any) -> None:
    first = caw("keys", "create", "acme", "--target", "1e-4", "--evaluator", "smollm2-135m")
    assert (first.exit_code, first.stderr) == (0, "")
    said = {"name": "recommended", "target": 1e-4, "evaluator": "smollm2-135m"}
    assert listed(caw)[0]["watermark"] == said
    same = caw("keys", "create", "globex")
    assert (same.exit_code, same.stderr) == (0, "") and listed(caw)[1]["watermark"] == said
    other = caw("keys", "create", "initech", "--watermark", "kgw", "--subkeys", "16")
    assert other.exit_code == 0 and other.stdout.startswith("marking key ")
    assert other.stderr.startswith("caw: warning: `caw serve` will not start with these keys: one server marks with")
    assert_refused(caw("serve", "--model", "no-such-model", "--registry", caw.url), "one server marks with one water")
    waiting = caw("keys", "create", "hooli", "--watermark", "kgw", "--from", "2090-01-01")
    assert "hooli" not in waiting.stderr, "it marks from then on, and a server says so"


def test_rules_and_resealing(caw: Any) -> None:
    caw("keys", "create", "acme")
    said = caw("keys", "rules", "acme", "--detectable-at", "1e-4", "--exempt-tools")
    assert "detectable_at=0.0001" in said.stdout and "exempt_tools=True" in said.stdout
    assert caw("keys", "rules", "acme", "--server").stdout == "acme: the rules of the server\n"
    new = new_master_key()
    assert caw("keys", "reseal", CAW_MASTER_KEY=f"{new} {MASTER}").stdout == "1 secrets re-encrypted\n"
    assert caw("keys", "rotate", "acme", CAW_MASTER_KEY=new).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("keys", "list", "--tenant", "x"), "must be a registry, found none"),
        (("keys", "create", "a b"), "tenant must be 1 to 63 letters"),
        (
            ("keys", "create", "acme", "--from", "tomorrow"),
            "--from must be a time, got 'tomorrow'; write e.g. 2027-01-31T12:00",
        ),
        (("keys", "create", "acme", "--watermark", "kgw", "--target", "1e-4"), "--target is only for watermark recom"),
        (("keys", "create", "acme", "--evaluator", ""), "evaluator must name an evaluator, got ''"),
        (("keys", "create", "acme", "--api", "--target", "1e-4"), "--target is only for marking keys"),
        (("keys", "create", "acme", "--opt-out"), "--opt-out is only for API keys"),
        (("keys", "create", "acme", "--api", "--public"), "--public is only for marking keys"),
        (("keys", "create", "acme", "--key-env", "NOWHERE"), "environment variable NOWHERE must hold a key"),
        (("keys", "create", "acme", "--api"), "tenant acme must have a marking key"),
        (("audit", "report", "--unmarked", "x"), "--unmarked and --tokenizer are both required"),
    ],
)
def test_bad_usage_is_one_sentence(caw: Any, arguments: tuple[str, ...], expected: str) -> None:
    assert_refused(caw(*arguments), expected)


def test_a_registry_and_a_master_key_are_asked_for(caw: Any) -> None:
    assert_refused(caw("keys", "list", CAW_REGISTRY=None), "give --registry sqlite:///keys.db or set CAW_REGISTRY")
    assert_refused(caw("keys", "create", "acme", CAW_MASTER_KEY=None), "a master key is required in CAW_MASTER_KEY")
    assert_refused(caw("keys", "create", "acme", CAW_REGISTRY="keys.db"), "the registry must be a URL")


def test_export_and_verification(caw: Any, tmp_path: Path) -> None:
    caw("keys", "create", "acme")
    opened = open_registry(caw.url, MasterKeys.read({"CAW_MASTER_KEY": MASTER}))
    opened.receipts.begin(begun("one")).close(closed())
    opened.receipts.begin(begun("two"))
    file = tmp_path / "receipts.jsonl"
    assert caw("audit", "export", "-o", str(file)).exit_code == 0
    assert caw("audit", "export").stdout == file.read_text()
    key = caw("audit", "public-key").stdout.strip()
    done = caw("audit", "verify", str(file), "--public-key", key)
    assert done.exit_code == 0 and done.stderr == ""
    held = json.loads(done.stdout)
    assert (held["entries"], held["begun"], held["closed"], held["open"]) == (4, 2, 1, ["two"])
    assert held["public_keys"] == [key]
    assert "without --public-key" in caw("audit", "verify", str(file)).stderr
    assert caw("audit", "public-key", "--rotate").stdout.strip() == key  # the first one stays the one to verify with
    opened.receipts.begin(begun("three"))
    later = tmp_path / "later.jsonl"
    caw("audit", "export", "-o", str(later))
    assert caw("audit", "verify", str(later), "--after", str(file), "--public-key", key).exit_code == 0
    assert caw("audit", "export", "--after", "4").stdout == "".join(later.read_text().splitlines(keepends=True)[4:])
    assert_refused(caw("audit", "verify", str(file), "--after", str(later), "--public-key", key), "was cut off")
    file.write_bytes(b"\xff\n")
    assert_refused(caw("audit", "verify", str(file)), "line 1 of")
    opened.close()


def test_a_report(caw: Any, model: str, tmp_path: Path) -> None:
    id = caw("keys", "create", "acme").stdout.split()[2]
    texts = [f"text {n} of the service " * 80 for n in range(3)]
    opened = open_registry(caw.url, MasterKeys.read({"CAW_MASTER_KEY": MASTER}))
    for number, text in enumerate(texts[:2]):
        opened.receipts.begin(begun(str(number), key_id=id)).close(closed(digest=text_digest(text)))
    opened.receipts.begin(begun("plain", key_id="", unmarked="<script>alert(1)</script>"))
    opened.close()
    unmarked, marked, page = (tmp_path / name for name in ("unmarked.jsonl", "marked.jsonl", "report.html"))
    unmarked.write_text("".join(json.dumps({"text": f"people wrote this, number {n}"}) + "\n" for n in range(20)))
    marked.write_text("".join(json.dumps({"text": text + AIGC_LABEL}) + "\n" for text in texts))  # as they are served
    done = caw("audit", "report", "--tokenizer", model, "--unmarked", str(unmarked), "--marked", str(marked),
               "--html", str(page))  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    [key] = report["keys"]
    assert (key["id"], key["marked"], report["strangers"]) == (id, 2, 1)
    assert key["receipts"]["complete"] == 2 and key["null"]["texts"] == 20
    assert [p["edits"] for p in key["power"]] == ["", "word-d:0.1", "word-d:0.3", *[""] * (len(key["power"]) - 3)]
    shown = page.read_text()
    assert id in shown and "&lt;script&gt;alert(1)" in shown and "<script" not in shown
    assert "30 % of the words deleted" in shown and report["chain"]["last"] in shown
    marked.write_text('{"no": "text"}\n')
    bad = caw("audit", "report", "--tokenizer", model, "--unmarked", str(unmarked), "--marked", str(marked))
    assert_refused(bad, "line 1 must be")


def test_a_blank_key_is_not_registered(caw: Any) -> None:
    assert_refused(caw("keys", "create", "acme", "--key-env", "OWN", OWN="  "), "key must have a visible character")
    assert not Path(caw.url.removeprefix("sqlite:///")).exists()
