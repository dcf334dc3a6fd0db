"""Drafts change no token, no choice and no strength, whatever is guessed; right ones save forwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from decoding.architectures import CONFIGS, EOS, POSITIONS, VOCAB, build, policy_of, prompt, tokenizer
from decoding.drafts.guessing import MISTAKES, Knowing
from decoding.mixing import FOREIGN, PROMPTS, ROWS, references_for, rows_for, texts
from decoding.running import Run, run, same_texts
from decoding.test_step import POLICIES, WATERMARKS
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairwise

import caw
from caw import ops
from caw.decoding.plan_defaults import exact_rows

pytestmark = pytest.mark.skipif(bool(ops.missing_extension()), reason="needs the compiled extension")

MARKS = {**WATERMARKS, **{name: FOREIGN[name] for name in ("transformers", "markllm", "synthid")}}
MARKS["payload"] = caw.KGW(key=9, delta=3.0, payload=5, payload_bits=4)
ALL = [name for name in MISTAKES if name != "right"]
MIXED = ["right", "right", *ALL]


def decoded(model: Any, watermark: Any, policy: Any, rows: Any, batch: int = 3, **options: Any) -> Run:
    rows = rows_for(watermark, rows)
    given = {"rows": rows, "batch": batch, "eos_token_ids": (EOS,), "max_new_tokens": 14, "slots": 2, **options}
    return run(model, PROMPTS[: len(rows)], watermark, policy, **given)


def same(
    model: Any, watermark: Any, policy: Any, mistakes: list[str], batch: int = 3, rows: Any = ROWS, **options: Any
) -> Run:
    """Decode with drafts and compare with decoding without them, token by token; returns the run with them.

    Where a model's rows depend on what stands beside them, a near tie may fall otherwise, and the text is another from
    there on.
    """
    plain = decoded(model, watermark, policy, rows, batch, **options)
    rows, prompts = rows_for(watermark, rows), PROMPTS[: len(rows)]
    drafter = Knowing(list(zip(prompts, plain.tokens, strict=True)), mistakes)
    done = decoded(model, watermark, policy, rows, batch, speculate=drafter, **options)
    if exact_rows(model):
        assert texts(done) == texts(plain)
    else:
        same_texts(done, plain, references_for(model, rows, watermark, policy, (EOS,)), prompts)
    assert all(trace.drafts.why_not == "" for trace in done.traces)
    pairs = zip(done.traces, plain.traces, done.tokens, plain.tokens, strict=True)
    for ours, theirs in [(ours, theirs) for ours, theirs, *tokens in pairs if tokens[0] == tokens[1]]:
        assert (ours.candidates, ours.choice) == (theirs.candidates, theirs.choice)
        for name in ("strength", "capacity"):
            found, expected = (torch.tensor(getattr(trace, name)) for trace in (ours, theirs))
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    forwards = sum(trace.drafts.passes for trace in done.traces)
    assert forwards < sum(sum(active) for active, *_ in plain.steps), "right drafts save forwards, wrong ones cost none"
    assert sum(trace.drafts.accepted for trace in done.traces) > 0
    assert sorted(drafter.learned) == sorted(done.tokens), "a drafter is told every finished text"
    return done


# a look-ahead under every mark, choosing first under some; the gate has every policy
CASES = [*((name, "window21") for name in MARKS), (None, "delta"), ("unigram", "delta"), ("top_k", "delta")]


@pytest.mark.parametrize("batch, case", [(1 + 2 * (number % 2), case) for number, case in enumerate(CASES)], ids=str)
def test_drafts_change_nothing(llama: Any, batch: int, case: tuple[str | None, str]) -> None:
    """Rows differ in sampling, keys, strengths and budgets; places of the batch are filled again."""
    watermark, policy = case
    chosen = MARKS[watermark] if watermark else None
    same(llama, chosen, POLICIES[policy](llama) if chosen else None, MIXED, batch)


@pytest.mark.parametrize("watermark", [None, "top_k"])
def test_right_drafts_save_forwards(llama: Any, watermark: str | None) -> None:
    done = same(llama, MARKS[watermark] if watermark else None, None, ["right"], rows=ROWS[:1] * 3)
    assert (done.changed > 0) == (watermark is not None)
    for trace in done.traces:
        counts = trace.drafts
        assert counts.drafted == counts.accepted and counts.acceptance == 1.0
        assert counts.passes + counts.accepted == len(trace.tokens) == counts.rows > 2 * counts.passes
        assert trace.tokens_per_pass == len(trace.tokens) / counts.passes


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture(name: str) -> None:
    model = build(name)
    same(model, WATERMARKS["selfhash"], POLICIES["window11"](model), MIXED, rows=[ROWS[0]] * 2)


@pytest.mark.parametrize(
    "name, watermark, branching",
    pairwise(["llama", "mistral", "qwen2-window", "qwen3"], ["unigram", "top_k"], ["sequential", "batch"]),
)
def test_bfloat16_is_exact_too(name: str, watermark: str, branching: str) -> None:
    """Also the forwards of other branchings, which carry no drafts."""
    model = copy.deepcopy(build(name)).to(torch.bfloat16)
    mark, policy = WATERMARKS[watermark], POLICIES["window11"](model)
    drafted = same(model, mark, policy, MIXED, rows=ROWS[:2])
    assert texts(drafted) == texts(decoded(model, mark, policy, ROWS[:2], branching=branching))


class Stream:
    """What a caller is shown."""

    def __init__(self) -> None:
        self.shown: list[list[int] | None] = []

    def put(self, value: torch.Tensor) -> None:
        self.shown.append(value.flatten().tolist())

    def end(self) -> None:
        self.shown.append(None)


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_stop_strings_and_streams(looks_ahead: bool) -> None:
    """A stop string ends a text inside a draft, and a stream is given the same tokens one at a time."""
    model, ids, mark = build("qwen3"), PROMPTS[0], WATERMARKS["lefthash"]

    def made(speculate: Any, **options: Any) -> tuple[Any, Stream]:
        stream = Stream()
        [done] = caw.iter_generate(
            model, tokenizer(), [ids], watermark=mark, policy=policy_of(model) if looks_ahead else None,
            max_new_tokens=14, min_new_tokens=14, speculate=speculate, streamer=stream, **options,
        )  # fmt: skip
        return done, stream

    whole, _ = made(None)
    stop = tokenizer().decode(whole.tokens[7:9])
    plain, expected = made(None, stop=stop)
    done, seen = made(Knowing([(ids, whole.tokens)]), stop=stop)
    assert (done.tokens, done.text, done.finish_reason) == (plain.tokens, plain.text, "stop")
    assert done.tokens == whole.tokens[:9] and stop not in done.text
    assert seen.shown == expected.shown and len(seen.shown) == 9 + 2, "the prompt, each token, the end"
    assert done.trace.drafts.passes < len(done.tokens) - 2 and done.trace.drafts.accepted > 2


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", "synthid"])
def test_with_a_target(llama: Any, watermark: str) -> None:
    """The evidence of the text so far decides how strongly the next token is marked."""
    policy = caw.FixedStrength(1.0, target=1e-2)
    for chosen in (policy, caw.CapacityPolicy(POLICIES["window11"](llama).network, theta=0.8, beta=1.5, target=0.05)):
        same(llama, MARKS[watermark], chosen, MIXED, rows=ROWS[:1] * 3)


TOKENS = st.lists(st.integers(-2, VOCAB + 2), max_size=30)


@settings(max_examples=8, deadline=None)
@given(
    guesses=st.lists(TOKENS | st.none(), min_size=1, max_size=6), length=st.sampled_from([1, 7, POSITIONS - 12]),
    mark=st.sampled_from([caw.KGW(key=3, delta=3.0), caw.EXP(key=3), None]), ahead=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_any_guess(guesses: list[list[int] | None], length: int, mark: Any, ahead: bool, dtype: torch.dtype) -> None:
    """None is the right one; the longest prompt leaves 12 positions of the model."""
    model, ids = copy.deepcopy(build("qwen3")).to(dtype), prompt(length)

    def made(speculate: Any) -> list[int]:
        out = caw.generate(
            model, tokenizer(), [ids], watermark=mark, policy=policy_of(build("qwen3")) if mark and ahead else None,
            max_new_tokens=12, speculate=speculate, progress=False,
        )  # fmt: skip
        return out.sequences[0]

    plain = made(None)
    drafter = Knowing([(ids, plain)])
    drafter.mistakes = [lambda tokens, most, own=own: tokens if own is None else own for own in guesses]
    assert made(drafter) == plain
