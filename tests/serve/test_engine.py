"""The thread that decodes: what becomes of those who wait when something fails."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from serve.serving import NAME, OTHER, Kept, alone, running, until

import caw
from caw import ops
from caw.decoding.eager_step import EagerStep
from caw.decoding.portions import Portions
from caw.serve.contracts import MarkRules
from caw.serve.engine import Engine
from caw.serve.inbox import BusyError, ClosedError, GreedyError, Inbox
from caw.serve.metrics import Metrics


def test_a_step_that_fails_fails_its_texts_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as served:
        decode, left = EagerStep.decode, [1]

        def fails(self: EagerStep, *arguments: Any) -> Any:
            if left and left.pop():
                raise RuntimeError("secret detail")
            return decode(self, *arguments)

        monkeypatch.setattr(EagerStep, "decode", fails)
        with pytest.raises(openai.InternalServerError, match="decoding failed on the server") as caught:
            served.complete("the sky", max_tokens=20)
        assert "secret" not in str(caught.value)
        served.idle()
        assert served.log.closed[-1].ending == "failed"
        assert served.complete("the sky", max_tokens=20).choices[0].text == alone("the sky", max_new_tokens=20)[0]


def test_a_model_that_always_fails_makes_the_server_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as served:
        monkeypatch.setattr(EagerStep, "decode", lambda *arguments: 1 / 0)
        for _ in range(3):
            with pytest.raises(openai.InternalServerError):
                served.complete("the sky", max_tokens=20)
        with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
            served.complete("the sky", max_tokens=20)
        assert caught.value.status_code == 503 and "ZeroDivisionError" in served.service.engine.failed


def test_a_test_that_fails_fails_its_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(log=Kept()) as served:
        monkeypatch.setattr("caw.detectable.trial.Trial.__call__", lambda *arguments: 1 / 0)
        with pytest.raises(openai.InternalServerError, match="could not be tested"):
            served.complete("the sky", key="found", max_tokens=20)
        assert served.complete("the sky", max_tokens=5).choices[0].text
        served.idle()
        assert [one.ending for one in served.log.closed] == ["failed", "complete"]


@pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")
def test_a_prompt_that_is_read_has_a_row_and_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []
    names = ("caw_active_texts", "caw_reading_texts", "caw_waiting_texts")
    monkeypatch.setattr(Portions, "size", lambda self: 20)
    with running(batch=2) as served:
        engine, read = served.service.engine, Portions.read
        registry = Metrics(engine).registry

        def counted(self: Portions, *asked: Any, busy: bool) -> Any:
            values = [registry.get_sample_value(name) for name in names]
            seen.append(tuple(value or 0.0 for value in values))
            return read(self, *asked, busy=busy)

        monkeypatch.setattr(Portions, "read", counted)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(served.complete, "the sky", max_tokens=120)
            until(lambda: engine.active == 1)
            second = pool.submit(served.complete, list(range(5, 105)), max_tokens=5)
            first.result(), second.result()
        assert len(seen) > 1 and set(seen) == {(1.0, 1.0, 0.0)}


def test_a_guarded_text_that_is_cancelled_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[Any] = []
    token = Engine._token

    def cancel(self: Engine, sequence: Any) -> bool:
        if len(self._making) >= 3 and not cancelled:
            cancelled.append(self._making[sequence.index].job)
            self.cancel(cancelled[0])
        return token(self, sequence)

    ended: list[Any] = []
    counted = Inbox.ended
    monkeypatch.setattr(Inbox, "ended", lambda self, job: (ended.append(job), counted(self, job))[1])
    monkeypatch.setattr(Engine, "_token", cancel)
    guard = caw.Guard(keeps=lambda unmarked, marked: unmarked == marked, rejoin=3)
    with running(rules=MarkRules(detectable_at=1e-3), guard=guard, batch=8) as served:
        with pytest.raises(openai.APITimeoutError):
            client = served.client().with_options(timeout=5, max_retries=0)
            client.completions.create(model=NAME, prompt="the sky is", temperature=0, max_tokens=100)
        until(lambda: not served.service.engine._making)
        assert cancelled and ended == cancelled
        assert served.service.engine.inbox.under_way == 0 and not served.service.engine.inbox._held


def test_an_inbox_takes_all_jobs_or_none() -> None:
    inbox: Inbox = Inbox(most=3)
    jobs: list[Any] = [SimpleNamespace(tenant="one") for _ in range(4)]
    with pytest.raises(BusyError):
        inbox.put(jobs)
    inbox.put(jobs[:2])
    with pytest.raises(BusyError):
        inbox.put(jobs[:2])
    assert inbox.take(wait=True) == jobs[:2] and inbox.take(wait=False) == []
    inbox.ended(jobs[0])
    inbox.put(jobs[2:])
    inbox.close()
    with pytest.raises(ClosedError):
        inbox.put([])
    assert inbox.take(wait=True) == jobs[2:] and inbox.take(wait=True) == []


def test_one_tenant_leaves_as_much_room_as_it_takes() -> None:
    """Of two rows and six places to wait in one tenant gets five; a server that has no other gives it all eight."""

    def fill(inbox: Inbox, tenant: str) -> int:
        taken = 0
        try:
            while True:
                inbox.put([SimpleNamespace(tenant=tenant)])  # type: ignore[list-item]
                taken += 1
        except BusyError:
            return taken

    shared = Inbox(most=8, rows=2, shared=True)
    assert [fill(shared, tenant) for tenant in ("one", "two", "three")] == [5, 2, 1]
    for _ in range(4):
        shared.ended(SimpleNamespace(tenant="one"))  # type: ignore[arg-type]
    assert [fill(shared, tenant) for tenant in ("three", "one")] == [2, 1]
    with pytest.raises(GreedyError):
        shared.check(1, "three")
    shared.check(1, "four")
    assert fill(Inbox(most=8, rows=2), "one") == 8


def test_tenants_take_turns() -> None:
    with running(batch=2, max_waiting=40) as served, ThreadPoolExecutor(2) as pool:
        many = pool.submit(served.complete, "the sky", max_tokens=40, n=16)
        until(lambda: served.service.engine.inbox.under_way == 16)
        one = pool.submit(served.complete, "a model", key="two", max_tokens=5)
        with pytest.raises(openai.RateLimitError, match="this tenant's share of the queue") as caught:
            served.complete("the sky", max_tokens=3, n=16)
        assert caught.value.code == "tenant_queue_full"
        text = one.result().choices[0].text
        assert not many.done() and served.service.engine.tokens < 16 * 40 / 2
        texts = [choice.text for choice in many.result().choices]
    assert text == alone("a model", key=OTHER, max_new_tokens=5)[0]
    assert texts == alone("the sky", max_new_tokens=40) * 16


def test_a_text_that_cannot_be_begun_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caw.serve.grammars.Grammar.__init__", lambda *arguments: [][0])
    with running(batch=1) as served, ThreadPoolExecutor(3) as pool:
        first = pool.submit(served.complete, "the sky", max_tokens=60)
        until(lambda: served.service.engine.tokens)
        bad = pool.submit(served.complete, "x", extra_body={"response_format": {"type": "json_object"}})
        after = pool.submit(served.complete, "a model", max_tokens=5)
        with pytest.raises(openai.InternalServerError, match="could not be started"):
            bad.result()
        assert first.result().choices[0].text == alone("the sky", max_new_tokens=60)[0]
        assert after.result().choices[0].text == alone("a model", max_new_tokens=5)[0]
        served.idle()
        assert sorted(one.ending for one in served.log.closed) == ["complete", "complete", "failed"]
