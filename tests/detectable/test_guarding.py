"""Guarded texts: unmarked, then changed until they are detected, within what they must keep."""

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import pytest
import torch
from decoding.architectures import build, prompt, tokenizer
from decoding.test_evidence import MARKS
from detectable.noise import let_all_pass
from generating import Recorder

import caw
from caw.decoding.forks import Stem
from caw.detectable import search
from caw.detectable.attempts import UndetectedError
from caw.detectable.damage import broken
from caw.detectable.splicing import rejoined, spliced
from caw.keeps.parts import same_content

PROMPTS = [prompt(9, seed) for seed in range(4)]
MARK = caw.KGW(key=1, delta=6.0)
FREE = caw.Guard(keeps=lambda unmarked, marked: True, rejoin=2, horizon=8, loss=99, layout=False, rollouts=64)
OPTIONS: dict[str, Any] = {
    "watermark": MARK, "max_new_tokens": 60, "detectable_at": 1e-2, "guard": FREE, "progress": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Any:
    return build("llama")


@pytest.fixture(scope="module", autouse=True)
def nothing_breaks() -> Iterator[None]:
    """What breaks and what words may cost are tested by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        let_all_pass(patch)
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


def nats(model: Any, ids: list[int], tokens: list[int]) -> list[float]:
    """What the unmarked model says of each token of a text, by a forward of its own."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    return logits.log_softmax(dim=1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("settings", [{}, {"speculate": 4}, {"batch_size": 1}])
def test_a_patch_loses_what_the_model_says(model: Any, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """In all the tokens of its rollout, those that rejoin among them."""
    roll, count = search.GuardSearch._rolled, [0]

    def watched(self: Any, choice: Any, sequence: Any) -> Any:
        one = roll(self, choice, sequence)
        if one is not None:
            place, tokens, old, prompt = choice.place, sequence.tokens, self.base.tokens, self.asked.ids
            end = rejoined(old, tokens, place, self.guard.rejoin) or len(old)
            inside = nats(model, prompt, tokens)[place:]
            assert one.lost == pytest.approx(sum(nats(model, prompt, old)[place:end]) - sum(inside), abs=1e-3)
            count[0] += 1
        return one

    monkeypatch.setattr(search.GuardSearch, "_rolled", watched)
    caw.generate(model, tokenizer(), PROMPTS[:2], **{**OPTIONS, "detectable_at": 1e-4, **settings})
    assert count[0] > 10


@pytest.mark.parametrize("loss", [4.0, 9.0])
def test_a_text_loses_what_it_may(model: Any, unmarked: Any, monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    """Every change, with up to 24 copied tokens behind it; half of it at one of these."""
    end, count, most = search.GuardSearch._ended, 0, 0.0
    ended: dict[tuple[int, ...], list[Any]] = {}  # patches of each text

    def watched(self: Any, done: Any) -> Any:
        ended[tuple(done.best.tokens)] = sorted(done.taken, key=lambda one: one.patch.start)
        return end(self, done)

    monkeypatch.setattr(search.GuardSearch, "_ended", watched)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": replace(FREE, loss=loss)})
    for ids, old, new in zip(PROMPTS, unmarked.sequences, made.sequences, strict=True):
        before, after, shift = nats(model, ids, old), nats(model, ids, new), 0
        taken = [one.patch for one in ended[tuple(new)]]
        for patch, until in zip(taken, [*(patch.start for patch in taken), len(old)][1:], strict=True):
            start, behind = patch.start + shift, range(patch.end, min(until, patch.end + search.BEHIND))
            shift += len(patch.tokens) - (patch.end - patch.start)
            copied = [before[place] - after[place + shift] for place in behind if place + shift < len(new)]
            inside = sum(before[patch.start : patch.end]) - sum(after[start : start + len(patch.tokens)])
            assert inside + sum(copied) <= loss + 1e-3 and max(copied, default=0.0) <= loss / 2 + 1e-3
            count, most = count + 1, max(most, inside + sum(copied))
    assert count and most > 0


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 3}, {"speculate": None}, {"speculate": 4}])
def test_texts_do_not_depend_on_batch_or_drafts(model: Any, guarded: Any, settings: dict[str, Any]) -> None:
    again = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, **settings})
    assert (again.sequences, again.receipts) == (guarded.sequences, guarded.receipts)


def test_the_sub_key_under_which_the_least_is_lost_marks_a_text(model: Any, unmarked: Any) -> None:
    mark = caw.KGW(key=1, delta=6.0, subkeys=16)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "watermark": mark, "detectable_at": 0.05})
    changed = 0
    for text, plain, receipt in zip(made.texts, unmarked.texts, made.receipts or [], strict=True):
        result, before = (caw.detect(each, tokenizer(), mark, 0.05) for each in (text, plain))
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.rolled >= receipt.rollouts
        if receipt.changes:
            changed += 1
            assert receipt.subkeys == 16 and result.p_value < before.p_value
            assert receipt.subkey == result.subkey or not receipt.detected
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

    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": replace(FREE, keeps=fails)})
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
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": replace(FREE, keeps=keeps)})
    assert made.sequences == unmarked.sequences
    tried = [receipt for receipt in made.receipts or [] if not receipt.detected]
    assert tried and all((r.kept, r.rollouts, r.changes) == (False, 0, 0) and r.keeps_error == error for r in tried)


def test_ctrl_c_in_a_reader_ends_the_call(model: Any) -> None:
    def interrupted(old: str, new: str) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": replace(FREE, keeps=interrupted)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompt", ["Write a letter to Ann about her 3 cats.", "Write two short paragraphs about the sea."]
)
def test_guarded_sentences_keep_their_content_and_lose_little(demo: Any, prompt: str) -> None:
    mark, texts = caw.KGW(key=1, delta=4.0, subkeys=16), []
    options = {"max_new_tokens": 60, "chat": True, "progress": False}
    [plain] = caw.generate(*demo, [prompt], **options).texts
    for layout, streamer in ((False, None), (True, None), (True, Recorder())):
        tested = {"watermark": mark, "detectable_at": 0.1, "guard": caw.Guard(layout=layout, window=16)}
        made = caw.generate(*demo, [prompt], streamer=streamer, **tested, **options)
        [text], [receipt] = made.texts, made.receipts or []
        result = caw.detect(text, demo[1], mark, 0.1)
        assert (receipt.detected, receipt.p_value) == (result.is_watermarked, result.p_value)
        assert receipt.kept and receipt.changes and (layout or text.count("\n") == plain.count("\n"))
        assert (receipt.windows is None and same_content(plain, text)) or receipt.windows > 2
        texts.append(text)
    assert plain not in texts


@pytest.mark.parametrize("name", [name for name in MARKS if name not in ("kgw", "key of its own")])
def test_every_watermark(model: Any, unmarked: Any, name: str) -> None:
    """What is kept is kept, the receipt is the detector's, and p falls where a text was changed, as one is."""
    guard = replace(FREE, keeps=lambda old, new: old[:9] == new[:9], rollouts=40)
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
    options = {**OPTIONS, "guard": replace(FREE, keeps=lambda old, new: old == new)}
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


def test_no_end_of_a_rollout_throws_the_rest_of_the_text_away(model: Any) -> None:
    """Rollouts that come to an end of their own would leave little of a long text."""
    cut = 0
    for seed in range(12):
        [plain] = caw.generate(model, tokenizer(), [prompt(9, seed)], max_new_tokens=60, progress=False).sequences
        places = [place for place in range(25, len(plain)) if plain[place] not in plain[:place]]
        if not places:
            continue
        own, length = ends_with(model, plain[places[0]]), places[0] + 1
        guard = replace(FREE, rejoin=4)
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
    guard = replace(FREE, keeps=lambda old, new: bool(asked.append(new)) or True)
    caw.generate(model, tokenizer(), PROMPTS[:1], **{**OPTIONS, "guard": guard, "detectable_at": 1e-6})
    assert len(asked) == len(set(asked)) > 10


@pytest.mark.parametrize("keeps", ["json", lambda old, new: None], ids=["json", "own"])
def test_changes_are_the_stretches_that_differ_and_what_was_not_checked_is_not_called_kept(
    model: Any, unmarked: Any, keeps: Any
) -> None:
    """Here later strengths change what earlier ones wrote. No text holds JSON: numbers, names and code are kept."""
    options = {**OPTIONS, "guard": replace(FREE, keeps=keeps), "detectable_at": 1e-4}
    made = caw.generate(model, tokenizer(), PROMPTS, **options)
    assert any(receipt.changes for receipt in made.receipts or [])
    for tokens, plain, receipt in zip(made.sequences, unmarked.sequences, made.receipts or [], strict=True):
        same = SequenceMatcher(a=plain, b=tokens, autojunk=False).get_matching_blocks()
        assert receipt.changes <= len(same) + 1 and (receipt.changes > 0) == (tokens != plain)
        held = keeps == "json" and any(map(plain_text(plain).count, "[{"))
        assert receipt.kept is (None if receipt.changes and not held else True)
        assert held or same_content(plain_text(plain), plain_text(tokens))


def plain_text(tokens: list[int]) -> str:
    return str(tokenizer().decode(tokens, skip_special_tokens=True))


def test_texts_are_cut_at_the_budget_as_the_unmarked_one_was(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, none could be changed into one of more tokens."""
    splice, longer = search.GuardSearch._splice, []

    def seen(self: Any, patches: Any) -> Any:
        text = splice(self, patches)
        if text is not None and len(spliced(self.base.tokens, patches)) > 40:
            longer.append(len(text[0]))
        return text

    monkeypatch.setattr(search.GuardSearch, "_splice", seen)
    guard = {"guard": replace(FREE, rollouts=256), "detectable_at": 1e-4, "max_new_tokens": 40}
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, **guard})
    assert set(longer) == {40} and max(map(len, made.sequences)) <= 40
    assert [trace.tokens for trace in made.trace or []] == made.sequences


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    ordered, found = search.GuardSearch._ordered, list[Any]()

    def watched(self: Any, proposals: Any, layout: Any) -> Any:
        found.extend(proposals)
        return ordered(self, proposals, layout)

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


def test_traces_name_the_strength_that_the_policy_gave(model: Any, unmarked: Any, proposed: list[Any]) -> None:
    nats, strengths = 3.5, (1.0, 1.5, 2.25)
    options = {**OPTIONS, "policy": caw.EntropyThreshold(nats), "detectable_at": 1e-4}
    made = caw.generate(model, tokenizer(), PROMPTS[:1], **options)
    logits = model(torch.tensor([[*PROMPTS[0], *unmarked.sequences[0]]])).logits[0, len(PROMPTS[0]) - 1 : -1].detach()
    spread = torch.special.entr(logits.softmax(dim=1)).sum(dim=1).tolist()
    marked = [each for each in proposed if each.trace.strength]
    assert 0 < len(marked) < len(proposed) and all(each.trace.strength == strengths[each.level] for each in marked)
    most = max(spread[each.place] for each in proposed if not each.trace.strength)
    assert most < nats + 0.5 and min(spread[each.place] for each in marked) > nats - 0.5  # records lack the rest
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
    assert all(any(each.startswith(text) for each in right) for text in made.texts), "those at the budget are cut"
    assert made.texts != unmarked.texts


def test_what_a_text_costs_is_bounded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some patches cost too much where they are read, each alone and then together; then others are put together."""
    read, readings = search.GuardSearch._reading, []

    def counted(self: Any, tokens: Any, since: int, strengths: Any = ()) -> Any:
        readings.append((self, bool(strengths)))
        return read(self, tokens, since, strengths)

    monkeypatch.setattr(search.GuardSearch, "_reading", counted)
    guard = replace(FREE, loss=4.0, rollouts=20)
    made = caw.generate(model, tokenizer(), PROMPTS, **{**OPTIONS, "guard": guard, "detectable_at": 0.05})
    assert all(receipt.rollouts <= 20 for receipt in made.receipts or [])
    counts = Counter(readings)
    assert any(not first for _, first in counts)
    assert all(count <= (1 if first else 20 + 2 * search.READINGS) for (_, first), count in counts.items())
