"""C2PA manifests, on the way out and back, and read by a validator of others.

The packages are no part of the test environment: `make gate NAME=c2pa` installs them and runs all of this there.
"""

import base64
import json
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from cli.running import assert_refused, run
from environments import environment
from serve.serving import KEY, NAME, Running, running
from serve.test_page import ask, urlencode
from tiny import save_tiny

from caw.manifest import AIGC_LABEL, CHANGED, OTHER, TRUSTED, UNKNOWN, WRAPPER, Signer, bare, read
from caw.requirements import there

needs_c2pa = pytest.mark.skipif(not there("c2pa") or not there("c2pa_text"), reason="c2pa is not installed")
INSIDE = {"extra_body": {"embed_manifest": True}}
NEW = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /O=Test/CN={0} -keyout {0}.key "
    "-out {0}.pem -addext keyUsage=critical,{1}"
)
ISSUED = (
    "digitalSignature -addext extendedKeyUsage=1.3.6.1.4.1.62558.2.1 -addext basicConstraints=critical,CA:false -CA "
    "issuer.pem -CAkey issuer.key"
)


@dataclass
class Papers:
    """An issuer's certificate, and a signer's, with the issuer's behind it and its key, in files of a folder."""

    folder: Path

    def __post_init__(self) -> None:
        for command in (NEW.format("issuer", "keyCertSign"), NEW.format("signer", ISSUED)):
            subprocess.run(command.split(), cwd=self.folder, check=True, capture_output=True)
        (self.folder / "chain.pem").write_text(self.text("signer.pem") + self.text("issuer.pem"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def signing(papers: Papers) -> Iterator[Running]:
    signer = Signer(papers.text("chain.pem"), papers.text("signer.key"))
    options = {"c2pa_certificate": papers.path("chain.pem"), "c2pa_key": papers.path("signer.key")}
    with running(signer=signer, aigc_producer="P1", **options) as found:
        yield found


@needs_c2pa
def test_every_text_has_a_manifest_beside_it_and_inside_on_request(signing: Running, papers: Papers) -> None:
    asked = {"model": NAME, "prompt": "the sky", "temperature": 0, "max_tokens": 100}
    answer = signing.client().completions.with_raw_response.create(**asked, n=2)
    told = json.loads(answer.text)
    for choice, receipt, manifest in zip(
        told["choices"], told["caw"]["receipts"], told["caw"]["manifests"], strict=True
    ):
        link = f'</v1/manifests/{receipt}>; rel="c2pa-manifest"; type="application/c2pa"'
        assert link in answer.headers["link"].split(", ")
        with urllib.request.urlopen(f"{signing.server.url}/v1/manifests/{receipt}") as sidecar:
            assert base64.b64encode(sidecar.read()).decode() == manifest
        record = read(choice["text"], papers.text("issuer.pem"), base64.b64decode(manifest))
        assert record is not None and (record.state, record.receipt) == (TRUSTED, receipt)
        assert record.about["mark"]["format"]["name"] == "kgw" and "key" not in record.about["mark"]["format"]
        assert choice["text"].endswith(AIGC_LABEL) and "continuations" not in told["caw"]
    assert told["caw"]["AIGC"][0] | {"Label": "1", "ContentProducer": "P1"} == told["caw"]["AIGC"][0]
    once, inside = told["choices"][0]["text"], signing.complete("the sky", max_tokens=100, **INSIDE)
    assert WRAPPER.sub("", inside.choices[0].text) == once and signing.log.closed[-1].marked
    events = list(signing.client().completions.create(**asked, stream=True, **INSIDE))
    streamed = "".join(event.choices[0].text for event in events)
    assert len(streamed) > len(once) + 3000 and bare(streamed) == once.removesuffix(AIGC_LABEL)
    assert [bool((event.model_extra or {}).get("caw")) for event in events[-2:]] == [False, True]
    with pytest.raises(openai.BadRequestError, match="a new text that is no JSON"):
        signing.complete(
            "x", max_tokens=9, extra_body={**INSIDE["extra_body"], "response_format": {"type": "json_object"}}
        )


@needs_c2pa
def test_both_layers_are_read_and_neither_counts_for_the_other(
    signing: Running, papers: Papers, tmp_path: Path
) -> None:
    text = signing.complete("the sky", max_tokens=150, **INSIDE).choices[0].text
    plain = bare(text)
    found = [
        signing.service.detection._tested(each, signing.service.directory.tenants["one"], False)
        for each in (text, plain)
    ]
    assert found[0].found.p_value == found[1].found.p_value and found[0].undone == "" and found[1].record is None
    assert found[0].record.state == TRUSTED and found[0].as_dict()["manifest"]["about"]["marked"] is True
    _, _, page = ask(signing, body=urlencode({"text": text, "key": "one"}), query="?lang=de")
    assert "Das C2PA-Manifest von Test (signer) passt zu diesem Text." in page
    save_tiny(tmp_path / "model")
    options = ["detect", "--tokenizer", str(tmp_path / "model"), "--watermark", "kgw", "--fpr", "1e-3"]
    said = run(*options, "--text", text, "--c2pa-trust", papers.path("issuer.pem"), key=str(KEY))
    assert said.exit_code == 0 and "(certificate trusted), fits this text; it names" in said.stdout, said.stderr
    of_both = [json.loads(run(*options, "--json", "--text", each, key=str(KEY)).stdout) for each in (text, plain)]
    assert of_both[0].pop("manifest")["state"] == UNKNOWN and of_both[0] == of_both[1]
    for changed, state in (
        (text.replace("e", "a", 1), OTHER), (text[:-9], CHANGED), (text + text[len(plain) :], CHANGED),
        (text + "\n", UNKNOWN), (text[:-1500] + "\U000e0150" + text[-1499:], CHANGED), (f"{text} more", OTHER),
    ):  # fmt: skip
        record = read(changed)
        assert record is not None and record.state == state, (state, record)
        assert record.message in run(*options, "--text", changed, key=str(KEY)).stdout
    # what a prompt holds reaches the model as it is, and is not taken for the answer's
    ids = signing.service.prompts._encode(text, whole=False)
    assert signing.service.planned.tokenizer.decode(ids) == text
    assert read(signing.complete(text[len(plain) : len(plain) + 20], max_tokens=20).choices[0].text) is None


@needs_c2pa
def test_papers_that_do_not_fit_are_refused_at_the_start(papers: Papers, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for certificate, key, why in (
        ("chain.pem", "issuer.key", "a C2PA certificate must be valid today"), 
        ("issuer.pem", "issuer.key", "self-signed"),
        ("chain.pem", "chain.pem", "a C2PA key must be"), (str(tmp_path / "empty.pem"), "signer.key", "COSE"),
        ("gone.pem", "signer.key", "gone.pem"),
    ):  # fmt: skip
        files = ["--c2pa-certificate", str(papers.folder / certificate), "--c2pa-key", papers.path(key)]
        assert_refused(run("serve", "--model", "x", *files), why)


def test_without_the_packages_one_sentence_says_so(monkeypatch: Any) -> None:
    monkeypatch.setattr("caw.manifest.there", lambda module: False)
    text = "plain\ufeff\U000e0133\U000e0122\U000e0140\U000e0131\U000e0144\U000e0148\U000e0144\ufe00\ufe01"
    record = read(text)
    assert (
        record is not None and "c2pa-python is required for C2PA manifests" in record.message and bare(text) == "plain"
    )
    with pytest.raises(ImportError, match=r"pip install 'caw-watermark\[c2pa\]'"):
        Signer("", "")
    assert_refused(run("serve", "--model", "x", "--c2pa-key", "k"), "c2pa_certificate and c2pa_key require each other")


@needs_c2pa
def test_a_validator_of_others_accepts_what_is_inside(papers: Papers) -> None:
    c2patxt = pytest.importorskip("c2patxt")
    signer = Signer(papers.text("chain.pem"), papers.text("signer.key"))
    for text in ("plain words", "caf\u00e9 \u4e2d", "cafe\u0301 that is not composed", "x" * 70_000):
        wrapper = signer.sign(text, {"receipt": "1", "marked": True}, inside=True)[1]
        assert c2patxt.verify(text + wrapper).state == c2patxt.Provenance.VALID
        assert c2patxt.verify(f"a{text}{wrapper}").state == c2patxt.Provenance.INVALID
        assert c2patxt.strip(text + wrapper) == bare(text + wrapper) == text


@pytest.mark.gate("c2pa")
def test_it_all_holds_where_the_packages_are(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", "c2pa-python>=0.38", "c2pa-text>=3.0", "c2patxt==0.2.0")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", __file__, "--all-cases"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout and "SKIPPED" not in done.stdout, done.stdout[-4000:]
