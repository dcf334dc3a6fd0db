"""The page without a browser: what it says to whom, and that nothing in a text or a request becomes markup."""

import base64
import hashlib
import html
import http.client
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from html_reader import Reader
from serve.serving import DIRECTORY, KEY, MARK, OTHER, Running, alone, parts, running
from serve.test_detecting import UNMARKED, Keys

import caw
from caw.io.show import visible
from caw.serve.contracts import MarkKey, SingleTenant, Tenant
from caw.serve.languages import LANGUAGES

HOSTILE = "</textarea><script>alert(1)</script><b onclick=x>{{ 7 * 7 }}</b>\u202edrawkcab\u200b \x1b[0m &amp; \x00"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def one() -> Iterator[Running]:
    """A server without a registry: whoever asks is its one tenant."""
    with running(directory=SingleTenant(Tenant("default", MarkKey("k1", KEY)))) as found:
        yield found


@pytest.fixture(scope="module")
def marked() -> str:
    return alone("the sky", key=KEY, max_new_tokens=200)[0]


def ask(served: Running, method: str = "POST", body: str | bytes = b"", **headers: str) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    path = f"/{headers.pop('query', '')}"
    connection.request(
        method, path, body, {**FORM, **{name.replace("_", "-"): value for name, value in headers.items()}}
    )
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()


def test_the_one_tenant_sees_its_tokens(one: Running, marked: str) -> None:
    """Browsers send CR LF for a line break: the test is that of the text itself."""
    text = f"{marked}\nand more"
    status, _, page = ask(one, body=urlencode({"text": text.replace("\n", "\r\n")}))
    read, expected = Reader(page), caw.detect(text, parts()[1], MARK.with_key(KEY))
    assert status == 200 and read.text["verdict"] == "Marked"
    assert all(form in read.text["text"] for form in (text, visible(text))), "in the field, and drawn"
    assert f"{expected.num_scored} of {expected.num_tokens} count;\n{expected.score:.0f} of these are green" in page
    assert f"<dd>{expected.p_value:.2g}; threshold" in page and "<dd>k1</dd>" in page
    assert [given for tag, given in read.tags if tag == "details"] == [{"open": None}]
    shades = [given["class"] for tag, given in read.tags if tag == "span" and given["class"] != "p2"]
    assert set(shades) >= {"m1", "again"}


def test_what_was_not_found_is_said_without_claiming_more(one: Running) -> None:
    read = Reader(ask(one, body=urlencode({"text": UNMARKED}))[2])
    assert read.text["verdict"] == "No mark found" and "It may be unmarked, or marked and" in read.text["answer"]
    assert read.text["title"].startswith("No mark found: ")
    read = Reader(ask(one, body=urlencode({"text": "two words"}))[2])
    assert read.text["verdict"] == "Too short to decide" and "must count" in read.text["answer"]


def test_a_text_stays_text(one: Running) -> None:
    page = ask(one, body=urlencode({"text": HOSTILE + UNMARKED}))[2]
    read = Reader(page)
    assert not read.open and not {"script", "b"} & {tag for tag, _ in read.tags}
    assert not any(name.startswith("on") for _, given in read.tags for name in given)
    assert "{{ 7 * 7 }}" in read.text["text"] and "49" not in read.text["text"]
    area = re.search(r"<textarea[^>]*>\n(.*)</textarea>", page, re.DOTALL)
    assert area is not None and html.unescape(area[1]) == HOSTILE + UNMARKED and "<" not in area[1]


def test_the_policy_allows_this_style_and_nothing_else(one: Running) -> None:
    status, headers, page = ask(one, "GET")
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    rules = headers["content-security-policy"].split("; ")
    assert status == 200 and set(rules) == {
        "default-src 'none'", f"style-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'self'",
        "frame-ancestors 'none'",
    }  # fmt: skip
    assert " style=" not in page and "http" not in page.replace("http-equiv", "")
    assert headers["referrer-policy"] == "same-origin", "browsers hide where a form comes from otherwise"
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"


def test_every_field_has_a_label_and_every_reference_an_end(one: Running, marked: str) -> None:
    for page in (ask(one, "GET")[2], ask(one, body=urlencode({"text": marked}))[2], ask(one)[2]):
        tags = Reader(page).tags
        ids = [given["id"] for _, given in tags if "id" in given]
        labels = {given["for"] for tag, given in tags if tag == "label"}
        assert len(ids) == len(set(ids)) and ("html", {"lang": "en"}) in tags
        assert {given["id"] for tag, given in tags if tag in ("textarea", "input")} <= labels
        for name in ("aria-describedby", "aria-labelledby"):
            assert {given[name] for _, given in tags if name in given} <= set(ids)
        assert [tag for tag, given in tags if "autofocus" in given] in (["textarea"], ["h2"])


def test_a_form_answers_in_the_language_of_its_page(one: Running) -> None:
    for code, texts in LANGUAGES.items():
        for text, verdict in ((HOSTILE + UNMARKED, "no mark found"), ("x", "too short")):
            read = Reader(ask(one, body=urlencode({"text": text}), query=f"?lang={code}", accept_language="fr")[2])
            assert read.text["verdict"] == texts["verdicts"][verdict]["title"] and ("html", {"lang": code}) in read.tags
            assert not read.open and not {"script", "b"} & {tag for tag, _ in read.tags}
        assert ("form", {"method": "post", "action": f"?lang={code}"}) in read.tags
        refused = Reader(ask(one, query=f"?lang={code}")[2])
        assert refused.text["verdict"] == texts["refused"] and "{" not in refused.text["main"]
        assert [given["hreflang"] for tag, given in refused.tags if tag == "a"] == list(LANGUAGES)
    assert '<html lang="fr">' in ask(one, "GET", query="?lang=%3Cb%3E", accept_language="pt, fr;q=0.5")[2]


def test_the_public_gets_a_word_and_an_api_key_everything(marked: str) -> None:
    with running(directory=Keys(DIRECTORY.tenants)) as served:

        def post(**fields: str) -> tuple[int, str]:
            status, _, page = ask(served, body=urlencode(fields))
            return status, page

        public = alone("the sky", key=OTHER, max_new_tokens=200)[0]
        status, page = post(text=public)
        read = Reader(page)
        assert status == 200 and read.text["verdict"] == "Marked"
        assert "token" not in read.text["answer"] and ("span", {"class": "p2"}) not in read.tags
        assert re.findall("[0-9,]+", read.text["answer"].replace(", ", " ")) == ["1,000"] and post()[0] == 400
        assert post(text=marked)[1].count("No mark found</h2>") == 1
        status, page = post(text=marked, key=" one ")
        assert status == 200 and "<dd>k1</dd>" in page and "corrected for 2 keys" in page and "p-value" in page
        status, page = post(text=marked, key="stranger")
        assert status == 401 and "The API key is unknown" in page and "stranger" not in page
        for _ in range(9):
            status, page = post(text=public)
        assert status == 429 and "I have an API key" in page and "Too many texts are" in page and public[:20] in page


def test_bad_forms_are_refused_on_the_page(one: Running) -> None:
    for body, headers, status, said in (
        ("text=", {}, 400, "The text must have 1 to 100,000 characters"), ("", {}, 400, "must have"),
        (urlencode({"text": "x" * 100_001}), {}, 400, "must have"), ("text=%ed%a0%80", {}, 400, "could not be read"),
        ("&".join(f"a{n}=1" for n in range(9)), {}, 400, "not be read"), (b"text=\xff", {}, 400, "not be read"),
        ('{"text": "x"}', {"content_type": "application/json"}, 400, "could not be read"),
        ("text=x", {"sec_fetch_site": "cross-site"}, 403, "came from another site"),
    ):  # fmt: skip
        got, sent, page = ask(one, body=body, **headers)
        read = Reader(page)
        assert got == status and said in read.text["answer"] and read.text["verdict"] == "Not tested"
        assert sent["content-security-policy"] and "Traceback" not in page
