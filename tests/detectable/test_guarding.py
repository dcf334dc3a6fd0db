"""Guarded texts: unmarked, then changed until they are detected, within what they must keep."""

import copy
import itertools
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import pytest
from decoding.architectures import build, prompt, tokenizer
from decoding.test_evidence import MARKS

import caw
from caw.decoding.forks import Stem
from caw.detectable import search
from caw.detectable.attempts import UndetectedError
from caw.detectable.damage import broken
from caw.detectable.splicing import spliced
from caw.keeps.parts import same_content

PROMPTS = [prompt(9, seed) for seed in range(4)]
MARK = caw.KGW(key=1, delta=6.0)
FREE = caw.Guard(keeps=lambda unmarked, marked: True, rejoin=2, horizon=8)
OPTIONS: dict[str, Any] = {
    "watermark": MARK, "max_new_tokens": 60, "detectable_at": 1e-2, "guard": FREE, "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.fixture(scope="module", autouse=True)
def nothing_breaks() -> Iterator[None]:
    """Tiny texts are noise in which nearly every change breaks a pair or a table; what does is tested by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "broken", lambda old, patches, text_of: "")
        yield


@pytest.fixture(scope="module")
def unmarked(model: Any) -> caw.GenerationOutput:
    return caw.generate(model, tokenizer(), PROMPTS, max_new_tokens=60, progress=False)


@pytest.fixture(scope="module")
def guarded(model: Any) -> caw.GenerationOutput:
    return caw.generate(model, tokenizer(), PROMPTS, **OPTIONS)


def test_texts_are_changed_until_they_are_detected(guarded: Any, unmarked: Any) -> None:
    found = 0
    for text, tokens, trace, receipt, plain in zip(
        guarded.texts, guarded.sequences, guarded.trace, guarded.receipts, unmarked.sequences, strict=True
    ):
        result = caw.detect(text, tokenizer(), MARK, 1e-2)
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.kept is True and receipt.keeps == "<lambda>" and receipt.attempts == 1
        assert trace.tokens == tokens and len(tokens) <= 60
        assert (receipt.changes > 0) == (tokens != plain) and receipt.changes <= receipt.rollouts
        assert sum(choice > 0 for choice in trace.choice) >= receipt.changes  # patches side by side are one
        found += receipt.detected
    assert found >= 2 and any(receipt.changes for receipt in guarded.receipts)


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 3}, {"speculate": None}, {"speculate": 4}])
def test_texts_do_not_depend_on_batch_or_drafts(model: Any, guarded: Any, settings: dict[str, Any]) -> None:
    again = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, **settings})
    assert (again.sequences, again.receipts) == (guarded.sequences, guarded.receipts)


def test_the_sub_key_that_the_unmarked_text_shows_most_of_marks_it(model: Any, unmarked: Any) -> None:
    mark = caw.KGW(key=1, delta=6.0, subkeys=16)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "watermark": mark, "detectable_at": 0.05})
    changed = 0
    for text, plain, receipt in zip(made.texts, unmarked.texts, made.receipts or [], strict=True):
        result, before = (caw.detect(each, tokenizer(), mark, 0.05) for each in (text, plain))
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.rolled >= receipt.rollouts
        if receipt.changes:
            changed += 1
            assert (receipt.subkey, receipt.subkeys) == (before.subkey, 16) and result.p_value < before.p_value
    assert changed >= 2 and len({receipt.subkey for receipt in made.receipts or []} - {None}) > 1


def test_a_text_that_is_detected_unmarked_leaves_as_it_is(model: Any, unmarked: Any) -> None:
    mark = next(
        mark
        for mark in (caw.KGW(key=key, delta=6.0) for key in itertools.count())
        if caw.detect(unmarked.texts[0], tokenizer(), mark, 0.1).is_watermarked
    )
    made = caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, "watermark": mark, "detectable_at": 0.1})
    [receipt] = made.receipts or []
    assert made.sequences[0] == unmarked.sequences[0]
    assert receipt.detected and (receipt.changes, receipt.rollouts, receipt.strength_factor) == (0, 0, 0.0)


@pytest.mark.parametrize(("answer", "error"), [
    ("", "TypeError: keeps must return True or False, got str; use bool(...)"),
    ([True], "TypeError: keeps must return True or False, got list; use bool(...)"),
    (KeyError("no field"), "KeyError: 'no field'"), (SystemExit(0), "SystemExit: 0"),
])  # fmt: skip
def test_a_reader_that_raises_or_says_neither_true_nor_false_keeps_nothing_and_is_named(
    model: Any, unmarked: Any, answer: Any, error: str
) -> None:
    """One returned what had failed, as text; others run code which ends with `sys.exit()`."""

    def fails(old: str, new: str) -> bool:
        if old != new and isinstance(answer, BaseException):
            raise answer
        return old == new or answer

    made = caw.generate(
        model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": caw.Guard(keeps=fails, rejoin=2, horizon=8)}
    )
    assert made.sequences == unmarked.sequences
    assert error in {receipt.keeps_error for receipt in made.receipts or []}


@pytest.mark.parametrize(("keeps", "error"), [
    (lambda old, new: False, "keeps must return True for the unmarked text as both, got False; compare the texts"),
    (lambda old, new: 1 / 0, "ZeroDivisionError: division by zero"),
], ids=["rejects", "raises"])  # fmt: skip
def test_a_reader_that_fails_on_the_unmarked_text_ends_the_search_at_once(
    model: Any, unmarked: Any, keeps: Any, error: str
) -> None:
    """It rejected every change, for the price of all rollouts, and the receipt said that the text was kept."""
    guard = caw.Guard(keeps=keeps, rejoin=2, horizon=8)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": guard})
    assert made.sequences == unmarked.sequences
    tried = [receipt for receipt in made.receipts or [] if not receipt.detected]
    assert tried and all((r.kept, r.rollouts, r.changes) == (False, 0, 0) and r.keeps_error == error for r in tried)


def test_ctrl_c_in_a_reader_ends_the_call(model: Any) -> None:
    def interrupted(old: str, new: str) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": caw.Guard(interrupted, rejoin=2, horizon=8)})


@pytest.mark.slow
def test_guarded_sentences_keep_their_numbers_and_names(demo: Any) -> None:
    prompts, mark = ["List three famous inventors with the years they lived."], caw.KGW(key=1, delta=4.0)
    options = {"max_new_tokens": 60, "chat": True, "progress": False}
    [plain] = caw.generate(*demo, prompts, **options).texts
    tested = {"watermark": mark, "detectable_at": 0.1, "guard": caw.Guard("content", rollouts=40)}
    made = caw.generate(*demo, prompts, **tested, **options)
    [text], [receipt] = made.texts, made.receipts or []
    result = caw.detect(text, demo[1], mark, 0.1)
    assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
    assert receipt.kept and receipt.changes and text != plain
    assert receipt.p_value < caw.detect(plain, demo[1], mark, 0.1).p_value
    assert same_content(plain, text) and "1904" in plain


@pytest.mark.parametrize("name", [name for name in MARKS if name not in ("kgw", "key of its own")])
def test_every_watermark(model: Any, unmarked: Any, name: str) -> None:
    """What is kept is kept, the receipt is the detector's, and p falls where a text was changed, as one is."""
    guard = caw.Guard(keeps=lambda old, new: old[:9] == new[:9], rejoin=2, horizon=8, rollouts=40)
    options = {**OPTIONS, "watermark": MARKS[name], "guard": guard, "detectable_at": 0.02}
    made = caw.generate(model, tokenizer(), PROMPTS[:2], **options)
    mark = MARKS[name].with_vocabulary(131)
    for text, plain, receipt in zip(made.texts, unmarked.texts, made.receipts or [], strict=False):
        old, new = (caw.detect(each, tokenizer(), mark, 0.02) for each in (plain, text))
        assert (receipt.detected, receipt.p_value) == (new.is_watermarked, new.p_value)
        assert text[:9] == plain[:9] and receipt.kept and receipt.rollouts + receipt.detected
        assert (text != plain) == (receipt.changes > 0)
        assert new.p_value < old.p_value if receipt.changes else new.p_value == old.p_value
    assert any(receipt.changes for receipt in made.receipts or [])


def test_stop_strings_and_minima_hold(model: Any, unmarked: Any) -> None:
    """Texts that stop late, and none that is shorter than the unmarked one; both are changed."""
    stop = unmarked.texts[0][-6:-3]
    plain = caw.generate(model, tokenizer(), PROMPTS, max_new_tokens=60, stop=stop, progress=False)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "stop": stop})
    for text, tokens, reason in zip(made.texts, made.sequences, made.finish_reasons, strict=True):
        assert stop not in text and (reason == "stop") == (stop in tokenizer().decode(tokens))
    assert plain.finish_reasons[0] == made.finish_reasons[0] == "stop" and made.sequences != plain.sequences
    lengths = []
    for least in (0, 60):
        options = {**OPTIONS, "detectable_at": 1e-6, "min_new_tokens": least}
        lengths.append([len(tokens) for tokens in caw.generate(model, tokenizer(), PROMPTS, **options).sequences])
    assert min(lengths[0]) < 60 == min(lengths[1]), "without the minimum one is shorter"


def test_edits_enter_the_stop(model: Any, guarded: Any) -> None:
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "edits": 0.2})
    receipts = made.receipts or []
    assert sum(r.rollouts for r in receipts) > sum(r.rollouts for r in guarded.receipts)
    assert all(r.edits == 0.2 for r in receipts)
    assert all(r.p_value <= 1e-2 for r in receipts if r.detected)
    assert sum(r.detected for r in receipts) <= sum(r.detected for r in guarded.receipts)


def test_undetected_texts(model: Any) -> None:
    options = {**OPTIONS, "guard": caw.Guard(keeps=lambda old, new: old == new, rejoin=2, horizon=8)}
    dropped = caw.generate(model, tokenizer(), PROMPTS, on_undetected="drop", **options)
    assert any(reason == "undetected" for reason in dropped.finish_reasons)
    unmarked = caw.generate(model, tokenizer(), PROMPTS, on_undetected="unmarked", **{**options, "guard": FREE})
    kept = caw.generate(model, tokenizer(), PROMPTS, on_undetected="keep", **{**options, "guard": FREE})
    plain = caw.generate(model, tokenizer(), PROMPTS, max_new_tokens=60, progress=False)
    for text, other, old, receipt in zip(unmarked.texts, kept.texts, plain.texts, unmarked.receipts or [], strict=True):
        assert text == (other if receipt.detected else old) and receipt.kept
        assert receipt.detected or (receipt.changes, receipt.strength_factor) == (0, 0.0)
    assert unmarked.texts != kept.texts, "one was changed and is not detected"
    with pytest.raises(ValueError, match="needs a guard"):
        caw.generate(model, tokenizer(), PROMPTS, on_undetected="unmarked", **without(OPTIONS, "guard"))
    with pytest.raises(UndetectedError, match="every text must be detectable"):
        caw.generate(model, tokenizer(), PROMPTS, on_undetected="raise", **options)


def ends_with(model: Any, token: int) -> Any:
    other = copy.deepcopy(model)
    other.config.eos_token_id = other.generation_config.eos_token_id = token
    return other


@pytest.mark.parametrize("guard", [FREE, caw.Guard(rejoin=2, horizon=8)])
def test_texts_of_one_token(model: Any, unmarked: Any, guard: caw.Guard) -> None:
    """They end at once, by an end token, a stop string or the budget, alone or beside longer ones."""
    first = unmarked.sequences[0][0]
    ended = caw.generate(ends_with(model, first), tokenizer(), PROMPTS[:2], **{**OPTIONS, "guard": guard})
    assert ended.sequences[0] == [first] and ended.finish_reasons[0] == "eos" and len(ended.sequences[1]) > 1
    stop = tokenizer().decode([first])
    made = caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, "guard": guard, "stop": stop})
    assert made.sequences == [[first]] and made.finish_reasons == ["stop"]
    short = {**OPTIONS, "guard": guard, "max_new_tokens": 1, "detectable_at": 0.9}
    made = caw.generate(model, tokenizer(), PROMPTS[:2], **short)
    assert made.sequences == [tokens[:1] for tokens in unmarked.sequences[:2]]
    assert [receipt.rollouts for receipt in made.receipts or []] == [0, 0]


def test_no_end_of_a_rollout_throws_the_rest_of_the_text_away(model: Any) -> None:
    """Rollouts that come to an end of their own would leave little of a long text."""
    cut = 0
    for seed in range(12):
        [plain] = caw.generate(model, tokenizer(), [prompt(9, seed)], max_new_tokens=60, progress=False).sequences
        places = [place for place in range(25, len(plain)) if plain[place] not in plain[:place]]
        if not places:
            continue
        own, length = ends_with(model, plain[places[0]]), places[0] + 1
        guard = caw.Guard(FREE.keeps, rejoin=4, horizon=8)
        options = {**OPTIONS, "guard": guard, "detectable_at": 1e-3}
        [tokens] = caw.generate(own, tokenizer(), [prompt(9, seed)], **options).sequences
        cut += tokens != plain[:length]
        assert len(tokens) > length - 3 * guard.horizon
    assert cut, "nothing was changed: the test shows nothing"


def test_what_a_finished_text_is_forked_from_is_freed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stems: list[Stem] = []
    monkeypatch.setattr(search, "Stem", lambda: (stems.append(Stem()), stems[-1])[1])
    held = [
        sum(bool(each.rest) for each in stems)
        for _ in caw.iter_generate(model, tokenizer(), PROMPTS[:2], batch_size=1, **without(OPTIONS, "progress"))
    ]
    assert held == [0, 0] and len(stems) == 2


def without(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}


def test_a_reader_is_asked_once_about_each_text(model: Any) -> None:
    asked: list[str] = []
    guard = caw.Guard(keeps=lambda old, new: bool(asked.append(new)) or True, rejoin=2, horizon=8)
    caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, "guard": guard, "detectable_at": 1e-6})
    assert len(asked) == len(set(asked)) > 10


@pytest.mark.parametrize("keeps", ["json", lambda old, new: None], ids=["json", "own"])
def test_changes_are_the_stretches_that_differ_and_what_was_not_checked_is_not_called_kept(
    model: Any, unmarked: Any, keeps: Any
) -> None:
    """Here later strengths change what earlier ones wrote. No text holds JSON: numbers, names and code are kept."""
    options = {**OPTIONS, "guard": caw.Guard(keeps, rejoin=2, horizon=8), "detectable_at": 1e-4}
    made = caw.generate(model, tokenizer(), PROMPTS, **options)
    assert any(receipt.changes for receipt in made.receipts or [])
    for tokens, plain, receipt in zip(made.sequences, unmarked.sequences, made.receipts or [], strict=True):
        same = SequenceMatcher(a=plain, b=tokens, autojunk=False).get_matching_blocks()
        assert receipt.changes <= len(same) + 1 and (receipt.changes > 0) == (tokens != plain)
        held = keeps == "json" and any(map(plain_text(plain).count, "[{"))
        assert receipt.kept is (None if receipt.changes and not held else True)
        assert held or same_content(plain_text(plain), plain_text(tokens))


def plain_text(tokens: list[int]) -> str:
    return str(tokenizer().decode(tokens))


def test_texts_are_cut_at_the_budget_as_the_unmarked_one_was(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, none could be changed into one of more tokens."""
    allowed, longer = search.GuardSearch._allowed, []

    def seen(self: Any, base: Any, patches: Any) -> Any:
        version = allowed(self, base, patches)
        if version is not None and len(spliced(base.tokens, patches)) > 40:
            longer.append(len(version.tokens))
        return version

    monkeypatch.setattr(search.GuardSearch, "_allowed", seen)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "detectable_at": 1e-4, "max_new_tokens": 40})
    assert set(longer) == {40}
    for tokens, trace in zip(made.sequences, made.trace or [], strict=True):
        assert len(tokens) <= 40 and trace.tokens == tokens


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    ordered, found = search.GuardSearch._ordered, list[Any]()

    def watched(self: Any, base: Any, proposals: Any) -> Any:
        found.extend(proposals)
        return ordered(self, base, proposals)

    monkeypatch.setattr(search.GuardSearch, "_ordered", watched)
    return found


def test_tokens_that_the_request_bans_are_not_proposed(model: Any, proposed: list[Any]) -> None:
    """Others were ranked by the model's own distribution, where a ban does not show."""
    banned = set(range(3, 131, 2))
    options = {**OPTIONS, "detectable_at": 1e-3, "logit_bias": dict.fromkeys(banned, -100.0)}
    made = caw.generate(model, tokenizer(), PROMPTS, **options)
    assert len(proposed) > 100 and not any(choice.token in banned for choice in proposed)
    assert not any(banned & set(tokens) for tokens in made.sequences)
    assert any(receipt.changes for receipt in made.receipts or [])


def test_proposals_are_as_likely_as_the_requests_own_logits_say(model: Any, proposed: list[Any]) -> None:
    """What takes a nat from every even token makes an odd one cheaper beside it, by that nat."""
    lost, plain = [], []
    for bias in (0.0, -1.0):
        proposed.clear()
        row = dict.fromkeys(range(4, 131, 2), bias)
        caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, "logit_bias": row, "detectable_at": 1e-4})
        lost.append({(each.place, each.token): each.lost for each in proposed})
        plain += caw.generate(
            model, tokenizer(), PROMPTS[:1], logit_bias=row, max_new_tokens=60, progress=False
        ).sequences
    same = next(place for place, (one, other) in enumerate(zip(*plain, strict=True)) if one != other)
    both = [each for each in lost[0].keys() & lost[1].keys() if each[0] < same]
    assert len(both) > 3
    for place, token in both:
        change = (plain[0][place] % 2 == 0) - (token % 2 == 0)  # of the own token and of the other one
        assert lost[1][place, token] == pytest.approx(lost[0][place, token] - change, abs=1e-4)


def test_nothing_is_marked_where_the_policy_marks_nothing(model: Any, unmarked: Any) -> None:
    """The last stage changed places that the policy protects, and here it protects all."""
    options = {**OPTIONS, "policy": caw.EntropyThreshold(50.0), "detectable_at": 1e-3}
    made = caw.generate(model, tokenizer(), PROMPTS, **options)
    assert made.sequences == unmarked.sequences
    assert [receipt.changes for receipt in made.receipts or []] == [0] * len(PROMPTS)


def test_traces_name_the_strength_that_the_policy_gave(model: Any, proposed: list[Any]) -> None:
    nats, strengths = 3.5, (1.0, 1.5, 2.25)
    options = {**OPTIONS, "policy": caw.EntropyThreshold(nats), "detectable_at": 1e-4}
    made = caw.generate(model, tokenizer(), PROMPTS, **options)
    protected = [each.entropy for each in proposed if each.trace.strength == 0]
    marked = [each for each in proposed if each.trace.strength]
    assert protected and marked and max(protected) < nats + 0.5  # the policy counts what is not in a record
    assert all(each.trace.strength == strengths[each.level] and each.entropy > nats - 0.5 for each in marked)
    changed = [
        sigma
        for trace in made.trace or []
        for sigma, choice in zip(trace.strength, trace.choice, strict=True)
        if choice
    ]
    assert changed and set(changed) <= {0.0, *strengths}


def test_what_breaks_is_not_taken(model: Any, unmarked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each patch is read where it is in the unmarked text."""
    seen = []

    def watched(old: Any, patches: Any, text_of: Any) -> str:
        said = broken(old, patches, text_of)
        seen.append((text_of(spliced(old, patches)), said))
        return said

    monkeypatch.setattr(search, "broken", watched)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "detectable_at": 1e-3})
    assert any(said for _, said in seen)
    right = {text for text, said in seen if not said} | set(unmarked.texts)
    assert set(made.texts) <= right and made.texts != unmarked.texts


def test_texts_do_not_shrink_or_grow_much(model: Any, unmarked: Any) -> None:
    """Splice by splice, a text of 60 tokens became one of 19 that still said it had reached the token limit."""
    lengths = []
    for key in (1, 2, 3):
        options = {**OPTIONS, "watermark": caw.KGW(key=key, delta=6.0), "detectable_at": 1e-6}
        made = caw.generate(model, tokenizer(), PROMPTS, **options)
        for tokens, plain in zip(made.sequences, unmarked.sequences, strict=True):
            lengths.append(len(tokens) - len(plain))
            assert abs(lengths[-1]) <= max(0.1 * len(plain), 4)
    assert any(lengths)


def test_a_detected_text_needs_each_of_its_changes(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prune, seen, needed = search.GuardSearch._prune, [], []

    def watched(self: Any, base: Any, state: Any) -> None:
        before = len(state.taken)
        prune(self, base, state)
        seen.append(before - len(state.taken))
        for one in state.taken:
            rest = [other.patch for other in state.taken if other is not one]
            version = self._allowed(base, rest) if rest else None
            needed.append(version is None or not version.verdict.found)
        assert state.best.verdict.found

    monkeypatch.setattr(search.GuardSearch, "_prune", watched)
    for key in (1, 2, 3):
        options = {**OPTIONS, "watermark": caw.KGW(key=key, delta=6.0), "detectable_at": 0.02}
        caw.generate(model, tokenizer(), PROMPTS, **options)
    assert len(seen) >= 2 and any(seen) and all(needed)


def test_what_a_text_costs_is_bounded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, readings = search.GuardSearch._reading, []

    def counted(self: Any, tokens: Any) -> Any:
        readings.append(self)
        return read(self, tokens)

    monkeypatch.setattr(search.GuardSearch, "_reading", counted)
    guard = caw.Guard(rejoin=2, horizon=8, rollouts=5)
    made = caw.generate(model, tokenizer(), PROMPTS[:2], **{**OPTIONS, "guard": guard, "detectable_at": 1e-6})
    assert all(receipt.rollouts <= 5 for receipt in made.receipts or [])
    assert len(readings) == len(set(readings)) > 0, "each text is read once"


def test_changes_that_gain_nothing_are_not_taken(model: Any, unmarked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two p-values near 1 may have the same z, by which nothing can be divided."""
    monkeypatch.setattr(search, "z_of", lambda p_value: 0.0)
    made = caw.generate(model, tokenizer(), PROMPTS[:1], **OPTIONS)
    assert made.sequences == unmarked.sequences[:1]
