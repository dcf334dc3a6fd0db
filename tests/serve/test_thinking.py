"""The thinking section at the beginning of a text, and marks that leave it out."""

from typing import Any

import pytest
from decoding.drafts.guessing import Knowing
from serve.serving import DIRECTORY, KEY, MARK, NAME, Directory, chat_ids, parts, running

import caw
from caw.serve import thinking
from caw.serve.contracts import MarkKey, MarkRules, Tenant
from caw.serve.thinking import Thinking


def test_the_section_is_the_one_at_the_beginning() -> None:
    """After each letter: whether the next one belongs to the section, which it does from the end of <think> on."""
    for prompt, text, inside in (
        ("x", "<think>ab</think>cd", "<think>ab</think"), ("x", " <think>a</think>b<think>c", " <think>a</think"),
        ("x", "ab<think>cd</think>", ""), ("x", "<thank>cd", ""), ("x", "<think>never ends", "<think>never ends"),
        ("x<think>\n", "ab</think>cd<think>e", "ab</think"), ("x<think></think>", "ab", ""),
    ):  # fmt: skip
        _, tokenizer = parts()
        following = Thinking(tokenizer, tokenizer(prompt)["input_ids"])
        letters = [tokenizer(letter)["input_ids"][0] for letter in text]
        found = [following.after(letters[: place + 1]) for place in range(len(letters))]
        begin = 0 if prompt.endswith("<think>\n") else inside.find("<think>") + 6
        assert found == [bool(inside) and begin <= place < len(inside) for place in range(len(letters))]


def test_marks_rest_in_the_section_and_go_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the chat template opens a section: clients who write prompts to their end got unmarked texts."""
    model, tokenizer = parts()
    monkeypatch.setattr(tokenizer, "chat_template", tokenizer.chat_template + "<think>")
    asked = {"role": "user", "content": "x"}
    prompt: Any = chat_ids(asked)
    [first] = caw.generate(model, tokenizer, [prompt], watermark=MARK.with_key(KEY), max_new_tokens=1,
                           progress=False).sequences  # fmt: skip
    own = caw.generate(model, tokenizer, [[*prompt, *first]], max_new_tokens=60, progress=False).sequences[0]
    close = tokenizer.decode(own[24:27])
    place = next(n for n in range(1, 60) if close in tokenizer.decode([*first, *own[:n]]))
    monkeypatch.setattr(thinking, "CLOSE", close)
    # drafts of what the section would go on with: the first one behind it must be decided as a marked token
    drafter = Knowing([(prompt, [*first, *own])])
    monkeypatch.setattr("caw.decoding.steps.NgramDrafter", lambda alone: drafter)
    rules = MarkRules(exempt_thinking=True)
    tenants = {**DIRECTORY.tenants, "thinks": Tenant("thinks", MarkKey("k1", KEY), rules)}
    with running(directory=Directory(tenants)) as served:

        def said(key: str) -> str:
            chat = served.client(key).chat.completions
            answer = chat.create(model=NAME, messages=[asked], temperature=0, max_tokens=60)  # type: ignore[list-item]
            return str(answer.choices[0].message.content)

        text = said("thinks")
        assert served.log.begun[-1].policy.endswith("; thinking sections unmarked")
        whole = said("one")
        written = served.complete(prompt, key="thinks", max_tokens=60).choices[0].text
    unmarked = tokenizer.decode([*first, *own[:place]])
    assert text.startswith(unmarked) and not whole.startswith(unmarked) and written == whole
    assert not text.startswith(tokenizer.decode([*first, *own[: place + 25]])), "marked again behind the section"
