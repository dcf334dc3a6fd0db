"""Identities 12 (given the same logits, the chooser emits what `generate` does) and 11 (a fork goes on as its text)."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from decoding.architectures import prompt
from decoding.mixing import FOREIGN
from decoding.running import make_decoder
from decoding.test_step import SAMPLING, WATERMARKS, WINDOWS, capacity_policy
from pairwise import pairwise

import caw
from caw.decoding.request import requests_for
from caw.decoding.row_marks import MOST_KEYS
from caw.decoding.row_settings import RowLimits
from caw.policies import Target

PROMPTS = [prompt(9), prompt(1, 2), prompt(4, 1), prompt(6, 3)]
ENDS = (2,)
OTHERS = ("transformers", "dual", "synthid")  # reads the prompt, has two races, has layers
LENGTHS = (16, 5, 11, 16)
TARGET = Target(0.01, margin=0)
MARKS = {**WATERMARKS, **{name: FOREIGN[name] for name in OTHERS}, "none": None}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
SETTINGS = {
    **SAMPLING,
    "penalties": PENALTIES,
    "bias": {"logit_bias": {5: 2.0, 17: -3.0}, "min_new_tokens": 4},
    "min_p": {"do_sample": True, "min_p": 0.05, "seed": 3, **PENALTIES},
}
POLICIES = {
    "full": lambda model: caw.FixedStrength(1.0),
    "weak": lambda model: caw.FixedStrength(0.3),
    "entropy": lambda model: caw.EntropyThreshold(3.6),
    "delta": lambda model: caw.LogitDeltaThreshold(0.7, value=1.2),
    "target": lambda model: caw.FixedStrength(1.0, TARGET),
    "window00": lambda model: capacity_policy(model, (0, 0)),
    "window10": lambda model: capacity_policy(model, (1, 0)),
    "window00 target": lambda model: caw.CapacityPolicy(capacity_policy(model, (0, 0)).network, 0.8, 1.5, TARGET),
}


def rows_of(**settings: Any) -> list[caw.RowSettings]:
    return [caw.RowSettings(**{"max_new_tokens": length, **settings}) for length in LENGTHS]


class Told:
    """What `generate` made of each prompt, and the logits that each token was chosen from."""

    def __init__(
        self, model: Any, watermark: Any, policy: Any, rows: list[caw.RowSettings], marks: Any = None, **options: Any
    ) -> None:
        limits = RowLimits.of(rows, ENDS)
        decoder = make_decoder(model, watermark, policy, 3, 60, eos_token_ids=ENDS, limits=limits, **options)
        self.logits: list[list[torch.Tensor]] = [[] for _ in PROMPTS]
        self.before: list[torch.Tensor] = [torch.empty(0)] * len(PROMPTS)
        self.plan, decode = decoder.plan, decoder.step.decode

        def step(state: Any, cache: Any) -> Any:
            chosen_from, sequences = state.logits.clone(), list(decoder.rows)
            done = decode(state, cache)
            for row, sequence in enumerate(sequences):
                if sequence is not None and done.emitted[row]:
                    self.logits[sequence.index].append(chosen_from[row])
            return done

        decoder.step.decode = step  # type: ignore[method-assign]
        self.tokens: list[list[int]] = [[] for _ in PROMPTS]
        requests = requests_for(PROMPTS, [row.max_new_tokens for row in rows], rows)
        for number, mark in enumerate(marks or []):
            requests[number] = dataclasses.replace(requests[number], mark=mark)
        for done in decoder.run(requests):
            self.tokens[done.index] = done.tokens
        assert all(len(a) == len(b) > 0 for a, b in zip(self.logits, self.tokens, strict=True))

    def previous(self, model: Any, ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -2:-1].float()


def chooser_of(model: Any, watermark: Any, policy: Any, rows: int = 4, **options: Any) -> caw.Chooser:
    options = {"mark_eos": True, "ends": ENDS, **options}
    return caw.Chooser(watermark, policy, vocab_size=model.config.vocab_size, rows=rows, **options)


def policy_of(model: Any, name: str, policy: str) -> Any:
    """A policy by name for a watermark by name; a race at full strength takes no target."""
    if name == "scale" and policy == "target":
        return caw.FixedStrength(0.7, TARGET)
    return POLICIES[policy](model) if MARKS[name] is not None else None


def chosen(told: Told, chooser: caw.Chooser, rows: list[caw.RowSettings], model: Any) -> list[list[int]]:
    """The chooser's tokens from the same logits, all texts together, in rows of another order."""
    texts: list[list[int]] = [[] for _ in PROMPTS]
    places = [2, 0, 3, 1]
    for ids, place, settings in zip(PROMPTS, places, rows, strict=True):
        before = told.previous(model, ids) if len(ids) > 1 and told.plan.history else None
        chooser.start(place, ids, settings, before=before)
    while going := [n for n, logits in enumerate(told.logits) if len(texts[n]) < len(logits)]:
        logits = torch.stack([told.logits[n][len(texts[n])] for n in going])
        untouched = logits.clone()
        tokens = chooser.choose(logits, [places[n] for n in going])
        assert torch.equal(logits, untouched)
        for n, token in zip(going, tokens.tolist(), strict=True):
            texts[n].append(token)
            chooser.resume(places[n], texts[n])
            if len(texts[n]) == len(told.logits[n]):
                chooser.drop(places[n])
    assert chooser.started == ()
    return texts


@pytest.mark.parametrize("name, policy, sampling", pairwise(MARKS, POLICIES, SETTINGS))
def test_the_chooser_is_generate(llama: Any, name: str, policy: str, sampling: str) -> None:
    watermark, rows, made = MARKS[name], rows_of(**SETTINGS[sampling]), policy_of(llama, name, policy)
    told = Told(llama, watermark, made, rows)
    assert chosen(told, chooser_of(llama, watermark, made), rows, llama) == told.tokens


@pytest.mark.parametrize("name", [name for name in MARKS if name != "none"])
def test_mixed_rows(llama: Any, name: str) -> None:
    """Rows that differ in everything a row may differ in, in one batch."""
    varied = [
        {"key": 77, "do_sample": True, "temperature": 0.7, "seed": 5},
        {**PENALTIES, "strength_factor": 0.5},
        {"do_sample": True, "top_k": 9, "min_p": 0.1, "logit_bias": ((4, 1.5),), "strength_factor": 0.0},
        {"ends": (3, 4), "min_new_tokens": 6, "margin": 1.0},
    ]
    rows = [dataclasses.replace(row, **own) for row, own in zip(rows_of(), varied, strict=True)]
    policy = policy_of(llama, name, "target")
    told = Told(llama, MARKS[name], policy, rows)
    assert chosen(told, chooser_of(llama, MARKS[name], policy), rows, llama) == told.tokens


def test_equal_prompts_draw_apart(llama: Any) -> None:
    """As in a call of `generate`, the same prompt again has draws of its own."""
    chooser, logits = chooser_of(llama, None, None), torch.zeros(2, llama.config.vocab_size)
    for row in range(2):
        chooser.start(row, [1, 2], caw.RowSettings(do_sample=True, seed=1), occurrence=row)
    assert len(set(chooser.choose(logits).tolist())) == 2


@pytest.mark.parametrize("window", [(1, 1), (0, 1), (2, 1)])
def test_a_policy_that_reads_the_next_position_is_refused(llama: Any, window: tuple[int, int]) -> None:
    assert window in WINDOWS
    with pytest.raises(ValueError, match=r"must not read the next position, got one of window .* --next 0"):
        chooser_of(llama, caw.KGW(key=1), capacity_policy(llama, window))


# Texts that are copied, taken up, interrupted ---------------------------------------------------------------------


def text(chooser: caw.Chooser, row: int, logits: list[torch.Tensor], made: list[int]) -> list[int]:
    for own in logits[len(made) :]:
        made = [*made, int(chooser.choose(own[None], [row]))]
        chooser.resume(row, made)
    return made


@pytest.mark.parametrize("name, policy, sampling", pairwise(MARKS, ["full", "target", "window10"], SETTINGS))
def test_forks_and_resumed_texts_are_the_uninterrupted_one(llama: Any, name: str, policy: str, sampling: str) -> None:
    watermark, settings, made = MARKS[name], rows_of(**SETTINGS[sampling])[0], policy_of(llama, name, policy)
    chooser = chooser_of(llama, watermark, made)
    logits = list(torch.randn(12, llama.config.vocab_size, generator=torch.Generator().manual_seed(4)) * 2)
    chooser.start(0, PROMPTS[0], settings)
    begun = text(chooser, 0, logits[:5], [])
    copied = chooser.fork(0)
    whole = text(chooser, 0, logits, begun)
    assert text(chooser, copied, logits, begun) == whole
    chooser.start(3, PROMPTS[0], settings)
    before = torch.stack([logits[4]]) if chooser.history else None
    chooser.resume(3, begun, before=before)
    assert text(chooser, 3, logits, begun) == whole
    chooser._catch_up()
    parts = {name: getattr(chooser._texts, name)[[0, copied, 3]] for name in ("counts", "padded_tokens", "streams")}
    evidence = chooser._texts.evidence
    parts |= (
        {} if evidence is None else {"score": evidence.score[[0, copied, 3]], "seen": evidence.seen[[0, copied, 3]]}
    )
    for part in parts.values():
        assert torch.equal(part[0], part[1]) and torch.equal(part[0], part[2])


def test_a_fork_may_go_on_otherwise(llama: Any) -> None:
    """Other ids behind the fork change the fork alone."""
    chooser, logits = chooser_of(llama, caw.EXP(key=3), None), torch.randn(8, llama.config.vocab_size)
    alone = chooser_of(llama, caw.EXP(key=3), None)
    for one in (chooser, alone):
        one.start(0, PROMPTS[0])
    begun = text(chooser, 0, list(logits[:3]), [])
    other = [*begun, (begun[-1] + 1) % 7]
    copied = chooser.fork(0, to=2)
    chooser.resume(copied, other)
    forked = text(chooser, copied, list(logits), other)
    alone.resume(0, other)
    assert forked == text(alone, 0, list(logits), other)
    assert text(chooser, 0, list(logits), begun)[: len(begun)] == begun


def test_texts_outgrow_their_memory(llama: Any) -> None:
    """Longer than the room there is at first, with a target's evidence: contexts and scores are the whole text's."""
    chooser = chooser_of(llama, caw.Unigram(key=3), POLICIES["target"](llama), rows=2)
    ids = [int(token) for token in torch.arange(700) * 7 % 90]
    chooser.start(0, PROMPTS[0])
    chooser.start(1, PROMPTS[0])
    chooser.resume(0, ids)
    for end in (100, 257, 700):
        chooser.resume(1, ids[:end])
        chooser._catch_up()
    assert chooser._texts.evidence is not None
    assert torch.equal(chooser._texts.evidence.score[0], chooser._texts.evidence.score[1])
    assert chooser._texts.made[0, :700].tolist() == ids


# Ids that are missing, fewer, or others ---------------------------------------------------------------------------


@pytest.fixture
def begun(llama: Any) -> tuple[caw.Chooser, torch.Tensor, int]:
    chooser, logits = chooser_of(llama, caw.KGW(key=3), None), torch.randn(1, llama.config.vocab_size)
    chooser.start(1, [1, 2, 3])
    chooser.resume(1, [7])
    return chooser, logits, int(chooser.choose(logits))


def test_missing_ids_are_an_error(begun: Any) -> None:
    chooser, logits, token = begun
    with pytest.raises(ValueError, match=r"token chosen for row 1 must come back .* call resume"):
        chooser.choose(logits)
    with pytest.raises(ValueError, match=r"row 1 must have all ids that were emitted, 2, got 1; call resume"):
        chooser.choose(logits, lengths=[2])
    with pytest.raises(ValueError, match=r"ids of row 1 must be in \[0, \d+\), got -1; give real ids"):
        chooser.resume(1, [7, -1])
    chooser.resume(1, [7, token])
    chooser.choose(logits, lengths=[2])


def test_a_choice_that_was_thrown_away_is_made_again(begun: Any) -> None:
    chooser, logits, token = begun
    other = torch.roll(logits, 1)
    again = int(chooser.choose(other, lengths=[1]))
    assert int(chooser.choose(logits, lengths=[1])) == token
    chooser.choose(other, lengths=[1])
    chooser.resume(1, [7, again])


@pytest.mark.parametrize(("ids", "said"), [
    ([], r"must go on from the 1 known ones, got 0 .* start the row again"),
    ([8], r"must go on from the 1 known ones, got 1 that do not"),
    ([7, "other"], r"must be the one that was chosen, \d+, got"),
    ([7, "token", 5], r"must be the one that was chosen, \d+, got"),
    ([7.0], r"must be a list of integers, got one with float"),
    ([True], r"must be a list of integers, got one with bool"),
])  # fmt: skip
def test_other_ids_are_an_error(begun: Any, ids: list[Any], said: str) -> None:
    chooser, logits, token = begun
    real = [{"token": token, "other": (token + 1) % 9}.get(one, one) for one in ids]
    with pytest.raises((TypeError, ValueError), match=said):
        chooser.resume(1, real)
    chooser.resume(1, [7, token])
    with pytest.raises(
        ValueError, match=r"row 1 must have no id after the 2 known ones, as none was chosen, got \[3\]"
    ):
        chooser.resume(1, [7, token, 3])
    chooser.choose(logits)


def test_what_else_is_refused(llama: Any) -> None:
    vocab_size = llama.config.vocab_size
    chooser, logits = chooser_of(llama, caw.EXP(key=3), None), torch.randn(1, vocab_size)
    chooser.start(0, [1])
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: caw.Chooser(3, vocab_size=5), TypeError, "watermark must be a caw watermark"),
        (lambda: caw.Chooser(None, 3, vocab_size=5), TypeError, "policy must be a caw policy"),
        (lambda: caw.Chooser(None, vocab_size=0), ValueError, "vocab_size must be"),
        (lambda: caw.Chooser(None, vocab_size=5, backend="x"), ValueError, "backend must be"),
        (lambda: caw.Chooser(None, vocab_size=5, ends=2), TypeError, "ends must be a list of integers, got 2"),
        (lambda: caw.Chooser(None, vocab_size=5, ends=("a",)), TypeError, "ends must be .* got one with str"),
        (lambda: caw.Chooser(None, vocab_size=5, ends=(-1,)), ValueError, r"an end token must be .* got -1"),
        (lambda: caw.Chooser(None, vocab_size=5, device="foo"), ValueError, "device must be one that torch can use"),
        (lambda: caw.Chooser(None, vocab_size=5, device="cuda:99"), ValueError, "device must be one that torch can"),
        (lambda: caw.Chooser(None, vocab_size=5, mark_eos="no"), TypeError, "mark_eos must be True or False"),
        (lambda: chooser.start(4, [1]), ValueError, "row must be"),
        (lambda: chooser.start(1, "abc"), TypeError, "prompt must be a list of integers, got 'abc'"),
        (lambda: chooser.start(1, 5), TypeError, "prompt must be a list of integers, got 5"),
        (lambda: chooser.start(1, [None]), TypeError, "prompt must be .* got one with NoneType"),
        (lambda: chooser.start(1, torch.tensor([[1, 2]])), TypeError, "prompt must be .* got one with list"),
        (lambda: chooser.start(1, [1], {"do_sample": True}), TypeError, "settings must be caw.RowSettings or None"),
        (lambda: chooser.start(1, [1], caw.RowSettings(log_probs=True)), ValueError, "keeps no log-probabilities"),
        (lambda: chooser.start(1, [1], occurrence="x"), TypeError, "occurrence must be an integer"),
        (lambda: chooser.start(1, [1], occurrence=-1), ValueError, "occurrence must be an integer"),
        (lambda: chooser.resume(0, None), TypeError, "ids of row 0 must be a list of integers, got None"),
        (lambda: chooser.resume(0, "ab"), TypeError, "ids of row 0 must be a list of integers, got 'ab'"),
        (lambda: chooser.resume([0], [1]), TypeError, "row must be an integer"),
        (lambda: chooser.choose(logits, 0), TypeError, "rows must be a list of integers, got 0"),
        (lambda: chooser.choose(logits, [0], 3), TypeError, "lengths must be a list of integers, got 3"),
        (lambda: chooser.start(1, []), ValueError, "prompt must have at least one"),
        (lambda: chooser.start(1, [vocab_size]), ValueError, r"must be in \[0, "),
        (lambda: chooser.start(1, [1], caw.RowSettings(strength_factor=50.0)), ValueError, "top_k"),
        (lambda: chooser.choose(logits, [1]), ValueError, "row must be one that has a text"),
        (lambda: chooser.choose(logits, []), ValueError, "rows must be at least one"),
        (lambda: chooser.choose(logits.long()), TypeError, "logits must be a float tensor"),
        (lambda: chooser.choose(logits[:, :5]), ValueError, "logits must be"),
        (lambda: chooser.choose(logits * torch.nan), ValueError, r"finite, got NaN or infinity in rows \[0\]"),
        (lambda: chooser.drop(2), ValueError, "row must be one that has a text"),
    ]
    for call, kind, said in wrong:
        with pytest.raises(kind, match=said):
            call()
    full = chooser_of(llama, None, None, rows=1)
    full.start(0, [1])
    with pytest.raises(ValueError, match="a fork needs an empty row"):
        full.fork(0)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_refused_strength_does_not_stay(llama: Any, rows: int) -> None:
    class Wild(caw.policies.Policy):
        max_strength, given = 1.0, 3.0

        def strength(self, signals: Any) -> torch.Tensor:
            return torch.full_like(signals.current.logsumexp, self.given)

    policy, logits = Wild(), torch.randn(1, llama.config.vocab_size)
    chooser = chooser_of(llama, caw.KGW(key=3), policy, rows=rows)
    chooser.start(0, [1])
    with pytest.raises(ValueError, match="got 3 in row 0"):
        chooser.choose(logits)
    policy.given = 1.0
    chooser.choose(logits)


def test_a_mask_that_leaves_only_ends_is_an_error(llama: Any) -> None:
    chooser, logits = chooser_of(llama, caw.KGW(key=3), None), torch.full((2, llama.config.vocab_size), -torch.inf)
    for row in range(2):
        chooser.start(row, [1], caw.RowSettings(min_new_tokens=2 * row))
    logits[:, 2] = 1.0
    with pytest.raises(ValueError, match=r"a token other than the ends before min_new_tokens, got none in rows \[1\]"):
        chooser.choose(logits)
    assert chooser.choose(logits[:1], [0]).tolist() == [2]


def test_a_race_at_full_strength_has_one_strength(llama: Any) -> None:
    race = WATERMARKS["scale"]
    with pytest.raises(ValueError, match="takes no target"):
        chooser_of(llama, race, POLICIES["target"](llama))
    chooser = chooser_of(llama, race, None)
    with pytest.raises(ValueError, match=r"has strength_factor 1, or 0 for an unmarked text, got 0\.5"):
        chooser.start(0, [1], caw.RowSettings(strength_factor=0.5))
    assert chooser.started == ()
    chooser.start(0, [1], caw.RowSettings(strength_factor=0.0))


# Ids of other types, and what an error leaves behind ----------------------------------------------------------------


def test_ids_of_every_type_draw_the_same(llama: Any) -> None:
    """The stream is a hash of the prompt's integers, whatever holds them."""
    watermark, logits = caw.EXP(key=3), torch.randn(1, llama.config.vocab_size) * 0.1
    kinds: list[Any] = [list, tuple, np.array, torch.tensor, lambda ids: list(np.array(ids)), range_of]
    texts = []
    for kind in kinds:
        chooser, ids = chooser_of(llama, watermark, caw.FixedStrength(0.5)), list[int]()
        chooser.start(0, kind([4, 5, 6]), caw.RowSettings(do_sample=True, seed=2))
        for _ in range(6):
            ids.append(int(chooser.choose(logits)))
            chooser.resume(0, kind(ids) if kind is not range_of else ids)
        texts.append(ids)
    assert texts == [texts[0]] * len(kinds)
    assert all(type(token) is int for token in chooser._rows[0].ids)
    for wrong in ([4.0, 5.0], [True], torch.tensor([4.0])):
        with pytest.raises(TypeError, match=r"prompt must be a list of integers, got one with (float|bool)"):
            chooser.start(0, wrong)


def range_of(ids: list[int]) -> range:
    return range(ids[0], ids[-1] + 1)


BEFORE: list[tuple[Any, type[Exception], str]] = [
    (lambda v: torch.full((1, v), torch.nan), ValueError, "must be finite or -inf"),
    (lambda v: torch.full((1, v), torch.inf), ValueError, "must be finite or -inf"),
    (lambda v: torch.full((1, v), -torch.inf), ValueError, "must be finite or -inf"),
    (lambda v: torch.zeros(1, 10), ValueError, r"must be \[n, \d+\] on cpu, n at most 1, got \[1, 10\]"),
    (lambda v: torch.zeros(v), ValueError, r"must be \[n, "),
    (lambda v: torch.zeros(2, v), ValueError, "n at most 1"),
    (lambda v: torch.zeros(0, v), ValueError, "n at most 1"),
    (lambda v: torch.zeros(1, v, dtype=torch.int64), TypeError, "must be a float tensor or None"),
    (lambda v: [[0.0] * v], TypeError, "must be a float tensor or None"),
]


@pytest.mark.parametrize(("make", "kind", "said"), BEFORE)
def test_logits_of_earlier_positions_are_checked_first(llama: Any, make: Any, kind: type[Exception], said: str) -> None:
    """Earlier logits that cannot be read are refused before anything changes."""
    vocab_size = llama.config.vocab_size
    chooser, wrong = chooser_of(llama, caw.KGW(key=3), POLICIES["window10"](llama)), make(vocab_size)
    chooser.start(1, [1], before=torch.zeros(1, vocab_size))
    held = [record.logsumexp.clone() for record in chooser._positions.history]
    with pytest.raises(kind, match=f"before .*{said}"):
        chooser.start(0, [1, 2], before=wrong)
    with pytest.raises(kind, match=f"before .*{said}"):
        chooser.resume(1, [5], before=wrong)
    assert chooser.started == (1,) and chooser._rows[1].ids == [] and chooser._rows[1].late == []
    assert torch.equal(chooser._positions.history[0].logsumexp, held[0])
    other = chooser_of(llama, caw.KGW(key=3), None)
    with pytest.raises((TypeError, ValueError), match="before must be"):
        other.start(0, [1, 2], before=wrong)


def test_an_error_changes_no_text(llama: Any) -> None:
    chooser, vocab_size = chooser_of(llama, caw.KGW(key=3), None), llama.config.vocab_size
    chooser.start(0, [1, 2])
    for wrong in ([5, 1.5], [5, vocab_size], [5, -1], [5, None]):
        with pytest.raises((TypeError, ValueError), match="ids of row 0 must be"):
            chooser.resume(0, wrong)
    chooser.resume(0, [5, 6])
    chooser.choose(torch.randn(1, vocab_size))
    assert chooser._texts.counts[0] == 2 and chooser._texts.made[0, :3].tolist() == [5, 6, -1]


def test_earlier_logits_stay_until_ids_come(llama: Any) -> None:
    """A `resume` without new ids forgets nothing, and logits that the engine writes over later are not read again."""
    chooser = chooser_of(llama, caw.KGW(key=3), POLICIES["window10"](llama))
    first, second = torch.randn(2, 1, llama.config.vocab_size).requires_grad_()
    chooser.start(0, [1, 2], before=first)
    held = chooser._positions.history[0].logsumexp[0].clone()
    assert held.isfinite() and not chooser._positions.history[0].logsumexp.requires_grad
    chooser.resume(0, [])
    chooser.choose(torch.randn(1, llama.config.vocab_size), lengths=[0])
    assert chooser._positions.history[0].logsumexp[0] == held
    chooser.start(0, [1, 2])
    buffer = second.detach().clone()
    chooser.resume(0, [5], before=buffer)
    buffer.fill_(torch.nan)
    chooser.choose(torch.randn(1, llama.config.vocab_size))
    assert torch.allclose(chooser._positions.history[0].logsumexp[0], second.detach().logsumexp(dim=1)[0])


def test_inference_mode_may_come_and_go(llama: Any) -> None:
    """What is allocated under `torch.inference_mode` is written outside of it."""
    vocab_size, policy = llama.config.vocab_size, POLICIES["target"](llama)
    logits = torch.randn(3, 1, vocab_size, generator=torch.Generator().manual_seed(1))
    wide = caw.RowSettings(ends=(3, 4, 5), repetition_penalty=1.2, logit_bias={6: 1.0})
    known = [token % 50 for token in range(300)]
    texts = []
    for modes in ((True, False), (False, True), (False, False)):
        with torch.inference_mode(modes[0]):
            chooser = chooser_of(llama, caw.KGW(key=3), policy, rows=2)
            chooser.start(0, PROMPTS[0])
        with torch.inference_mode(modes[1]):
            chooser.start(1, PROMPTS[1], wide)
            chooser.resume(1, known)
            made = [int(chooser.choose(logits[0], [1]))]
        with torch.inference_mode(modes[0]):
            chooser.resume(1, [*known, *made])
            chooser.start(0, PROMPTS[2], wide)
            made += chooser.choose(torch.cat([logits[1], logits[2]]), [0, 1]).tolist()
        texts.append(made)
    assert texts[0] == texts[1] == texts[2]


def test_keys_are_not_kept_for_ever(llama: Any) -> None:
    chooser, logits = chooser_of(llama, caw.EXP(key=1), None), torch.randn(1, llama.config.vocab_size)
    alone = chooser_of(llama, caw.EXP(key=1), None)
    alone.start(0, [1], caw.RowSettings(key=9))
    for key in range(200):
        chooser.start(0, [1], caw.RowSettings(key=key))
        chooser.drop(0)
    assert len(chooser._plan.marks.by_key) == 1 + MOST_KEYS
    chooser.start(0, [1], caw.RowSettings(key=9))
    assert torch.equal(chooser.choose(logits), alone.choose(logits))


# What `generate` also does ------------------------------------------------------------------------------------------

FEATURES = {
    "free": (caw.EXP(key=3, strength="scale"), {"do_sample": True, "seed": 8}, {}),
    "subkey": (caw.KGW(key=3, subkeys=4, subkey=2), {}, {}),
    "payload": (caw.KGW(key=3, gamma=0.25, payload=9, payload_bits=4), {}, {}),
    "eos": (caw.KGW(key=3, delta=6.0, gamma=0.5), {"ends": tuple(range(2, 40))}, {"mark_eos": False}),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features_of_generate(llama: Any, name: str) -> None:
    watermark, settings, options = FEATURES[name]
    rows = rows_of(**settings)
    told = Told(llama, watermark, None, rows, **options)
    assert chosen(told, chooser_of(llama, watermark, None, **options), rows, llama) == told.tokens
