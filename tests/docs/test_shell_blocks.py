"""Every `caw` command in a block of shell is one that the command line takes: its words go through the real parser.

Options, values, choices, required ones and arguments too many are looked at; nothing runs. What a command reads is
written by an earlier one of the same page, or is the reader's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.test_pages import READ, ROOT, SHELL, blocks, known_commands

USAGE_ERROR: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
# names of the reader's own texts, prompts, keys and folders; what caw makes is none of them
OWN = {
    "prompts.jsonl", "corpus.jsonl", "texts.jsonl", "essay.txt", "answer.txt", "answers.jsonl", "keys.yaml",
    "new.jsonl", "DATA/key_segments/gsm8k_train.jsonl", "last-month.jsonl", "first.yaml", "VALUE", "-",
}  # fmt: skip
READS = ("positions", "evaluator", "weights", "calibration", "labels", "receipt", "texts", "input", "marked", "source",
         "compare", "like")  # fmt: skip
WRITES = ("output", "html", "json_file", "plot_file", "qq", "record")
KEPT = re.compile(r".*\.(jsonl|json|safetensors|svg|html|yaml|txt|pub|token)|seen|measured")


def caw_commands(code: str) -> Iterator[tuple[list[str], list[str]]]:
    """(words, files that its output is sent to) of each `caw` command of a block; $(...) is one word."""
    for line in code.replace("\\\n", " ").splitlines():
        line = re.sub(r"\$\([^()]*\)", "VALUE", line.removeprefix("$ "))
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            found = list(lexer)
        except ValueError:  # a quoted text over several lines
            continue
        yield from _split(found)


def _split(words: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    command: list[str] = []
    sent: list[str] = []
    rest = iter([*words, ";"])
    for word in rest:
        if word in (">", ">>", "<"):
            sent.append(next(rest))
        elif not set(word) <= set(";|&()"):
            command.append(word)
        else:
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                del command[0]
            if "caw.cli" in command:  # torchrun -m caw.cli
                command = ["caw", *command[command.index("caw.cli") + 1 :]]
            if command[:1] == ["caw"] and len(command) > 1:
                yield command, sent
            command, sent = [], []


def parsed(words: list[str]) -> tuple[str, Mapping[str, Any]]:
    """(what the parser refuses, "" if nothing; the values that the command would get)."""
    known = known_commands()
    size = next((size for size in (2, 1) if len(words) > size and tuple(words[1 : size + 1]) in known), 0)
    if not size:
        return ("", {}) if words[1].startswith("-") else (f"no command {' '.join(words[1:3])}", {})
    try:
        with known[tuple(words[1 : size + 1])].make_context(words[size], words[size + 1 :]) as context:
            return "", dict(context.params)
    except USAGE_ERROR as error:
        return f"{' '.join(words)}: {error.format_message()}", {}
    except typer.Exit:
        return "", {}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pages export before."""
    for name, value in {"CAW_KEY": "a key", "CAW_REGISTRY": "sqlite:///keys.db", "CAW_DATA_DIR": "data"}.items():
        monkeypatch.setenv(name, value)


def test_parsing_sees_what_is_wrong() -> None:
    assert parsed(["caw", "detect", "--tokenizer", "x", "--text", "y"])[0] == ""
    for words, complaint in (
        (["caw", "detect", "--tokeniser", "x"], "No such option"),
        (["caw", "train-evaluator"], "Missing option"),
        (["caw", "generate", "--model", "x", "--max-new-tokens", "few"], "should be a valid integer"),
        (["caw", "audit", "verify", "a", "b"], "unexpected extra argument"),
        (["caw", "find"], "no command find"),
    ):
        assert complaint in parsed(words)[0]
    code = 'export K=$(caw keys x) J=1\nK=2 caw a "b; c" \\\n  --d e > f | head # caw g\n(umask 077; caw h)\ncaw --help'
    assert list(caw_commands(code)) == [
        (["caw", "a", "b; c", "--d", "e"], ["f"]), (["caw", "h"], []), (["caw", "--help"], []),
    ]  # fmt: skip


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_taken(page: Path) -> None:
    found = [words for code in blocks(page, SHELL) for words, _ in caw_commands(code)]
    assert not [complaint for words in found if (complaint := parsed(words)[0])]


@pytest.mark.parametrize("path", sorted(known_commands()), ids=" ".join)
def test_examples_of_help_are_taken(path: tuple[str, ...]) -> None:
    lines = re.findall(r"^ *- (.*\bcaw .*)$", known_commands()[path].help or "", re.MULTILINE)
    found = [words for line in lines for words, _ in caw_commands(line)]
    assert found, "a command shows how it is called"
    assert not [complaint for words in found if (complaint := parsed(words)[0])]


@pytest.mark.parametrize("path", sorted(known_commands()), ids=" ".join)
def test_help_says_what_each_option_does(path: tuple[str, ...]) -> None:
    """Help is Markdown: of '*.kgw.*' it showed '.kgw.', a pattern that no cell has."""
    command = known_commands()[path]
    said = {parameter.name: getattr(parameter, "help", None) or "" for parameter in command.params}
    assert not [name for name, text in said.items() if not text]
    lines = [*said.values(), *(command.help or "").split("\n")]
    assert not [line for line in lines if re.search(r"\*[^*]+\*", line.replace("**", ""))]


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_read_was_written(page: Path) -> None:
    """A page read a folder `seen` that nothing on it made, with a command that failed on the folders there are."""
    there, strangers = set(OWN), []
    for code in blocks(page, SHELL):
        for words, sent in caw_commands(code):
            _, values = parsed(words)
            made = {str(values[name]) for name in WRITES if values.get(name) is not None} | set(sent)
            read = {str(values[name]) for name in READS if values.get(name) is not None}
            if words[1] == "train-evaluator" or words[1:3] == ["evaluate", "evaluator"]:
                made.add(str(values.get("positions")))  # kept there for later
                read.discard(str(values.get("positions")))
            strangers += [(words, name) for name in read - there if KEPT.fullmatch(name)]
            there |= made
    assert not strangers
