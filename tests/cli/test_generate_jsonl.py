"""`caw generate` from JSONL to JSONL: what a line holds, bad lines, and runs cut short that --resume continues."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.running import KEY, generate, read, write_prompts

import caw
from caw.entrance import GenerationResult

pytestmark = pytest.mark.usefixtures("environment")


def test_lines_hold_what_made_them_and_are_those_of_the_library(model: str, evaluator: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 3), tmp_path / "out.jsonl"
    result = generate(
        model, "--input", str(source), "--output", str(out), "--policy", "capacity", "--evaluator", evaluator,
        "--theta", "0.6", "--beta", "2", "--delta", "3", "--gamma", "0.5", "--with-prompt",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "")
    lines = sorted(read(out), key=lambda line: line["id"])
    network, tokenizer = caw.load_model(model)
    watermark = caw.KGW(key=KEY, gamma=0.5, delta=3.0)
    expected = caw.generate(
        network, tokenizer, [f"the sky {i}" for i in range(3)], watermark=watermark, max_new_tokens=12,
        policy=caw.CapacityPolicy(evaluator, theta=0.6, beta=2.0),
    )  # fmt: skip
    assert [line["tokens"] for line in lines] == expected.sequences
    assert [line["text"] for line in lines] == expected.texts
    assert [line["finish_reason"] for line in lines] == expected.finish_reasons
    first = lines[0]
    assert (first["id"], first["prompt"], first["key_id"]) == (1, "the sky 0", watermark.key_id)
    assert first["policy"] == {"name": "capacity", "evaluator": evaluator, "theta": 0.6, "beta": 2.0}
    assert first["watermark"] == {
        "name": "kgw", "gamma": 0.5, "delta": 3.0, "seeding": "lefthash", "context_width": 1, "format": "native",
    }  # fmt: skip
    assert first["settings"]["model"] == model and first["settings"]["sampling"] is None


def test_jsonl_through_pipes(model: str) -> None:
    result = generate(model, "--input", "-", stdin='{"id": "a", "prompt": "the sky"}\n')
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["a"]


def test_bad_lines_are_named_and_the_others_done(model: str, tmp_path: Path) -> None:
    source, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    long = json.dumps({"prompt": "sky " * 600})
    source.write_text(
        f'{{"prompt": "the sky"}}\n{{broken\n{{"text": "x"}}\n{{"prompt": ""}}\n{long}\n{{"prompt": "b"}}\n'
    )
    result = generate(model, "--input", str(source), "--output", str(out), "--watermark", "kgw")
    assert result.exit_code == 1
    assert sorted(line["id"] for line in read(out)) == [1, 6]
    *complaints, marks = result.stderr.splitlines()
    assert marks.startswith("caw: marking with kgw")
    assert [c.split(": ")[1] for c in complaints] == [f"{source}, line {number}" for number in (2, 3, 4, 5)]
    assert "at least one token" in complaints[2] and "512 positions" in complaints[3]
    assert not any("prompt 0" in c for c in complaints)


def test_texts_that_break_off_are_named(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw import entrance

    def broken(network: Any, tokenizer: Any, accepted: Any, *how: Any, **options: Any) -> Iterator[GenerationResult]:
        for index in accepted.indices:
            reason = "expected finite logits" if index == 0 else ""
            error = f"prompt {index}: {reason}" if reason else ""
            yield GenerationResult(index, "x", [1], "error" if error else "length", None, error, reason)

    monkeypatch.setattr(entrance, "stream_results", broken)
    source = tmp_path / "prompts.jsonl"
    source.write_text('{broken\n{"prompt": "a"}\n{"prompt": "b"}\n')
    result = generate(model, "--input", str(source))
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [3]
    assert result.stderr.splitlines()[2:] == [f"caw: {source}, line 2: expected finite logits"]
    alone = generate(model, "--prompt", "a")
    assert alone.exit_code == 2 and "expected finite logits" in alone.stderr and "prompt 0" not in alone.stderr


def test_resume_continues_after_a_line_cut_short(model: str, tmp_path: Path) -> None:
    source, out = write_prompts(tmp_path / "prompts.jsonl", 5), tmp_path / "out.jsonl"
    # the lines made again stand beside fewer others, which changes no bit of a text in bfloat16 either
    arguments = ["--input", str(source), "--output", str(out), "--dtype", "bfloat16"]
    assert generate(model, *arguments).exit_code == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert generate(model, *arguments).exit_code == 2  # never over an existing file
    result = generate(model, *arguments, "--resume")
    assert result.exit_code == 0
    assert out.read_bytes().startswith(b"".join(lines[:2]))
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())
    again = generate(model, *arguments, "--resume")
    assert again.exit_code == 0 and "nothing to do:" in again.stderr
    assert sorted(out.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_ctrl_c_keeps_what_is_written(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from caw import entrance

    real = entrance.stream_results

    def interrupted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        results = real(*args, **kwargs)
        yield next(results)
        raise KeyboardInterrupt

    source, out = write_prompts(tmp_path / "prompts.jsonl", 4), tmp_path / "out.jsonl"
    arguments = ["--input", str(source), "--output", str(out)]
    monkeypatch.setattr(entrance, "stream_results", interrupted)
    result = generate(model, *arguments)
    assert result.exit_code == 130 and "1 of 4 texts are written" in result.stderr
    assert len(read(out)) == 1
    monkeypatch.undo()
    assert generate(model, *arguments, "--resume").exit_code == 0
    assert sorted(line["id"] for line in read(out)) == [1, 2, 3, 4]


def test_lines_with_messages_are_conversations(model: str, tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the sky"}]
    source = tmp_path / "in.jsonl"
    lines: list[dict[str, Any]] = [{"id": "a", "messages": talk}, {"id": "b", "prompt": "the sky"},
                                   {"id": "c", "messages": [{"role": "user"}]}]  # fmt: skip
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = generate(model, "--input", str(source), "--chat", "--with-prompt", "--policy", "fixed")
    assert result.exit_code == 1 and "line 3: the prompt is no conversation for this model: message 0" in result.stderr
    found = {line["id"]: line for line in map(json.loads, result.stdout.splitlines())}
    network, tokenizer = caw.load_model(model)
    watermark = caw.KGW(key=KEY)
    expected = caw.generate(network, tokenizer, [talk, "the sky"], watermark=watermark, max_new_tokens=12, chat=True)
    assert [found[name]["tokens"] for name in "ab"] == expected.sequences
    assert found["a"]["messages"] == talk and "prompt" not in found["a"] and found["b"]["prompt"] == "the sky"
    result = generate(model, "--input", str(source), "--policy", "fixed")
    assert "line 1: messages is a conversation, which requires the model's chat template; add --chat" in result.stderr
    source.write_text(json.dumps({"talk": talk}) + "\n")
    result = generate(model, "--input", str(source), "--chat", "--field", "talk", "--policy", "fixed")
    assert json.loads(result.stdout)["tokens"] == expected.sequences[0]
