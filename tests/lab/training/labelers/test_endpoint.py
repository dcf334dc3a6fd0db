"""The labeler that asks a model, against a stand-in endpoint of the tests' own."""

import json
import time

import pytest
from stand_in_endpoint import completion, segments, serve

from caw_lab.training.endpoint import Endpoint
from caw_lab.training.labelers.base import LabelError, label_documents
from caw_lab.training.labelers.endpoint import EndpointLabeler
from caw_lab.training.labels import LabelledText

pytest.importorskip("openai")
SOLUTION = "He has 40-12=28 apples.\n#### 28"
DOCUMENT = LabelledText("toy", "train", 3, "How many?", SOLUTION, ())


def labeler(endpoint, *, schema=True, **settings):
    asked = Endpoint("stand-in", "secret", endpoint.url, **{"retries": 0, "timeout": 30, **settings})
    return EndpointLabeler(asked, schema)


def test_segments_become_spans_and_the_request_is_structured():
    with serve(lambda body: segments("40-12=28 apples", "28")) as endpoint:
        marker = labeler(endpoint)
        spans = marker.label(DOCUMENT)
    assert [SOLUTION[a:b] for a, b in spans] == ["40-12=28 apples", "28"] and spans[1] == (29, 31)
    [request] = endpoint.requests
    form = request["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["strict"] is True
    assert form["json_schema"]["schema"]["required"] == ["segments"]
    assert request["model"] == "stand-in" and SOLUTION in request["messages"][1]["content"]
    assert endpoint.headers[0]["authorization"] == "Bearer secret"
    assert marker.endpoint.used == [7, 3]
    assert "secret" not in json.dumps(marker.describe())


def test_without_a_schema():
    with serve(lambda body: completion('```json\n{"segments": ["28"]}\n```')) as endpoint:
        assert labeler(endpoint, schema=False).label(DOCUMENT) == ((13, 15),)
    assert "response_format" not in endpoint.requests[0]


def test_a_reply_that_is_no_substring_is_asked_again():
    replies = iter([segments("40 - 12"), segments("40-12")])
    with serve(lambda body: next(replies)) as endpoint:
        assert labeler(endpoint).label(DOCUMENT) == ((7, 12),)
    again = endpoint.requests[1]["messages"]
    assert [m["role"] for m in again] == ["system", "user", "assistant", "user"]
    assert "segment 1 of 1" in again[3]["content"]


def test_what_is_no_answer_is_a_failure_of_the_document():
    for answer, message in (
        (segments("nowhere"), r"segment 1 of 1 must be an exact, non-empty substring of the text.*asked 2 times"),
        (segments(), "named none"),
        (completion("I think that 28 matters."), "expected JSON"),
        (completion('{"spans": []}'), "another object"),
        (completion(None, refusal="I cannot do that."), "refused this text"),
        (completion('{"segm', finish="length"), r"cut off \(length\)"),
        (completion(""), "empty one"),
        ((200, b"<html>hello</html>"), "something else"),
        ((200, {"hello": 1}), "something else"),
        ((400, {"error": {"message": SOLUTION}}), r"refused the request \(400\); try --no-schema"),
        ((429, {"error": {"message": "slow down"}}), "status 429"),
        ((500, b"oops"), "status 500"),
    ):
        with serve(lambda body, answer=answer: answer) as endpoint, pytest.raises(LabelError, match=message) as caught:
            labeler(endpoint).label(DOCUMENT)
        assert "40-12" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_every_document_would_meet_ends_the_run(status):
    with serve(lambda body: (status, {"error": {"message": "key secret"}})) as endpoint:
        marker = labeler(endpoint)
        with pytest.raises(ValueError, match=str(status)) as caught:
            list(label_documents(marker, [DOCUMENT] * 5, workers=2))
    assert not isinstance(caught.value, LabelError) and "secret" not in str(caught.value)
    assert len(endpoint.requests) < 5


def test_retries_of_what_passes():
    replies = iter([(429, {}), (503, {}), segments("28")])
    with serve(lambda body: next(replies)) as endpoint:
        assert labeler(endpoint, retries=2).label(DOCUMENT) == ((13, 15),)
    assert len(endpoint.requests) == 3


def test_a_slow_endpoint_times_out():
    def slow(body):
        time.sleep(1)
        return segments("28")

    with serve(slow) as endpoint, pytest.raises(LabelError, match="timed out, including retries"):
        labeler(endpoint, timeout=0.05).label(DOCUMENT)
