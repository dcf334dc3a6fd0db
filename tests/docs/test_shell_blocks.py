"""Every `caw` command on the pages goes through the real parser; what it reads, an earlier one of the page wrote."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.test_pages import READ, SHELL, blocks, known_commands

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


def test_commands_are_taken() -> None:
    found = [words for page in READ for code in blocks(page, SHELL) for words, _ in caw_commands(code)]
    assert not [complaint for words in found if (complaint := parsed(words)[0])]


def test_examples_of_help_are_taken() -> None:
    for path, command in known_commands().items():
        lines = re.findall(r"^ *- (.*\bcaw .*)$", command.help or "", re.MULTILINE)
        shown = [words for line in lines for words, _ in caw_commands(line)]
        assert shown, f"{' '.join(path)} shows how it is called"
        assert not [complaint for words in shown if (complaint := parsed(words)[0])]


def test_help_says_what_each_option_does() -> None:
    """Help is Markdown: of '*.kgw.*' it showed '.kgw.', a pattern that no cell has."""
    for path, command in known_commands().items():
        help_of = {parameter.name: getattr(parameter, "help", None) or "" for parameter in command.params}
        assert not [name for name, text in help_of.items() if not text], path
        lines = [*help_of.values(), *(command.help or "").split("\n")]
        assert not [line for line in lines if re.search(r"\*[^*]+\*", line.replace("**", ""))], path


def test_what_is_read_was_written() -> None:
    """A page read a folder `seen` that nothing on it made, with a command that failed on the folders there are."""
    assert not [stranger for page in READ for stranger in read_without_being_written(page)]


def read_without_being_written(page: Path) -> list[Any]:
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
    return strangers
