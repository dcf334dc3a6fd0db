"""`caw generate --resume` when the prompts, the model or the options are not those of the lines that are there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.running import assert_refused, generate, read
from tiny import save_tiny

from caw.decoding.prompts import prompt_digest
from caw.evaluator import Evaluator
from caw.models import load_tokenizer
from caw.models.arithmetic import Arithmetic

pytestmark = pytest.mark.usefixtures("environment")
TEXTS = [f"the sky {i}" for i in range(5)]
Prompt = str | tuple[str, str]  # text, or id and text


def write(path: Path, prompts: Sequence[Prompt]) -> Path:
    rows = [{"prompt": p} if isinstance(p, str) else {"id": p[0], "prompt": p[1]} for p in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Run:
    def __init__(self, model: str, folder: Path, *options: str) -> None:
        self.model, self.folder, self.options, self.out = model, folder, options, folder / "out.jsonl"

    def __call__(self, prompts: Sequence[Prompt], *more: str, out: Path | None = None) -> Any:
        source = write(self.folder / "prompts.jsonl", prompts)
        return generate(self.model, "-i", str(source), "-o", str(out or self.out), *self.options, *more)

    def cut(self, lines: int) -> None:
        """As a kill leaves it."""
        self.out.write_bytes(b"".join(self.out.read_bytes().splitlines(keepends=True)[:lines]))

    def assert_as_anew(self, prompts: Sequence[Prompt]) -> None:
        """The file is byte for byte that of a run that was never cut short, and each prompt has its own answer."""
        anew = self.folder / "anew.jsonl"
        anew.unlink(missing_ok=True)
        assert self(prompts, out=anew).exit_code == 0
        assert self.out.read_bytes() == anew.read_bytes()


@pytest.fixture
def run(model: str, tmp_path: Path) -> Run:
    return Run(model, tmp_path, "--dtype", "float32", "--sample", "--seed", "3")


NAMED: list[Prompt] = [(f"id{i}", text) for i, text in enumerate(TEXTS)]
CHANGES: dict[str, tuple[Sequence[Prompt], Sequence[Prompt]]] = {
    "behind": (TEXTS, [*TEXTS, "a new one", TEXTS[0]]), "in front": (NAMED, [("new", "a new one"), *NAMED]),
    "reordered": (NAMED, NAMED[::-1]),
}  # fmt: skip


@pytest.mark.parametrize("more", [(), ("--with-prompt",)], ids=["plain", "with prompt"])
@pytest.mark.parametrize("change", CHANGES)
def test_prompts_may_be_added_and_moved_with_their_ids(run: Run, change: str, more: tuple[str, ...]) -> None:
    run.options += more
    prompts, changed = CHANGES[change]
    assert run(prompts).exit_code == 0
    run.cut(3)
    before = {line["text"] for line in read(run.out)}
    result = run(changed, "--resume")
    assert result.exit_code == 0, result.output
    assert before <= {line["text"] for line in read(run.out)}
    run.assert_as_anew(changed)


@pytest.mark.parametrize(("prompts", "changed", "line"), [
    (TEXTS, [TEXTS[0], "another", *TEXTS[2:]], "line 2 answers another prompt than the input's id 2;"),
    (NAMED, [NAMED[0], ("id1", "another"), *NAMED[2:]], "line 2 answers another prompt than the input's id 'id1';"),
    (TEXTS, ["a new one", *TEXTS], "line 1 answers another prompt than the input's id 1 (2 more such lines);"),
    (NAMED, [("new", TEXTS[0]), *NAMED], "line 1 answers another prompt than the input's id 'id0';"),  # the second
    ([("a", TEXTS[1]), ("b", TEXTS[0])], [("a", TEXTS[0]), ("b", TEXTS[1])], "id 'a' (1 more such lines);"),
])  # fmt: skip
def test_another_prompt_under_an_id_is_refused(
    run: Run, prompts: Sequence[Prompt], changed: Sequence[Prompt], line: str
) -> None:
    assert run(prompts).exit_code == 0
    run.cut(3)
    before = run.out.read_bytes()
    assert_refused(run(changed, "--resume"), line)
    assert run.out.read_bytes() == before


def test_texts_of_prompts_that_are_gone_are_kept(run: Run) -> None:
    assert run(NAMED).exit_code == 0
    whole = read(run.out)
    result = run(NAMED[2:], "--resume")
    assert result.exit_code == 0 and "2 texts of" in result.stderr and "and are kept: 'id0', 'id1'" in result.stderr
    assert read(run.out) == whole


def test_lines_without_a_digest_are_refused(run: Run) -> None:
    assert run(TEXTS).exit_code == 0
    lines = [{k: v for k, v in line.items() if k != "prompt_digest"} for line in read(run.out)]
    run.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_refused(run(TEXTS, "--resume"), "line 1 is from an earlier version and does not name its prompt")


def test_everything_that_decides_a_text_is_compared(model: str, evaluator: str, tmp_path: Path) -> None:
    run = Run(model, tmp_path, "--policy", "capacity", "--evaluator", evaluator, "--dtype", "float32")
    assert run(TEXTS).exit_code == 0
    run.cut(2)
    before = run.out.read_bytes()
    changes = {
        ("--dtype", "bfloat16"): "made with dtype float32, this run has bfloat16;",
        ("--quantization", "int8", "--dtype", "auto"): "made with quantization None, this run has int8;",
        ("--theta", "0.5"): "made with policy.theta ",
        ("--sample", "--temperature", "0.5"): "made with sampling.temperature None, this run has 0.5;",
        ("--chat",): "made with chat False, this run has True;",
        ("--seeding", "selfhash"): "made with watermark.seeding lefthash, this run has selfhash;",
    }
    for change, said in changes.items():
        assert_refused(run(TEXTS, "--resume", *change), f"{run.out}, line 1 was {said}")
    other = Evaluator.load(evaluator)
    other.mean += 0.25
    other.save(evaluator)
    assert_refused(run(TEXTS, "--resume"), "made with evaluator_digest ")
    lines = read(run.out)
    lines[1]["settings"]["version"] = "0.0.1"
    run.out.write_bytes(before)
    other.mean -= 0.25
    other.save(evaluator)
    # neither how texts are made nor how fast changes one
    resumed = run(TEXTS, "--resume", "--speculate", "4", "--batch-size", "2")
    assert resumed.exit_code == 0, resumed.output
    run.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_refused(run(TEXTS, "--resume"), "line 2 was made with version 0.0.1, this run has ")


def test_another_model_in_the_same_place(tmp_path: Path) -> None:
    model = str(save_tiny(tmp_path / "model"))
    run = Run(model, tmp_path, "--dtype", "float32")
    assert run(TEXTS).exit_code == 0
    run.cut(2)
    before = run.out.read_bytes()
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("mlp.up_proj.weight"))
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, path, metadata={"format": "pt"})
    result = run(TEXTS, "--resume")
    assert result.exit_code == 2 and "line 1 was made with model_digest " in result.stderr
    assert run.out.read_bytes() == before


def test_arithmetic_matters_where_texts_depend_on_it(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert Arithmetic.of(model, cpu, "float32").as_dict() == {
        "dtype": "float32", "quantization": None, "arithmetic": None,
    }  # fmt: skip
    for given in (("bfloat16", None), ("auto", "int8")):
        here = Arithmetic.of(model, cpu, *given).arithmetic
        assert here
        monkeypatch.setenv("CAW_CPU_ISA", "avx2")
        assert Arithmetic.of(model, cpu, *given).arithmetic != here
        monkeypatch.delenv("CAW_CPU_ISA")


def test_a_template_that_names_today_gives_the_same_digest_tomorrow(model: str) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = "{{ strftime_now('%S.%f') }} {{ messages[0]['content'] }}"
    message = [{"role": "user", "content": "the sky"}]
    first, digest = (
        tokenizer.apply_chat_template(message, tokenize=False),
        prompt_digest(tokenizer, "the sky", chat=True),
    )
    second, again = (
        tokenizer.apply_chat_template(message, tokenize=False),
        prompt_digest(tokenizer, "the sky", chat=True),
    )
    assert first != second and digest == again != prompt_digest(tokenizer, "the sky")
    tokenizer.chat_template = "<{{ messages[0]['content'] }}>"
    assert prompt_digest(tokenizer, "the sky", chat=True) != digest
