"""Models whose rotary embedding changes with the length of the text (Phi-3), on either side of the change."""

from typing import Any

import pytest
import torch
from decoding.architectures import GQA, PAD, POSITIONS, from_config, prompt, spread_evaluator
from decoding.brute_force import BruteForce, agree
from decoding.running import make_decoder, run

import caw
from caw.decoding import prefill
from caw.decoding.memory import decoding_needs
from caw.decoding.prompt_cache import PromptCache
from caw.models.facts import ModelFacts

LIMIT, NEW = 60, 8
BEGINNING = prompt(40, 3)  # long enough to be shared
SHORT = [[*BEGINNING, *prompt(n, n)] for n in (1, 7)]
CROSSING = [[*BEGINNING, *prompt(n, n)] for n in (13, 16, LIMIT - 40)]  # the last grows over at its first token
LONG = [[*BEGINNING, *prompt(n, n)] for n in (25, 31)]


@pytest.fixture(scope="module")
def phi() -> Any:
    """A tiny Phi-3 that turns positions otherwise in texts of more than LIMIT tokens."""
    pairs = GQA["hidden_size"] // GQA["num_attention_heads"] // 2
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * pairs, "long_factor": [6.0] * pairs}
    return from_config("phi3", {**GQA, "rope_parameters": rope, "original_max_position_embeddings": LIMIT})


def stock(model: Any, ids: list[int]) -> list[int]:
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW, pad_token_id=PAD, eos_token_id=None)
    return out[0, len(ids) :].tolist()


def test_every_text_is_as_if_alone(phi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short and long ones together, with a beginning to share, chunks to cut and prompts to keep."""
    monkeypatch.setattr(prefill, "CHUNK", 16)
    prompts, kept = [*SHORT, *CROSSING, *LONG], PromptCache(1 << 20)
    assert max(map(len, SHORT)) + NEW <= LIMIT < min(map(len, LONG)) < POSITIONS
    expected = [stock(phi, ids) for ids in prompts]
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"texts of up to 79 tokens are longer than 60, .*: they are decoded one at a time"
        ):
            assert run(phi, prompts, max_new_tokens=NEW, prompt_cache=kept).tokens == expected
    assert (len(kept), kept.found) == (0, 0)


def test_the_change_shows(phi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would find: the long texts read as if nothing changed."""
    expected = [stock(phi, ids) for ids in [*CROSSING, *LONG]]
    with monkeypatch.context() as patched:
        patched.setattr("caw.models.facts.rope_limit", lambda model: None)
        assert run(phi, LONG, max_new_tokens=NEW).tokens != expected[len(CROSSING) :]
    monkeypatch.setattr("caw.decoding.decoder.read_again", lambda *arguments: None)
    assert [run(phi, [ids], max_new_tokens=NEW).tokens[0] for ids in CROSSING] != expected[: len(CROSSING)]


def test_below_the_change_nothing_is_given_up(phi: Any) -> None:
    kept = PromptCache(1 << 20)
    assert run(phi, SHORT, max_new_tokens=NEW, prompt_cache=kept).tokens == [stock(phi, ids) for ids in SHORT]
    assert len(kept) == len(SHORT)


def test_siblings_beyond_the_change(phi: Any) -> None:
    """Looking ahead in every way to branch is decoding by definition."""
    mark, policy = caw.EXP(key=1, top_k=40), caw.CapacityPolicy(spread_evaluator(phi), theta=1.0)
    reference = BruteForce(phi, mark, policy)
    expected = [reference.decode(ids, NEW) for ids in LONG]
    for branching in ("tree", "sequential", "batch"):
        for ids, wanted in zip(LONG, expected, strict=True):
            done = run(phi, [ids], mark, policy, max_new_tokens=NEW, branching=branching, slots=2)
            assert done.changed > 0
            agree(done.tokens[0], wanted, reference, ids, f"longrope {branching}")


@pytest.mark.parametrize("ids", CROSSING)
def test_siblings_at_the_change(phi: Any, ids: list[int]) -> None:
    """All ways to branch agree, also where a token waits for its forward; marked without looking ahead, text is as by
    definition (with it, features at the change are what the model said before it)."""
    mark, policy = caw.EXP(key=1, top_k=40), caw.CapacityPolicy(spread_evaluator(phi), theta=1.0, beta=1.5)
    made = [
        run(phi, [ids], mark, policy, max_new_tokens=NEW, branching=branching, slots=slots)
        for branching, slots in (("tree", 8), ("tree", 1), ("sequential", 2), ("batch", 2))
    ]
    assert all(one.tokens == made[0].tokens for one in made)
    assert made[0].changed > 0
    fixed = caw.FixedStrength(1.0)
    reference = BruteForce(phi, mark, fixed)
    done = run(phi, [ids], mark, fixed, max_new_tokens=NEW)
    agree(done.tokens[0], reference.decode(ids, NEW), reference, ids, "longrope at the change")


def test_rows_of_one_call_are_refused(phi: Any) -> None:
    """There the rows are the caller's, and transformers lets the longest decide for all."""
    ids = torch.tensor([LONG[0], LONG[0]])
    with pytest.raises(ValueError, match="each has to be decoded by itself, got 2 rows"):
        phi.generate(ids, custom_generate=caw.decode, max_new_tokens=NEW, do_sample=False)
    one = phi.generate(ids[:1], custom_generate=caw.decode, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    assert one[0, len(LONG[0]) :].tolist() == stock(phi, LONG[0])


def test_steps_stay_on_the_host_where_the_embedding_changes(phi: Any) -> None:
    plans = [make_decoder(phi, capacity=capacity, fixed=True).plan for capacity in (LIMIT, LIMIT + 1)]
    assert [plan.captured for plan in plans] == [True, False]


def test_whole_prompts_are_planned_for(phi: Any) -> None:
    plan = [decoding_needs(ModelFacts.of(phi), 100_000, 1, 0, limit).fixed for limit in (None, LIMIT)]
    assert plan[1] > 5 * plan[0]
