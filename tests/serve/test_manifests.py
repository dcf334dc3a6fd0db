"""C2PA manifests on their way out and back, and read by a validator of others; China's labels.

The packages are no part of the test environment: `make gate NAME=c2pa` installs them and runs all of this there.
"""

import base64
import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest
from cli.running import assert_refused, run
from environments import environment
from serve.serving import KEY, NAME, running
from serve.test_page import ask, urlencode
from tiny import save_tiny

from caw.detectable.receipts import text_digest
from caw.manifest import AIGC_LABEL, CHANGED, OTHER, TRUSTED, UNKNOWN, WRAPPER, Signer, bare, read
from caw.requirements import there

needs_c2pa = pytest.mark.skipif(not there("c2pa") or not there("c2pa_text"), reason="c2pa is not installed")
INSIDE = {"embed_manifest": True}
NEW = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /O=Test/CN={0} -keyout {0}.key "
    "-out {0}.pem -addext keyUsage=critical,{1}"
)
ISSUED = (
    "digitalSignature -addext extendedKeyUsage=1.3.6.1.4.1.62558.2.1 -addext basicConstraints=critical,CA:false -CA "
    "issuer.pem -CAkey issuer.key"
)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an issuer's certificate, a signer's, that with the issuer's behind it, and the keys."""
    folder = tmp_path_factory.mktemp("papers")
    for command in (NEW.format("issuer", "keyCertSign"), NEW.format("signer", ISSUED)):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "chain.pem").write_text((folder / "signer.pem").read_text() + (folder / "issuer.pem").read_text())
    return folder


def signer_of(papers: Path) -> Signer:
    return Signer((papers / "chain.pem").read_text(), (papers / "signer.key").read_text())


@needs_c2pa
def test_both_layers_go_out_and_come_back(papers: Path, tmp_path: Path, monkeypatch: Any) -> None:
    files = {"c2pa_certificate": str(papers / "chain.pem"), "c2pa_key": str(papers / "signer.key")}
    trust, asked = (papers / "issuer.pem").read_text(), {"model": NAME, "prompt": "the sky", "temperature": 0}
    with running(aigc_producer="P1", **files) as served:
        answer = served.client().completions.with_raw_response.create(**asked, n=2, max_tokens=150)
        told, links = json.loads(answer.text), answer.headers["link"].split(", ")
        for choice, receipt, manifest in zip(
            told["choices"], told["caw"]["receipts"], told["caw"]["manifests"], strict=True
        ):
            assert f'</v1/manifests/{receipt}>; rel="c2pa-manifest"; type="application/c2pa"' in links
            with urllib.request.urlopen(f"{served.server.url}/v1/manifests/{receipt}") as sidecar:
                assert base64.b64encode(sidecar.read()).decode() == manifest
            record = read(choice["text"], trust, base64.b64decode(manifest))
            assert record is not None and (record.state, record.receipt) == (TRUSTED, receipt)
            assert record.about["mark"]["format"]["name"] == "kgw" and "key" not in record.about["mark"]["format"]
        text = served.complete("the sky", max_tokens=150, extra_body=INSIDE).choices[0].text
        assert WRAPPER.sub("", text) == told["choices"][0]["text"] and AIGC_LABEL in text
        events = list(served.client().completions.create(**asked, max_tokens=150, stream=True, extra_body=INSIDE))
        streamed = "".join(event.choices[0].text for event in events)
        assert bare(streamed) == bare(text) != streamed and read(streamed, trust).state == TRUSTED  # type: ignore[union-attr]
        assert ["caw" in (event.model_extra or {}) for event in events[-2:]] == [False, True]
        one, plain = served.service.directory.tenants["one"], bare(text)
        found = [served.service.detection._tested(each, one, False) for each in (text, plain)]
        assert found[0].found.p_value == found[1].found.p_value and not found[0].undone and found[1].record is None
        assert found[0].as_dict()["manifest"]["state"] == TRUSTED and "fits this text" in found[0].as_dict()["message"]
        _, _, page = ask(served, body=urlencode({"text": text, "key": "one"}), query="?lang=de")
        assert "Das C2PA-Manifest von Test (signer) passt zu diesem Text." in page
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": None}}
        given: Any = {"messages": [{"role": "user", "content": "f?"}], "tools": [tool], "tool_choice": "required"}
        call = served.client().chat.completions.with_raw_response.create(model=NAME, max_tokens=60, **given)
        assert "link" not in call.headers and "manifests" not in json.loads(call.text)["caw"]
        # what a prompt holds reaches the model as it is, and is not taken for the answer's
        ids = served.service.prompts._encode(text, whole=False)
        assert served.service.planned.tokenizer.decode(ids) == text
        wrapper = text[len(plain) + len(AIGC_LABEL) :]
        assert read(served.complete(wrapper[:20], max_tokens=20).choices[0].text) is None
        with pytest.raises(openai.BadRequestError, match="a new text, no JSON"):
            served.complete("x", max_tokens=9, extra_body={**INSIDE, "response_format": {"type": "json_object"}})
        monkeypatch.setattr(served.service.signer, "sign", lambda *text, **more: 1 / 0)
        with pytest.raises(openai.InternalServerError, match="manifest could not be signed; ask the server's operator"):
            served.complete("x", max_tokens=9)
    save_tiny(tmp_path / "model")
    options = ["detect", "--tokenizer", str(tmp_path / "model"), "--watermark", "kgw", "--fpr", "1e-3"]
    of_both = [json.loads(run(*options, "--json", "--text", each, key=str(KEY)).stdout) for each in (text, plain)]
    assert of_both[0].pop("manifest")["state"] == UNKNOWN and of_both[0] == of_both[1]
    (tmp_path / "beside").write_bytes(base64.b64decode(manifest))
    known = ["--c2pa-trust", str(papers / "issuer.pem"), "--manifest", str(tmp_path / "beside")]
    said = run(*options, *known, "--text", choice["text"], key=str(KEY))
    assert "(certificate trusted), fits this text; it names receipt" in said.stdout, said.stderr
    for changed, state in (
        (text.replace("e", "a", 1), OTHER), (text[:-9], CHANGED), (text + wrapper, CHANGED), (f"{text} more", OTHER),
        (text + "\n", UNKNOWN), (text[:-1500] + "\U000e0150" + text[-1499:], CHANGED),
    ):  # fmt: skip
        record = read(changed)
        assert record is not None and record.state == state, (state, record)
        assert record.message in run(*options, "--text", changed, key=str(KEY)).stdout


@needs_c2pa
def test_papers_that_do_not_fit_are_refused_at_the_start(papers: Path) -> None:
    for certificate, key, why in (
        ("chain.pem", "issuer.key", "a C2PA certificate must be valid"), ("issuer.pem", "issuer.key", "self-signed"),
        ("chain.pem", "chain.pem", "a C2PA key must be"), ("signer.key", "signer.key", "is invalid"),
        ("gone", "x", "gone"),
    ):  # fmt: skip
        files = ["--c2pa-certificate", str(papers / certificate), "--c2pa-key", str(papers / key)]
        assert_refused(run("serve", "--model", "x", *files), why)
    (papers / "damaged").write_text((papers / "issuer.pem").read_text().replace("M", "", 1))
    assert_refused(run("detect", "--text", "x", "--c2pa-trust", str(papers / "damaged")), "--c2pa-trust must be a PEM")


@needs_c2pa
def test_a_validator_of_others_accepts_what_is_inside(papers: Path) -> None:
    c2patxt, signer = pytest.importorskip("c2patxt"), signer_of(papers)
    for text in ("plain words", "caf\u00e9 \u4e2d", "cafe\u0301 that is not composed", "x" * 70_000):
        signed = text + signer.sign(text, {"receipt": "1", "marked": True}, inside=True)[1]
        states = [c2patxt.verify(each).state for each in (signed, f"a{signed}")]
        assert states == [c2patxt.Provenance.VALID, c2patxt.Provenance.INVALID]
        assert c2patxt.strip(signed) == bare(signed) == text


def test_labels_need_no_packages_and_manifests_say_which(monkeypatch: Any) -> None:
    with running(aigc_producer="P1") as served:
        answer = served.complete("the sky", max_tokens=20)
        [label], text = answer.caw["AIGC"], answer.choices[0].text
        assert (label["Label"], label["ContentProducer"], label["ProduceID"]) == ("1", "P1", answer.caw["receipts"][0])
        assert text.endswith(AIGC_LABEL) and "continuations" not in answer.caw
        served.idle()
        assert served.log.closed[-1].digest == text_digest(bare(text))
        with pytest.raises(openai.BadRequestError, match="requires a server with a certificate"):
            served.complete("x", max_tokens=9, extra_body=INSIDE)
    monkeypatch.setattr("caw.manifest.there", lambda module: False)
    held = "plain\ufeff\U000e0133\U000e0122\U000e0140\U000e0131\U000e0144\U000e0148\U000e0144\ufe00\ufe01"
    record = read(held)
    assert record is not None and "c2pa-python is required for C2PA manifests" in record.message
    assert bare(held) == "plain"
    with pytest.raises(ImportError, match=r"pip install 'caw-watermark\[c2pa\]'"):
        Signer("", "")
    assert_refused(run("serve", "--model", "x", "--aigc-producer", " "), "got a blank text; leave it out")
    assert_refused(run("serve", "--model", "x", "--c2pa-key", "k"), "c2pa_certificate and c2pa_key require each other")


@pytest.mark.gate("c2pa")
def test_it_all_holds_where_the_packages_are(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", "c2pa-python>=0.38", "c2pa-text>=3.0", "c2patxt==0.2.0")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", __file__, "--all-cases"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout and "SKIPPED" not in done.stdout, done.stdout[-4000:]
