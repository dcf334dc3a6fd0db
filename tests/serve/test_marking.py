"""What is marked, tested and exempted: only what the operator allows."""

import contextlib
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from detectable.noise import let_all_pass
from generating import Recorder
from serve.serving import DIRECTORY, KEY, MARK, NAME, Running, alone, parts, running

import caw
from caw.detectable import guarding
from caw.detectable.receipts import text_digest
from caw.policies import Target
from caw.serve import planning
from caw.serve.contracts import MarkKey, MarkRules, Tenant
from caw.serve.errors import ApiError
from caw.serve.marking import marking_of
from caw.serve.settings import ServerSettings
from caw.settings import Sampling

PROMPT = "the sky is blue because"
SETTINGS = ServerSettings(name="m", max_factor=2.0)


@pytest.fixture(scope="module")
def steered() -> Iterator[Running]:
    """A server whose texts are steered towards 1 %, with strengths up to four times the policy's."""
    with running(rules=MarkRules(detectable_at=1e-2), max_factor=4.0) as found:
        yield found


def p_value(text: str) -> float:
    return float(caw.detect(text, parts()[1], MARK.with_key(KEY)).p_value)


def test_a_client_cannot_opt_out_unless_its_key_may(served: Running) -> None:
    with pytest.raises(openai.PermissionDeniedError, match="requires an API key that may opt out"):
        served.complete(PROMPT, max_tokens=20, extra_body={"watermark": False})
    served.idle()
    answer = served.complete(PROMPT, key="free", max_tokens=20, extra_body={"watermark": False})
    assert answer.choices[0].text == alone(PROMPT, key=None, max_new_tokens=20)[0]
    assert answer.caw["marked"] is False
    begun = served.log.begun[-1]
    assert (begun.unmarked, begun.key_id, begun.tenant) == ("the client opted out", "", "free")
    marked = served.complete(PROMPT, key="free", max_tokens=48)
    assert marked.choices[0].text == alone(PROMPT, max_new_tokens=48)[0] and marked.caw["marked"]


@pytest.mark.parametrize("most, exempt", [(9, True), (10, False)])
def test_short_requests_are_exempt_only_by_rule(served: Running, most: int, exempt: bool) -> None:
    answer = served.complete(PROMPT, key="short", max_tokens=most)
    assert answer.choices[0].text == alone(PROMPT, key=None if exempt else KEY, max_new_tokens=most)[0]
    asked = served.complete(PROMPT, key="short", max_tokens=most, extra_body={"watermark": True})
    assert asked.choices[0].text == alone(PROMPT, max_new_tokens=most)[0]


def test_rules_that_the_server_cannot_keep_fail_before_anything_is_made(served: Running) -> None:
    begun = len(served.log.begun)
    with pytest.raises(openai.InternalServerError, match="stronger marks than this server supports; ask its operator"):
        served.complete(PROMPT, key="strong")
    assert len(served.log.begun) == begun


def test_a_buffered_text_is_made_until_it_is_found(served: Running) -> None:
    answer = served.complete(PROMPT, key="weak", max_tokens=60)
    receipt = served.log.closed[-1]
    [text] = [choice.text for choice in answer.choices]
    assert receipt.attempts > 1 and receipt.digest == text_digest(text) and receipt.ending == "complete"
    assert receipt.p_value == p_value(text) and receipt.detected == (p_value(text) <= 1e-2)


def test_found_texts_are_the_librarys(steered: Running) -> None:
    mark = MARK.with_key(KEY)
    want = caw.generate(*parts(), PROMPT, watermark=mark, max_new_tokens=60, detectable_at=1e-2, progress=False)
    answer = steered.complete(PROMPT, max_tokens=60)
    assert answer.choices[0].text == want.texts[0]
    assert want.receipts is not None and want.receipts[0] is not None
    receipt = steered.log.closed[-1]
    assert (receipt.detected, receipt.attempts) == (want.receipts[0].detected, want.receipts[0].attempts)


def test_a_stream_is_steered_and_tested_but_not_made_again(steered: Running) -> None:
    text = "".join(chunk.choices[0].text for chunk in steered.complete(PROMPT, max_tokens=60, stream=True))
    policy = caw.FixedStrength(1.0, target=Target(1e-2))
    assert text == alone(PROMPT, max_new_tokens=60, policy=policy)[0]
    receipt = steered.log.closed[-1]
    assert receipt.attempts == 1 and receipt.p_value == p_value(text) and receipt.digest == text_digest(text)


def test_greedy_texts_are_guarded_where_the_operator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    let_all_pass(monkeypatch)
    guard, mark, start = caw.Guard("number", rejoin=2, horizon=8, loss=99), MARK.with_key(KEY), "one and two"
    options = {"watermark": mark, "max_new_tokens": 40, "detectable_at": 0.2, "progress": False}
    want = caw.generate(*parts(), start, guard=guard, **options)
    assert want.receipts is not None and want.receipts[0].detected and want.receipts[0].rollouts
    with running(rules=MarkRules(detectable_at=0.2), guard=guard) as server:
        answers = [server.complete(start, max_tokens=40, temperature=0) for _ in range(2)]
        assert [answer.choices[0].text for answer in answers] == want.texts * 2
        tested = server.log.closed[-1].tested
        said = {name: getattr(want.receipts[0], name) for name in ("keeps", "kept", "changes", "rollouts", "p_value")}
        assert tested is not None and {name: tested[name] for name in said} == said
        chunks = list(server.complete(start, max_tokens=40, temperature=0, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == want.texts[0], "what reads whole texts"
        for others in ({"temperature": 1, "seed": 1}, {"logprobs": 1}):
            assert server.complete(start, max_tokens=20, **others).choices[0].text
            server.idle()
            tested = server.log.closed[-1].tested
            assert tested is not None and tested["keeps"] is None


def test_streams_are_guarded_by_windows_and_go_on_under_their_sub_key(monkeypatch: pytest.MonkeyPatch) -> None:
    let_all_pass(monkeypatch)
    for module in (guarding, planning):
        monkeypatch.setattr(module, "by_window", lambda guard: True)
    guard, shared = caw.Guard(lambda old, new: True, rejoin=2, horizon=8, window=8, loss=99), caw.KGW(key=1, subkeys=4)
    given = {"watermark": shared.with_key(KEY), "max_new_tokens": 60, "detectable_at": 0.2, "progress": False}
    want: Any = caw.generate(*parts(), "so", guard=guard, streamer=Recorder(), **given)  # type: ignore[arg-type]
    [asked] = want.receipts
    with running(shared, rules=MarkRules(detectable_at=0.2), guard=guard, max_factor=4.0) as server:
        chunks = list(server.complete("so", max_tokens=60, temperature=0, stream=True))
        pieces = [chunk.choices[0].text for chunk in chunks]
        assert "".join(pieces) == want.texts[0] and len(pieces) >= 3
        server.idle()
        tested = server.log.closed[-1].tested
        said = ("windows", "changes", "rollouts", "p_value", "subkey")
        assert tested is not None and [tested[name] for name in said] == [getattr(asked, name) for name in said]
        assert asked.changes and asked.windows and asked.windows >= 4 and asked.subkey
        text = want.texts[0]
        for _ in range(2):
            extra = {"continuation": chunks[-1].caw["continuations"][0]}
            chunks = list(server.complete("so" + text, max_tokens=20, temperature=0, stream=True, extra_body=extra))
            text += "".join(chunk.choices[0].text for chunk in chunks)
            server.idle()
            tested = server.log.closed[-1].tested
            assert tested is not None and (tested["subkey"], tested["keeps"]) == (asked.subkey, "<lambda>")


def test_texts_whose_guard_finds_no_change_are_marked_as_the_others() -> None:
    never = caw.Guard(keeps=lambda unmarked, marked: False, rejoin=3)  # reads whole texts, so streams end with them

    def texts(server: Running, *, stream: bool) -> list[str]:
        whole = [server.complete(PROMPT, key=key, max_tokens=most) for key, most in (("strict", 60), ("one", 1))]
        last: Any = server.complete(PROMPT, key="one", max_tokens=60, stream=stream)
        return [
            "".join(each.choices[0].text for each in answer) for answer in (*zip(whole), last if stream else [last])
        ]

    with running(rules=MarkRules(detectable_at=1e-3)) as server:
        want = texts(server, stream=False)
    with running(rules=MarkRules(detectable_at=1e-3), guard=never) as server:
        assert texts(server, stream=True) == want
        server.idle()
        for closed in server.log.closed:
            tested = closed.tested
            assert tested is not None and tested["keeps"] is None and tested["strength_factor"] > 0
            assert tested["attempts"] >= 2
        assert server.service.engine.inbox.under_way == 0


def test_texts_are_found_among_all_keys_that_detection_tries(served: Running) -> None:
    """One that is found under its own key alone is none that two hundred keys find."""
    marks = {str(number): MARK.with_key(number) for number in (KEY, *range(1000, 1199))}

    def among_all(name: str) -> float:
        answer = served.complete(PROMPT, key=name, max_tokens=60, temperature=1, seed=1)
        assert served.log.closed[-1].detected
        return float(caw.detect_keys(answer.choices[0].text, parts()[1], marks, 1e-2).p_value)

    assert among_all("half") > 1e-2 >= among_all("many")
    begun, closed = served.log.begun[-1], served.log.closed[-1]
    assert begun.keys == 200 and 1 - (1 - begun.detectable_at) ** begun.keys == pytest.approx(1e-2)
    assert closed.tested is not None and closed.tested["level"] == begun.detectable_at


def test_an_untested_text_has_its_p_value_in_its_receipt_too(served: Running) -> None:
    text = served.complete(PROMPT, max_tokens=60).choices[0].text
    receipt = served.log.closed[-1]
    assert receipt.p_value == p_value(text) < 1 and receipt.detected is None and receipt.tested is None
    served.complete(PROMPT, key="free", max_tokens=9, extra_body={"watermark": False})
    assert served.log.closed[-1].p_value is None


def test_short_texts_leave_with_a_receipt_that_says_why_they_are_not_found(steered: Running) -> None:
    assert steered.complete(PROMPT, max_tokens=3).choices[0].text
    receipt = steered.log.closed[-1]
    assert receipt.detected is False and "needed" in receipt.reason and receipt.ending == "complete"


@pytest.mark.parametrize("stream", [False, True])
def test_strictly_no_text_leaves_that_is_not_found(served: Running, stream: bool) -> None:
    answer = served.complete(PROMPT, key="strict", max_tokens=100, stream=stream)
    texts = [chunk.choices[0].text for chunk in answer] if stream else [answer.choices[0].text]
    assert len(texts) == 1 and p_value(texts[0]) <= 1e-3 and served.log.closed[-1].detected
    with pytest.raises(openai.InternalServerError, match="no attempt gave a detectable text") as caught:
        served.complete(PROMPT, key="strict", max_tokens=5, stream=stream)  # one of which has no context
    assert caught.value.code == "undetected"
    served.idle()
    assert served.log.closed[-1].ending == "failed" and served.log.closed[-1].digest == text_digest("")


def test_what_no_text_can_reach_is_refused_at_once(served: Running) -> None:
    """The level that many keys leave may be out of reach of a short text; every attempt was made for nothing."""
    begun = len(served.log.begun)
    with pytest.raises(openai.BadRequestError, match="have at least 5 tokens, got max_tokens 4; raise max_tokens"):
        served.complete(PROMPT, key="strict", max_tokens=4)
    assert len(served.log.begun) == begun
    planned = served.service.planned
    for strict in (True, False):
        many = Tenant("a", MarkKey("k1", KEY), MarkRules(detectable_at=1e-3, strict=strict), tried=10_000)
        marking = marking_of(many, SETTINGS, planned.marks.main.policy, max_tokens=11, wants=None)
        planned.check_reach(marking, 12, Sampling())
        with pytest.raises(ApiError, match="at least 12 tokens") if strict else contextlib.nullcontext():
            planned.check_reach(marking, 11, Sampling())


@pytest.mark.parametrize("stream", [False, True])
def test_short_texts_may_leave_undetected_by_rule(served: Running, stream: bool) -> None:
    answer = served.complete(PROMPT, key="long", max_tokens=29, stream=stream)
    texts = [chunk.choices[0].text for chunk in answer] if stream else [answer.choices[0].text]
    assert len(texts) == 1 and texts[0]
    assert served.log.closed[-1].detected is False and served.log.begun[-1].unmarked == ""
    with pytest.raises(openai.APIError, match="detectable text"):
        served.complete(PROMPT, key="long", max_tokens=30, stream=stream)


def test_a_stricter_tenant_gets_a_margin_above_the_servers_target() -> None:
    policy = caw.FixedStrength(1.0, target=1e-2)
    found = [
        marking_of(DIRECTORY.tenants[name], SETTINGS, policy, max_tokens=9, wants=None).margin
        for name in ("one", "weak", "found")
    ]
    assert found[:2] == [0.0, 0.0] and found[2] == pytest.approx(3.0902 - 2.3263, abs=1e-4)
    among = Tenant("a", MarkKey("k1", KEY), MarkRules(detectable_at=1e-3), tried=10)
    marking = marking_of(among, SETTINGS, policy, max_tokens=9, wants=None)
    assert marking.level == pytest.approx(1.0004e-4, rel=1e-4)
    assert marking.margin == pytest.approx(3.7189 - 2.3263, abs=1e-3)
    mark = caw.KGW(1, subkeys=64)
    marking = marking_of(DIRECTORY.tenants["found"], SETTINGS, policy, mark=mark, max_tokens=9, wants=None)
    assert marking.level == 1e-3 and marking.margin == pytest.approx(4.1640 - 3.6034, abs=1e-3)


def test_rules_are_checked() -> None:
    for rules, problem in (
        ({"detectable_at": 1.5}, "detectable_at must be a number"),
        ({"strict": True}, "strict requires detectable_at"),
        ({"strength_factor": 0}, "strength_factor must be above 0"), ({"exempt_below": -1}, "exempt_below must be"),
        ({"exempt_json": 1}, "exempt_json must be True or False"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=problem):
            MarkRules(**rules)


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(DIRECTORY) and str(KEY) not in repr(DIRECTORY.tenants["one"]) and NAME == "tiny"
