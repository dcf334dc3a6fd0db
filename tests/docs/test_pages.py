"""Whatever the pages tell a reader to type is there: commands with their options, scripts, make targets, Python."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from command_line import commands

import caw
from caw.cli import app
from caw.cli.detect_config import read_key_list
from caw_lab.evaluation.config_file import read_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
READ = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MADE = re.compile(r"^<!-- table: .*?^<!-- end -->$", re.MULTILINE | re.DOTALL)  # names commands of its own day
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHELL = {"bash", "sh", "console", ""}


def blocks(page: Path, languages: set[str]) -> Iterator[str]:
    for _, language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield code


def lines_of(code: str) -> Iterator[list[str]]:
    """The words of each command of a block of shell: comments, pipes and assignments left out."""
    for line in code.replace("\\\n", " ").splitlines():
        try:
            words = list(shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|;&><"))
            words = shlex.split(line.removeprefix("$ "), comments=True) if words else []
        except ValueError:  # a quoted text over several lines
            continue
        while words and re.fullmatch(r"\w+=.*", words[0]):
            words = words[1:]
        ends = [i for i, word in enumerate(words) if word in ("|", ";", "&&", ">", "<", "...")]
        yield words[: min(ends, default=len(words))]


def typed(page: Path) -> Iterator[list[str]]:
    text = MADE.sub("", page.read_text(encoding="utf-8"))
    for code in [*blocks(page, SHELL), *INLINE.findall(FENCE.sub("", text))]:
        yield from (words for words in lines_of(code) if words)


@cache
def known_commands() -> dict[tuple[str, ...], Any]:
    return {tuple(path[1:]): command for path, command in commands(typer.main.get_command(app), ["caw"])}


def usage(words: list[str]) -> str:
    """What is wrong with the words of a `caw` command; empty if nothing is. Values are not looked at."""
    known = known_commands()
    told = [word for word in words[1:] if not word.startswith("-")]
    for size in (2, 1):
        if command := known.get(tuple(told[:size])):
            break
    else:
        if told and told[0].isupper():  # COMMAND stands for any
            return ""
        groups = {path[0] for path in known}
        return "" if not told or (told[0] in groups and len(told) == 1) else f"no command {' '.join(told[:2])}"
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    strangers = given - names - {"--help", "-h"}
    return f"{' '.join(told[:size])} has no {', '.join(sorted(strangers))}" if strangers else ""


def test_commands_exist() -> None:
    shown = [words for page in READ for words in typed(page) if words[0] == "caw"]
    assert not [complaint for words in shown if (complaint := usage(words))]


def test_scripts_and_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in (words for page in READ for words in typed(page)):
        if words[0] == "make" and len(words) > 1 and re.fullmatch("[a-z-]+", words[1]):
            assert words[1] in targets, words
        if words[0].startswith("python") and len(words) > 1 and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), words
            files = ROOT / words[1], ROOT / "benchmarks" / "stages.py"  # options that scripts share
            source = "".join(file.read_text(encoding="utf-8") for file in files)
            assert all(w.split("=")[0] in source for w in words if w.startswith("--")), words


def test_python_compiles() -> None:
    for code in (code for page in READ for code in blocks(page, {"python", "py"})):
        for node in ast.walk(ast.parse(code)):  # and what it takes from `caw` is there
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "caw":
                assert hasattr(caw, node.attr), f"caw.{node.attr}"


CONFIGS = [code for page in PAGES for code in blocks(page, {"yaml"})]


@pytest.mark.parametrize("code", CONFIGS, ids=lambda code: code.split(":")[0])
def test_configs_are_read(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key lists of `caw detect`; configs of `caw evaluate run`, whole or parts of that in docs/evaluation.md."""
    monkeypatch.setenv("CAW_KEY", "a key")
    file = tmp_path / "config.yaml"
    if isinstance((config := yaml.safe_load(code)).get("watermarks"), list):
        file.write_text(code)
        assert len(read_key_list(file)) == len(config["watermarks"])
        return
    if "output" in config:
        file.write_text(code)
        assert read_config(file).plan()
        return
    [whole] = [yaml.safe_load(c) for c in blocks(ROOT / "docs/evaluation.md", {"yaml"}) if c.startswith("output:")]
    assert config.keys() <= whole.keys()
    file.write_text(yaml.safe_dump({**whole, **config}))
    assert len(read_config(file).plan()) > 4


def test_decimals_have_their_zero() -> None:
    """0.95 and 95 % are read at once; .95 is not."""
    for page in [*READ, *sorted(ROOT.glob("lab/*.md"))]:
        prose = INLINE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
        assert not re.findall(r".*(?:^|[ (|+-])\.\d.*", prose, re.MULTILINE), page


def test_every_page_is_in_the_contents() -> None:
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert not [page for page in PAGES[1:] if f"({page.relative_to(ROOT / 'docs').as_posix()})" not in contents]


def test_every_public_name_has_its_reference() -> None:
    shown = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert not [name for name in caw.__all__ if name != "__version__" and f"\n### caw.{name}\n" not in shown]
