"""Detection: exact for tenants, coarse and rare for the public."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from serve.serving import DIRECTORY, KEY, MARK, OTHER, Directory, Running, alone, parts, running
from serve.test_answering import post

import caw
from caw.serve import detecting
from caw.serve.contracts import MarkKey, Tenant
from caw.serve.detecting import MOST_PUBLIC, Rates, asker_of
from caw.watermarks.names import said_of

UNMARKED = "a text that nobody marked, about small models and blue skies and few words. " * 6


@dataclass
class Keys(Directory):
    """The first tenant had another key before; one key is public."""

    public: tuple[MarkKey, ...] = (MarkKey("k2", OTHER),)

    def detection_keys(self, tenant: Tenant | None) -> tuple[MarkKey, ...]:
        if tenant is None:
            return self.public
        return (tenant.key, MarkKey("old", "an older key"))


@pytest.fixture(scope="module")
def marked() -> dict[str, str]:
    keys = {"k1": KEY, "k2": OTHER, "old": "an older key"}
    return {name: alone("the sky", key=key, max_new_tokens=200)[0] for name, key in keys.items()}


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running(directory=Keys(DIRECTORY.tenants)) as found:
        yield found


def ask(served: Running, body: Any, key: str | None = "one") -> tuple[int, dict[str, Any]]:
    headers = {"authorization": "" if key is None else f"Bearer {key}"}
    return post(served.port, json.dumps(body).encode(), "/v1/detect", **headers)


def test_keys_that_cannot_be_read_are_one_sentence(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(tenant: Tenant | None) -> tuple[MarkKey, ...]:
        raise OSError("the custodian gave no key")

    monkeypatch.setattr(served.service.detection.directory, "detection_keys", unreadable)
    for key in ("one", None):
        status, answer = ask(served, {"text": UNMARKED}, key)
        assert status == 503 and "custodian" not in answer["error"]["message"]


def test_a_tenant_is_told_everything_about_its_own_keys(served: Running, marked: dict[str, str]) -> None:
    for name, key in (("k1", KEY), ("old", "an older key")):
        status, answer = ask(served, {"text": marked[name]})
        expected = caw.detect(marked[name], parts()[1], MARK.with_key(key))
        [match] = answer["matches"]
        assert status == 200 and answer["verdict"] == "marked" and answer["keys"] == 2
        assert match == {"key_id": name, "p_value": expected.p_value, "scored": expected.num_scored}
        assert answer["p_value"] == pytest.approx(1 - (1 - expected.p_value) ** 2, rel=1e-6, abs=1e-15)
    for text in (marked["k2"], UNMARKED):
        answer = ask(served, {"text": text})[1]
        assert answer["verdict"] == "no mark found" and answer["matches"] == [] and answer["p_value"] > 1e-3


def test_the_public_gets_a_word_and_no_number(marked: dict[str, str]) -> None:
    with running(directory=Keys(DIRECTORY.tenants)) as served:
        for text, verdict in (
            (marked["k2"], "marked"), (marked["k1"], "no mark found"), (UNMARKED, "no mark found"),
            ("short", "too short"),
        ):  # fmt: skip
            status, answer = ask(served, {"text": text}, None)
            assert status == 200 and answer["verdict"] == verdict
            assert set(answer) == {"object", "verdict", "message"} and not any(c.isdigit() for c in answer["message"])
        answers = [ask(served, {"text": "short"}, None) for _ in range(8)]
        assert [status for status, _ in answers][-1] == 429 and answers[0][0] == 200
        assert ask(served, {"text": marked["k1"]})[1]["verdict"] == "marked", "tenants are not limited with them"


@pytest.mark.parametrize("proxies, counted", [(("127.0.0.1",), "clients"), ((), "the proxy")])
def test_who_asks_through_a_proxy_is_told_apart_if_it_is_named(proxies: tuple[str, ...], counted: str) -> None:
    """Eleven questions at once of one address are one too many; what a stranger says of itself is not believed."""
    with running(directory=Keys(DIRECTORY.tenants), proxies=proxies) as served:

        def asks(address: str) -> int:
            sent = {"authorization": "", "x-forwarded-for": address}
            return post(served.port, b'{"text": "short"}', "/v1/detect", **sent)[0]

        assert [asks(f"192.0.2.{place}") for place in range(11)][-1] == (200 if counted == "clients" else 429)
        assert [asks("198.51.100.7") for _ in range(11)][-1] == 429


def test_the_public_cannot_fill_the_queue(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service.detection, "_waiting", MOST_PUBLIC)
    assert ask(served, {"text": UNMARKED}, None)[1]["error"]["code"] == "queue_full"
    assert ask(served, {"text": UNMARKED})[0] == 200


def test_who_has_one_address_of_ipv6_has_many() -> None:
    for address, asker in (
        ("192.0.2.7", "192.0.2.7"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"), ("", ""),
    ):  # fmt: skip
        assert asker_of(address) == asker


def test_keys_of_other_watermarks_are_read_and_do_not_mark() -> None:
    """A tenant's old key was of Unigram; a tenant whose key is of it now is refused: nothing leaves unfindable."""
    one = caw.Unigram(key=9)
    text = caw.generate(*parts(), "the sky", watermark=one, max_new_tokens=200, progress=False).texts[0]

    @dataclass
    class Mixed(Directory):
        def detection_keys(self, tenant: Tenant | None) -> tuple[MarkKey, ...]:
            return (MarkKey("k1", KEY, said_of(caw.KGW(key=0, delta=1.0))), MarkKey("one list", 9, said_of(one)))

    tenants = DIRECTORY.tenants | {"lists": Tenant("lists", MarkKey("one list", 9, said_of(one)))}
    with running(directory=Mixed(tenants)) as served:
        answer = ask(served, {"text": text})[1]
        assert [match["key_id"] for match in answer["matches"]] == ["one list"] and answer["keys"] == 2
        with pytest.raises(openai.InternalServerError, match="watermark is not this server's"):
            served.complete("the sky", key="lists", max_tokens=5)
        assert served.complete("the sky", max_tokens=5).choices[0].text and len(served.log.begun) == 1


def test_who_has_a_wrong_key_is_not_the_public(served: Running) -> None:
    assert ask(served, {"text": UNMARKED}, "stranger")[0] == 401


def test_without_public_keys_the_public_is_told_so() -> None:
    with running() as served:
        status, answer = ask(served, {"text": UNMARKED}, None)
        assert status == 404 and "ask the operator" in answer["error"]["message"]


@pytest.mark.parametrize(
    "body", [{"text": ""}, {"text": "x" * 100_001}, {"text": "\ud800"}, {"text": 5}, {}, {"text": "x", "a": 1}]
)
def test_bad_texts_are_refused(served: Running, body: Any) -> None:
    status, answer = ask(served, body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error" and len(str(answer)) < 400


def test_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    limit = Rates(0.5, 3, lambda: now[0])
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]
    assert limit.allows("b")
    now[0] = 1.9
    assert not limit.allows("a")
    now[0] = 4.1
    assert [limit.allows("a") for _ in range(3)] == [True, True, False]
    now[0] = 1000.0
    assert [limit.allows("a") for _ in range(4)] == [True, True, True, False]
    monkeypatch.setattr(detecting, "MOST", 2)
    assert limit.allows("c") and limit.allows("d") and len(limit._left) == 2


def test_a_text_that_takes_too_long_is_answered_and_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(directory=Keys(DIRECTORY.tenants)) as served:
        monkeypatch.setattr(detecting, "DEADLINE", 0.2)
        gate = threading.Event()
        with monkeypatch.context() as slow:
            slow.setattr(served.service.detection, "_tested", lambda *asked: gate.wait(60))
            assert ask(served, {"text": UNMARKED})[0] == 503
        gate.set()
        monkeypatch.setattr(detecting, "DEADLINE", 60.0)
        assert ask(served, {"text": UNMARKED})[0] == 200 and served.service.detection._waiting == 0
