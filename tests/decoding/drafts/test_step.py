"""Drafts change no token, no choice and no strength, whatever is guessed; right ones save forwards."""

import copy
from typing import Any
from unittest.mock import Mock

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

MARKS = {**WATERMARKS, **FOREIGN, "payload": caw.KGW(key=9, delta=3.0, payload=5, payload_bits=4)}
MIXED = ["right", "right", *(name for name in MISTAKES if name != "right")]


def decoded(model: Any, watermark: Any, policy: Any, rows: Any, batch: int = 3, **options: Any) -> Run:
    rows = rows_for(watermark, rows)
    given = {"rows": rows, "batch": batch, "eos_token_ids": (EOS,), "max_new_tokens": 14, "slots": 2, **options}
    return run(model, PROMPTS[: len(rows)], watermark, policy, **given)


def same(
    model: Any, watermark: Any, policy: Any, mistakes: list[str] = MIXED, batch: int = 3, rows: Any = ROWS,
    **options: Any,
) -> Run:  # fmt: skip
    """Return the run with drafts, compared token by token; a near tie may fall otherwise where rows are not exact."""
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


# each mark under one policy, so that all of these meet; the gate has every pair
CASES = [(name, list(POLICIES)[i % len(POLICIES)], 1 + 2 * (i % 2)) for i, name in enumerate((None, *MARKS))]


@pytest.mark.parametrize(("watermark", "policy", "batch"), CASES)
def test_drafts_change_nothing(llama: Any, watermark: str | None, policy: str, batch: int) -> None:
    chosen, how = (MARKS[watermark], POLICIES[policy](llama)) if watermark else (None, None)
    same(llama, chosen, how, batch=batch)


@pytest.mark.gate("drafts")
@pytest.mark.parametrize("watermark", MARKS)
def test_every_mark_and_policy(llama: Any, watermark: str) -> None:
    for policy in POLICIES.values():
        same(llama, MARKS[watermark], policy(llama), batch=6)


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
    same(model, WATERMARKS["selfhash"], POLICIES["window11"](model), rows=[ROWS[0]] * 2)


@pytest.mark.parametrize(
    "name, watermark, branching",
    pairwise(["llama", "mistral", "qwen2-window", "qwen3"], ["unigram", "top_k"], ["sequential", "batch"]),
)
def test_bfloat16_is_exact_too(name: str, watermark: str, branching: str) -> None:
    """Also the forwards of other branchings, which carry no drafts."""
    model = copy.deepcopy(build(name)).to(torch.bfloat16)
    mark, policy = WATERMARKS[watermark], POLICIES["window11"](model)
    drafted = same(model, mark, policy, rows=ROWS[:2])
    assert texts(drafted) == texts(decoded(model, mark, policy, ROWS[:2], branching=branching))


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_stop_strings_and_streams(looks_ahead: bool) -> None:
    """A stop string ends a text inside a draft, and a stream is given the same tokens one at a time."""
    model, ids, mark = build("qwen3"), PROMPTS[0], WATERMARKS["lefthash"]

    def made(speculate: Any, **options: Any) -> tuple[Any, list[list[int]]]:
        stream = Mock()
        [done] = caw.iter_generate(
            model, tokenizer(), [ids], watermark=mark, policy=policy_of(model) if looks_ahead else None,
            max_new_tokens=14, min_new_tokens=14, speculate=speculate, streamer=stream, **options,
        )  # fmt: skip
        stream.end.assert_called_once()
        return done, [given.args[0].flatten().tolist() for given in stream.put.call_args_list]

    whole, _ = made(None)
    stop = tokenizer().decode(whole.tokens[7:9])
    plain, expected = made(None, stop=stop)
    done, seen = made(Knowing([(ids, whole.tokens)]), stop=stop)
    assert (done.tokens, done.text, done.finish_reason) == (plain.tokens, plain.text, "stop")
    assert done.tokens == whole.tokens[:9] and stop not in done.text
    assert seen == expected and len(seen) == 9 + 1, "the prompt, each token"
    assert done.trace.drafts.passes < len(done.tokens) - 2 and done.trace.drafts.accepted > 2


@pytest.mark.parametrize("watermark", ["lefthash", "top_k", "scale", "synthid"])
def test_with_a_target(llama: Any, watermark: str) -> None:
    """The evidence of the text so far decides how strongly the next token is marked."""
    policy = caw.CapacityPolicy(POLICIES["window11"](llama).network, theta=0.8, beta=1.5, target=0.05)
    for chosen in (policy,) if watermark == "scale" else (caw.FixedStrength(1.0, target=1e-2), policy):
        same(llama, MARKS[watermark], chosen, rows=ROWS[:1] * 3)


TOKENS = st.lists(st.integers(-2, VOCAB + 2), max_size=30)


@settings(max_examples=8, deadline=None)
@given(
    guesses=st.lists(TOKENS | st.none(), min_size=1, max_size=6), length=st.sampled_from([1, 7, POSITIONS - 12]),
    mark=st.sampled_from([caw.KGW(key=3, delta=3.0), caw.EXP(key=3), None]), ahead=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_any_guess(guesses: list[list[int] | None], length: int, mark: Any, ahead: bool, dtype: torch.dtype) -> None:
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


REPEATING = [
    "Repeat this text:\nThe fox went home to its small house in the woods.\n\nThe same text again:\nThe fox went",
    "def mean(values):\n    return sum(values) / len(values)\n\n\ndef mean_of_squares(values):\n    return",
    "Once upon a time",
]
ON_DEMO = {"kgw": caw.KGW(key=1, delta=2.5), "selfhash": caw.KGW(key=2, seeding="selfhash"), "exp": caw.EXP(key=3),
           "unigram": caw.Unigram(key=4), "synthid": caw.SynthID(key=5)}  # fmt: skip


@pytest.mark.gate("drafts")
@pytest.mark.parametrize("dtype, weights", [("float32", None), ("bfloat16", None), ("float32", "file")])
def test_the_demo_model(dtype: str, weights: str | None) -> None:
    model, own = caw.load_model("smollm2-135m", dtype=dtype, quantization=weights)
    caw_policy = caw.CapacityPolicy("smollm2-135m")
    policies = [caw.FixedStrength(1.0), caw.EntropyThreshold(1.0), caw_policy]
    for watermark in (None, *ON_DEMO.values()):
        for policy in policies if watermark else [None]:
            for sampling in ({}, {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "seed": 3}):
                made = [
                    caw.generate(
                        model, own, REPEATING, watermark=watermark, policy=policy, max_new_tokens=24,
                        speculate=speculate, batch_size=batch, progress=False, **sampling,
                    )
                    for speculate, batch in ((None, 3), ("auto", 1), (4, 3))
                ]  # fmt: skip
                assert made[1].sequences == made[2].sequences == made[0].sequences
                assert any(trace.drafts.accepted for trace in made[1].trace or [])
                assert [t.choice for t in made[1].trace or []] == [t.choice for t in made[0].trace or []]
