"""Conversations as chat templates write them, and the sentence about each that they do not."""

from typing import Any

import pytest
from tiny import tiny_tokenizer

from caw.models.conversations import check_variables, is_conversation, write_conversation

HI: dict[str, Any] = {"role": "user", "content": "hi"}
SAID: dict[str, Any] = {"role": "assistant", "content": "well"}
CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"day": 1}'}}
# in the manner of Llama 2: roles that it does not know are left out, two of one role in a row refused
OLD = (
    "{% for m in messages %}{% if loop.index0 > 0 and messages[loop.index0 - 1].role == m.role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}[{{ m.content }}]{% elif m.role == 'assistant' %}{{ m.content.strip() }};{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)


def write(template: str, *messages: Any, **settings: Any) -> str:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return write_conversation(tokenizer, messages, **settings)


def test_what_is_a_conversation() -> None:
    assert is_conversation([HI]) and is_conversation((HI, SAID))
    assert not any(map(is_conversation, ([], "hi", b"hi", HI, [1, 2], [HI, "hi"], None, ["hi"])))


def test_a_conversation_as_the_template_writes_it() -> None:
    assert write(OLD, HI, SAID, HI) == "[hi]well;[hi]>"
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    assert write(OLD, {"role": "user", "content": parts, "name": None}) == "[hi]>"
    assert write(OLD, {"role": "user", "content": ""}) == "[]>", "an empty message is left out by nobody"


def test_a_last_message_of_the_assistant_is_continued_or_followed() -> None:
    assert write(OLD, HI, SAID, resume=True) == "[hi]well"
    assert write(OLD, HI, SAID) == "[hi]well;>"
    assert write(OLD, HI, resume=True) == "[hi]>"


def test_arguments_of_calls_are_objects_to_a_template() -> None:
    """As text they would be quoted twice."""
    for arguments, written in (('{"day": 1}', '{"day": 1}'), ({"day": 1}, '{"day": 1}'), ("", "{}")):
        call = {**CALL, "function": {"name": "look", "arguments": arguments}}
        assert write(CALLS, HI, {"role": "assistant", "tool_calls": [call]}) == f"hi{written}"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([HI, {"content": "x"}], "message 1 must have a role, got None; say e.g. 'user'"),
        ([{"role": 5, "content": "x"}], "message 0 must have a role, got 5"),
        ([HI, SAID, {"role": "user"}], "message 2 of role 'user' must have a content, got none"),
        ([{"role": "user", "content": 5}], "the content of message 0 must be text or a list of parts, got int"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "message 0 has a part of type 'image_url', only text is",
        ),
        ([{"role": "user", "content": ["x"]}], "message 0 has a part of type 'str', only text is read; leave it out"),
        ([HI, HI], "the chat template refuses the messages: roles must alternate; mend the messages"),
        ([{"role": "robot", "content": "x"}, HI], "the chat template leaves out message 0 of role 'robot'; use a role"),
        ([{"role": "system", "content": "x"}, HI, SAID], "leaves out message 0 of role 'system'"),
        ([HI, {"role": "assistant", "tool_calls": [CALL]}], "has no place for calls; send what was called and found"),
    ],
)
def test_what_a_template_does_not_write_is_told_in_one_sentence(messages: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        write(OLD, *messages)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", ["[1]", '{"day', "5", None, "[" * 100_000])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    call = {**CALL, "function": {"name": "look", "arguments": arguments}}
    with pytest.raises(ValueError, match="arguments of a call of message 1 must be a JSON object"):
        write(CALLS, HI, {"role": "assistant", "tool_calls": [call]})


def test_broken_templates_say_what_they_lack() -> None:
    for template in ("{{ messages[9].content.a }}", "{{ 1 / 0 }}", "{% for %}", "{{ messages[0].content + 5 }}"):
        with pytest.raises(ValueError, match=r"the chat template refuses the messages: .+; mend the messages"):
            write(template, HI)


def test_variables_reach_a_template_that_reads_them() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if enable_thinking %}<think>{% endif %}"
    messages = [{"role": "user", "content": "hi"}]
    check_variables(tokenizer, {"enable_thinking": False})
    texts = [write_conversation(tokenizer, messages, variables={"enable_thinking": on}) for on in (True, False)]
    assert texts == ["hi<think>", "hi"]
    for variables, said in (
        ({"enable": 1}, "does not read a variable 'enable'"),
        ({"enable_thinking": [1]}, "must be true"),
    ):
        with pytest.raises(ValueError, match=said):
            check_variables(tokenizer, variables)
